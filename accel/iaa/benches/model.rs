//! A page's time to compress, one by one and in batches: devices in model time, and the driver's
//! own CPU time on this machine, with a device that does nothing.
//!
//! `cargo bench -p uzswap-iaa --bench model` prints CSV. Published figures are of the kernel series
//! "zswap compression batching", patch on work queues and core mapping, v10.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/model.rs"]
mod model;

use acomp::Page;
use common::{driver, fixed, page, settings, shrinking};
use model::{compress_all, Model, Shape};

const PAGES: usize = 256;
const ROUNDS: usize = 501;

fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn main() {
    let pages: Vec<Page> = shrinking(PAGES).map(page).collect();
    println!(
        "source,devices,jobs a device works on at once,batch,ns a page,most under way on a device,quartiles"
    );
    for (devices, engines) in [(1, 2), (1, 8), (4, 2), (4, 8)] {
        for batch in [1, 2, 4, 8] {
            let shape = Shape { devices, engines, entries: 128 };
            let (model, driver) = Model::driver(shape, &pages, settings(""));
            compress_all(&mut *fixed(&driver), &pages, batch, |_| ());
            let (ns, depth) = (model.now_ns() as f64 / PAGES as f64, model.depth());
            println!("model,{devices},{engines},{batch},{ns:.0},{depth},");
        }
    }
    for (devices, batch, ns) in [(1, 1, 3503), (1, 8, 1356), (4, 8, 706)] {
        println!("published,{devices},,{batch},{ns},,");
    }
    for devices in [1, 4] {
        let driver = driver(&format!("devices={devices},work=null"), "");
        let mut context = fixed(&driver);
        let mut rounds = [1, 2, 4, 8].map(|batch| (batch, Vec::new()));
        for _ in 0..ROUNDS {
            for (batch, times) in &mut rounds {
                let before = cpu_ns();
                compress_all(&mut *context, &pages, *batch, |_| ());
                times.push((cpu_ns() - before) as f64 / PAGES as f64);
            }
        }
        for (batch, mut times) in rounds {
            times.sort_by(f64::total_cmp);
            let [low, middle, high] = [1, 2, 3].map(|quarter| times[ROUNDS * quarter / 4]);
            println!("measured,{devices},,{batch},{middle:.0},,{low:.0} to {high:.0}");
        }
    }
}
