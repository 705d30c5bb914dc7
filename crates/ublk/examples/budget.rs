//! Costs of a request in the parts that any machine can measure: the device, copies, system calls,
//! the ring.
//!
//! ```text
//! cargo run --release -p uzswap-ublk --example budget -- gcc.pages v8.pages
//! ```
//!
//! The arguments are files of pages to store (`uzswap pages` captures some). The path through the
//! kernel's driver is missing: it takes a kernel with ublk, on a machine that is not emulated.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use device::{Config, Device, BLOCK_BYTES};
use io_uring::{opcode, IoUring};

const TURNS: usize = 5;

/// CPU time of this thread: other load on the machine affects it only through its caches.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a valid timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds of CPU time a step: the median of five turns.
fn nanoseconds(steps: usize, mut turn: impl FnMut()) -> f64 {
    let mut turns: Vec<Duration> = (0..TURNS)
        .map(|_| {
            let start = used();
            turn();
            used() - start
        })
        .collect();
    turns.sort_unstable();
    turns[TURNS / 2].as_nanos() as f64 / steps as f64
}

fn main() {
    let files: Vec<String> = std::env::args().skip(1).collect();
    assert!(!files.is_empty(), "name files with pages");
    for file in files {
        let mut bytes = fs::read(&file).unwrap();
        bytes.truncate(16 << 20);
        bytes.truncate(bytes.len() / (1 << 20) * (1 << 20));
        println!("{file}, {} MiB; nanoseconds a page of 4 KiB", bytes.len() >> 20);
        for compressor in ["auto", "lz4"] {
            device_costs(&bytes, compressor);
        }
    }
    copies();
    ring();
    wakes("any CPUs");
    let mut first = [0u64; 16];
    first[0] = 1;
    // SAFETY: a mask of the given size.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&first), first.as_ptr().cast()) }, 0);
    wakes("one CPU, as a queue and who waits for it");
}

fn device_costs(bytes: &[u8], compressor: &str) {
    let config = Config {
        size_bytes: bytes.len() as u64,
        compressor: compressor.to_owned(),
        queues: 1,
        has_checksums: false,
        ..Config::default()
    };
    let device = Device::new(config).unwrap();
    let pages = bytes.len() / BLOCK_BYTES;
    // Far from each other: neighbours share tables, and swap does not read them together.
    let order: Vec<usize> = (0..pages).map(|index| index * 7919 % pages).collect();
    let mut page = [0; BLOCK_BYTES];
    for (what, unit) in [("4 KiB each", 1), ("64 KiB", 16), ("1 MiB", 256)] {
        let chunk = unit * BLOCK_BYTES;
        let write = nanoseconds(pages, || {
            for (index, bytes) in bytes.chunks(chunk).enumerate() {
                device.write((index * chunk) as u64, bytes).unwrap();
            }
        });
        println!("  {compressor}, write of {what}: {write:.0}");
    }
    let read = nanoseconds(pages, || {
        for &index in &order {
            device.read((index * BLOCK_BYTES) as u64, &mut page).unwrap();
        }
    });
    println!("  {compressor}, read of 4 KiB at random: {read:.0}");
    let used = device.statistics();
    println!(
        "  {compressor}, stored in {:.3} of their size",
        used.mem_used_total as f64 / used.orig_data_size as f64
    );
}

/// Costs of a copy, in memory and by pread(2) from memory: the copy by the kernel's driver costs at
/// least as much.
fn copies() {
    const PAGES: usize = 4096;
    let from = vec![7u8; PAGES * BLOCK_BYTES];
    let mut page = [0; BLOCK_BYTES];
    let copy = nanoseconds(PAGES, || {
        for bytes in from.chunks(BLOCK_BYTES) {
            page.copy_from_slice(bytes);
            std::hint::black_box(&page);
        }
    });
    let path = std::env::temp_dir().join(format!("uzswap-budget-{}", std::process::id()));
    fs::write(&path, &from).unwrap();
    let file = fs::File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let pread = nanoseconds(PAGES, || {
        for index in 0..PAGES {
            file.read_exact_at(&mut page, (index * BLOCK_BYTES) as u64).unwrap();
        }
    });
    println!("a copy of 4 KiB: {copy:.0} ns; by pread(2) from the page cache: {pread:.0} ns");
}

/// Costs of submission and completion, one at a time and 32 at once, with no-op commands.
fn ring() {
    let mut ring = IoUring::new(64).unwrap();
    for batch in [1, 32] {
        const ROUNDS: usize = 20_000;
        let cost = nanoseconds(ROUNDS * batch, || {
            for _ in 0..ROUNDS {
                for _ in 0..batch {
                    // SAFETY: a command without buffers.
                    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.unwrap();
                }
                ring.submit_and_wait(batch).unwrap();
                assert_eq!(ring.completion().count(), batch);
            }
        });
        println!("the ring, {batch} at once: {cost:.0} ns a command");
    }
}

/// Time to wake another thread and be woken by it: a request's wait, beside the work. Wall time,
/// since the CPU may sleep; so the least of many.
fn wakes(on: &str) {
    let (mut own, mut other) = UnixStream::pair().unwrap();
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while other.read(&mut byte).unwrap() == 1 {
            other.write_all(&byte).unwrap();
        }
    });
    let mut rounds: Vec<Duration> = (0..20_000)
        .map(|_| {
            let start = Instant::now();
            own.write_all(&[1]).unwrap();
            own.read_exact(&mut [0]).unwrap();
            start.elapsed()
        })
        .collect();
    drop(own);
    echo.join().unwrap();
    rounds.sort_unstable();
    let at = |share: usize| rounds[rounds.len() * share / 100].as_nanos();
    println!("to another thread and back, {on}: {} ns for a tenth of them, median {} ns", at(10), at(50));
}
