//! What the pool costs: `cargo run --release --example cost`
//!
//! Every row is measured for the pool and, in the same run, for the C library's malloc with memcpy,
//! batches of eight objects. Nanoseconds an object, best of several rounds; the pool's pages are
//! recycled from round to round as malloc's are, but for the rows that say otherwise.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::Instant;

use common::Random;
use zsmalloc::{Config, Handle, Pool};

const OBJECTS: usize = 4096;
const ROUNDS: usize = 40;

/// An allocator under measurement, in batches of eight.
trait Subject: Sync {
    type Name: Copy + Send;
    const NONE: Self::Name;
    fn store(&self, source: &[u8], sizes: &[u32], names: &mut [Self::Name]);
    fn load(&self, names: &[Self::Name], sizes: &[u32], target: &mut [u8]);
    fn touch(&self, names: &[Self::Name]) -> u64;
    fn free(&self, names: &[Self::Name]);
}

impl Subject for Pool {
    type Name = Handle;
    const NONE: Handle = Handle::DANGLING;

    fn store(&self, source: &[u8], sizes: &[u32], names: &mut [Handle]) {
        self.malloc_bulk(sizes, 0, names).expect("memory");
        for (&name, &size) in names.iter().zip(sizes) {
            self.write(name, &source[..size as usize]);
        }
    }

    fn load(&self, names: &[Handle], _: &[u32], target: &mut [u8]) {
        self.read_bulk(names, |objects| {
            for (head, _) in objects {
                target[..head.len()].copy_from_slice(head);
            }
        });
    }

    fn touch(&self, names: &[Handle]) -> u64 {
        self.read_bulk(names, |objects| objects.iter().map(|(head, _)| u64::from(head[0])).sum())
    }

    fn free(&self, names: &[Handle]) {
        self.free_bulk(names);
    }
}

/// The C library's malloc.
struct Malloc;

#[derive(Clone, Copy)]
struct Pointer(*mut u8);

// SAFETY: the pointer is to memory that one thread at a time uses.
unsafe impl Send for Pointer {}

impl Subject for Malloc {
    type Name = Pointer;
    const NONE: Pointer = Pointer(std::ptr::null_mut());

    fn store(&self, source: &[u8], sizes: &[u32], names: &mut [Pointer]) {
        for (name, &size) in names.iter_mut().zip(sizes) {
            // SAFETY: sizes are not zero, the source is longer than any, and malloc gave that many
            // bytes.
            unsafe {
                name.0 = libc::malloc(size as usize).cast();
                assert!(!name.0.is_null());
                std::ptr::copy_nonoverlapping(source.as_ptr(), name.0, size as usize);
            }
        }
    }

    fn load(&self, names: &[Pointer], sizes: &[u32], target: &mut [u8]) {
        for (name, &size) in names.iter().zip(sizes) {
            // SAFETY: stored above with that size.
            target[..size as usize]
                .copy_from_slice(unsafe { std::slice::from_raw_parts(name.0, size as usize) });
        }
    }

    fn touch(&self, names: &[Pointer]) -> u64 {
        // SAFETY: stored above, one byte long at least.
        names.iter().map(|name| u64::from(unsafe { *name.0 })).sum()
    }

    fn free(&self, names: &[Pointer]) {
        for name in names {
            // SAFETY: allocated by malloc, freed once.
            unsafe { libc::free(name.0.cast()) };
        }
    }
}

/// Nanoseconds an object: store, touch (a byte of each), load (copied out), free, and free and
/// store at random.
#[derive(Clone, Copy)]
struct Costs([f64; 5]);

const ROWS: [&str; 5] = ["store (malloc + write)", "touch (read guard)", "load (copy out)", "free", "churn"];

