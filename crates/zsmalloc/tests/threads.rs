//! Threads allocate, write, read and free while another compacts without a pause: every object
//! keeps its bytes. `UZSWAP_TEST_SOAK_SECONDS` sets a longer duration.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{content, Random};
use zsmalloc::{Config, Handle, Pool};

/// Steps of each thread, unless a duration is set.
const STEPS: usize = 30_000;

struct Soak {
    pool: Pool,
    done: AtomicBool,
    /// Batches made by one thread and freed by another, as a store's loads do.
    passed_on: Mutex<Vec<Vec<(Handle, u64)>>>,
}

impl Soak {
    fn check(&self, handles: &[(Handle, u64)]) {
        let guards: Vec<_> = handles.iter().map(|(handle, _)| self.pool.read(*handle)).collect();
        for (guard, (handle, stamp)) in guards.iter().zip(handles) {
            assert_eq!(guard.bytes(), content(*stamp, guard.bytes().len()), "{handle:?}");
        }
    }

    fn free(&self, batch: &[(Handle, u64)]) {
        self.check(batch);
        let names: Vec<Handle> = batch.iter().map(|object| object.0).collect();
        self.pool.free_bulk(&names);
    }

    fn work(&self, thread: u64, sizes: &[u32], until: Option<Instant>) {
        let mut random = Random::new(thread);
        let mut stamp = thread << 40;
        let mut mine: Vec<Vec<(Handle, u64)>> = Vec::new();
        for step in 0.. {
            match until {
                Some(end) if step % 64 == 0 && Instant::now() > end => break,
                None if step == STEPS => break,
                _ => {}
            }
            match random.below(8) {
                0..=2 => {
                    let count = 1 + random.below(8);
                    let sizes: Vec<u32> = (0..count).map(|_| sizes[random.below(sizes.len())]).collect();
                    let mut handles = vec![Handle::DANGLING; count];
                    let stamps = stamp + 1..;
                    stamp += count as u64;
                    let contents: Vec<Vec<u8>> = stamps
                        .clone()
                        .zip(&sizes)
                        .map(|(stamp, &size)| content(stamp, size as usize))
                        .collect();
                    if random.below(2) == 0 {
                        let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
                        self.pool.put_bulk(&contents, 0, &mut handles).unwrap();
                    } else {
                        self.pool.malloc_bulk(&sizes, 0, &mut handles).unwrap();
                        for (&handle, bytes) in handles.iter().zip(&contents) {
                            self.pool.write(handle, bytes);
                        }
                    }
                    mine.push(handles.into_iter().zip(stamps).collect());
                }
                3 if !mine.is_empty() => {
                    let batch = mine.swap_remove(random.below(mine.len()));
                    self.passed_on.lock().unwrap().push(batch);
                }
                4 => {
                    let batch = self.passed_on.lock().unwrap().pop();
                    batch.iter().for_each(|batch| self.free(batch));
                }
                5 if !mine.is_empty() => {
                    let batch = mine.swap_remove(random.below(mine.len()));
                    self.free(&batch);
                }
                6 if !mine.is_empty() => {
                    let batch = random.below(mine.len());
                    for (handle, old) in &mut mine[batch] {
                        stamp += 1;
                        *old = stamp;
                        self.pool.write(*handle, &content(stamp, self.pool.len_of(*handle)));
                    }
                }
                _ if !mine.is_empty() => self.check(&mine[random.below(mine.len())]),
                _ => {}
            }
        }
        mine.iter().for_each(|batch| self.free(batch));
    }
}

#[test]
fn objects_keep_their_bytes_while_everything_moves() {
    let seconds = std::env::var("UZSWAP_TEST_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut random = Random::new(11);
    let varied: Vec<u32> = (0..1000).map(|_| random.size()).collect();
    // With few sizes classes have their own zspages; with many most objects are in mixed ones.
    for sizes in [&varied[..], &varied[..5]] {
        let soak = Soak {
            pool: Pool::new(&Config::default()).unwrap(),
            done: AtomicBool::new(false),
            passed_on: Mutex::new(Vec::new()),
        };
        let freed_pages = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let compactor = scope.spawn(|| {
                while !soak.done.load(Ordering::Relaxed) {
                    freed_pages.fetch_add(soak.pool.compact(), Ordering::Relaxed);
                    soak.pool.stats();
                    std::thread::yield_now();
                }
            });
            let workers = [1, 2].map(|thread| {
                let soak = &soak;
                scope.spawn(move || soak.work(thread, sizes, until))
            });
            // The compactor ends even if a worker has panicked.
            let ends = workers.map(|worker| worker.join());
            soak.done.store(true, Ordering::Relaxed);
            compactor.join().unwrap();
            ends.into_iter().for_each(Result::unwrap);
        });
        for batch in soak.passed_on.lock().unwrap().drain(..) {
            soak.free(&batch);
        }
        assert!(freed_pages.load(Ordering::Relaxed) > 0, "compaction had nothing to do");
        soak.pool.compact();
        let stats = soak.pool.stats();
        assert_eq!((stats.objects, stats.payload_bytes, stats.pool_bytes), (0, 0, 0));
        assert_eq!((stats.class_zspages, stats.mixed_zspages, stats.mixed_dead_bytes), (0, 0, 0));
    }
}

/// One thread allocates and another frees its objects: the handles must return to the first.
#[test]
fn handles_that_travel_one_way_do_not_use_up_the_table() {
    let pool = Pool::new(&Config::default()).unwrap();
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<Handle>>(16);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for handles in receiver {
                pool.free_bulk(&handles);
            }
        });
        for _ in 0..20_000 {
            let mut handles = vec![Handle::DANGLING; 8];
            pool.malloc_bulk(&[500; 8], 0, &mut handles).unwrap();
            sender.send(handles).unwrap();
        }
        drop(sender);
    });
    assert_eq!(pool.stats().objects, 0);
    // 160,000 handles were given out, some 150 at a time: 1.2 MiB if none had come back.
    assert!(pool.metadata_bytes() < 100_000, "{} bytes", pool.metadata_bytes());
}