impl Costs {
    fn measure<S: Subject>(subject: &S, sizes: &[u32], seed: u64) -> Costs {
        let source = common::content(1, 4096);
        let mut target = vec![0; 4096];
        let mut best = [f64::MAX; 5];
        let mut note = |row: usize, count: usize, start: Instant| {
            best[row] = best[row].min(start.elapsed().as_nanos() as f64 / count as f64);
        };
        let mut random = Random::new(seed);
        for _ in 0..ROUNDS {
            let mut names = vec![S::NONE; sizes.len()];
            let start = Instant::now();
            for (sizes, names) in sizes.chunks(8).zip(names.chunks_mut(8)) {
                subject.store(&source, sizes, names);
            }
            note(0, sizes.len(), start);
            let start = Instant::now();
            let sum: u64 = names.chunks(8).map(|names| subject.touch(names)).sum();
            black_box(sum);
            note(1, sizes.len(), start);
            let start = Instant::now();
            for (sizes, names) in sizes.chunks(8).zip(names.chunks(8)) {
                subject.load(names, sizes, &mut target);
            }
            black_box(&target);
            note(2, sizes.len(), start);
            // A batch goes, another of other sizes comes.
            let batches = sizes.len() / 8;
            let picks: Vec<(usize, usize)> =
                (0..batches).map(|_| (random.below(batches), random.below(batches))).collect();
            let start = Instant::now();
            for &(to, from) in &picks {
                let names = &mut names[to * 8..][..8];
                subject.free(names);
                subject.store(&source, &sizes[from * 8..][..8], names);
            }
            note(4, sizes.len(), start);
            let start = Instant::now();
            names.chunks(8).for_each(|names| subject.free(names));
            note(3, sizes.len(), start);
        }
        Costs(best)
    }

    /// Two threads at the same time on the same subject, each with as many objects.
    fn measure_two<S: Subject>(subject: &S, sizes: &[u32]) -> Costs {
        let barrier = std::sync::Barrier::new(2);
        let run = |seed| {
            barrier.wait();
            Self::measure(subject, sizes, seed)
        };
        let costs = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(1));
            let one = run(2);
            (one, other.join().expect("no panic"))
        });
        Costs(std::array::from_fn(|row| (costs.0 .0[row] + costs.1 .0[row]) / 2.0))
    }
}

fn main() {
    // SAFETY: one thread; malloc keeps its memory from round to round as the pool does.
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30) };
    let mut random = Random::new(7);
    let mixed: Vec<u32> = (0..OBJECTS).map(|_| random.size()).collect();
    let even = vec![1024; OBJECTS];
    for (name, sizes) in [("1024 bytes", &even), ("300-1800 bytes", &mixed)] {
        let pool = Pool::new(&Config::default()).expect("memory");
        // Fresh pages: one untimed look at what the kernel's page faults cost.
        let start = Instant::now();
        let mut handles = vec![Handle::DANGLING; sizes.len()];
        let source = common::content(1, 4096);
        for (sizes, handles) in sizes.chunks(8).zip(handles.chunks_mut(8)) {
            pool.store(&source, sizes, handles);
        }
        let fresh = start.elapsed().as_nanos() as f64 / sizes.len() as f64;
        pool.free_bulk(&handles);
        // All rounds free everything; the pages are to stay, as malloc's do below its trim
        // threshold.
        pool.set_cached_bytes_max(64 << 20);
        let pool_costs = Costs::measure(&pool, sizes, 3);
        let malloc_costs = Costs::measure(&Malloc, sizes, 3);
        let pool_two = Costs::measure_two(&pool, sizes);
        let malloc_two = Costs::measure_two(&Malloc, sizes);
        println!("{name}: ns an object, {OBJECTS} objects a thread");
        println!(
            "  {:<24} {:>8} {:>8} {:>6}   two threads: {:>8} {:>8} {:>8}",
            "", "pool", "malloc", "ratio", "pool", "malloc", "speed-up"
        );
        println!("  {:<24} {:>8.1}", "store, fresh pages", fresh);
        for (row, row_name) in ROWS.iter().enumerate() {
            let (pool, malloc) = (pool_costs.0[row], malloc_costs.0[row]);
            println!(
                "  {row_name:<24} {pool:>8.1} {malloc:>8.1} {:>6.2}                {:>8.1} {:>8.1} {:>7.2}x",
                pool / malloc,
                pool_two.0[row],
                malloc_two.0[row],
                2.0 * pool / pool_two.0[row],
            );
        }
    }
}
