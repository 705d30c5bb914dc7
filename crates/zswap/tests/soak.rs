//! Two threads store, load, invalidate, switch compressors, promote, compact, write to a failing
//! disk, clean it and run out of memory, against a model.
//!
//! It runs for 20 seconds, or for `UZSWAP_TEST_SOAK_SECONDS`; `UZSWAP_TEST_SEED` selects other
//! steps.
#![cfg(not(feature = "shuttle"))]

mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use support::{assert_empty, assert_file_empty, page, refs, Swap, Trim};
use swapfile::{Faults, Rates, SwapFile};
use zswap::{Config, Group, Keep, LoadError, Page, StoreError, Zswap};

const FOLIO: usize = 16;
const FOLIOS: usize = 96;
const GROUPS: u16 = 2;

type Folio = [Option<Box<Page>>; FOLIO];

struct World {
    zswap: Zswap,
    file: Arc<SwapFile>,
    faults: Arc<Faults>,
    folios: Vec<Mutex<Folio>>,
    versions: AtomicU64,
    stored: AtomicU64,
    loaded: AtomicU64,
    promoted: AtomicU64,
    failed: AtomicU64,
}

impl World {
    fn new(unit_size: usize, (file, faults): (Arc<SwapFile>, Arc<Faults>)) -> Self {
        let config = Config {
            unit_size,
            swap: Some(file.clone()),
            verify: true,
            max_groups: GROUPS,
            contexts: 2,
            ..Config::default()
        };
        World {
            zswap: Zswap::new(config, Trim::tiered("0", 1)).unwrap(),
            file,
            faults,
            folios: (0..GROUPS as usize * FOLIOS).map(|_| Mutex::new(Folio::default())).collect(),
            versions: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
            promoted: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// A key's page in the model; the caller has locked the folios from key `first` on.
    fn slot<'a>(models: &'a mut [MutexGuard<'_, Folio>], first: u64, key: u64) -> &'a mut Option<Box<Page>> {
        let at = (key - first) as usize;
        &mut models[at / FOLIO][at % FOLIO]
    }

    fn step(&self, random: &mut u64) {
        let mut below = |end: u64| {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            (*random >> 20) % end
        };
        let number = below(u64::from(GROUPS)) as u16;
        let group = Group(number);
        let key = below((FOLIOS * FOLIO) as u64 - 1);
        let long = below(10) == 0;
        let count = (1 + below(if long { 100 } else { 16 })).min((FOLIOS * FOLIO) as u64 - key);
        let keys = key..key + count;
        // The thread locks its folios in ascending order, as the owner of the pages does.
        let folios = key as usize / FOLIO..=(key + count - 1) as usize / FOLIO;
        let first = (folios.start() * FOLIO) as u64;
        let lock = || -> Vec<_> {
            folios
                .clone()
                .map(|folio| self.folios[number as usize * FOLIOS + folio].lock().unwrap())
                .collect()
        };
        match below(100) {
            0..35 => {
                let mut models = lock();
                let version = self.versions.fetch_add(count, Ordering::Relaxed);
                // No two pages are equal, so that an older one is recognizable.
                let unique = |kind, version: u64| match kind {
                    0 => version.to_le_bytes().repeat(512).try_into().expect("4096 bytes"),
                    kind => page(kind, version),
                };
                let pages: Vec<Page> = (0..count).map(|n| unique(below(5) as u8, version + n)).collect();
                match self.zswap.store(group, key, &refs(&pages)) {
                    Ok(()) => {
                        self.stored.fetch_add(count, Ordering::Relaxed);
                        for (key, page) in keys.zip(&pages) {
                            *Self::slot(&mut models, first, key) = Some(Box::new(*page));
                        }
                    }
                    Err(error) => {
                        assert_eq!(error, StoreError::NoMemory);
                        for key in keys {
                            *Self::slot(&mut models, first, key) = None;
                        }
                    }
                }
            }
            35..85 => {
                let mut models = lock();
                let keep = if below(3) == 0 { Keep::Shared } else { Keep::Exclusive };
                let mut at = key;
                while at < keys.end {
                    let part = (keys.end - at).min(64) as usize;
                    let mut pages = vec![[0xEE; 4096]; part];
                    let mut slots: Vec<&mut Page> = pages.iter_mut().collect();
                    let wanted = u64::MAX >> (64 - part);
                    match self.zswap.load_available(group, at, wanted, &mut slots, keep) {
                        Ok(got) => {
                            for (n, page) in pages.iter().enumerate() {
                                let model = Self::slot(&mut models, first, at + n as u64);
                                let loaded = (got >> n & 1 == 1).then_some(page);
                                assert!(model.as_deref() == loaded, "page {n} from {at} of {group:?}");
                                if keep == Keep::Exclusive {
                                    *model = None;
                                }
                            }
                            self.loaded.fetch_add(u64::from(got.count_ones()), Ordering::Relaxed);
                        }
                        Err(LoadError::Disk { .. }) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => panic!("{error}"),
                    }
                    at += part as u64;
                }
            }
            85..92 => {
                let mut models = lock();
                self.zswap.invalidate(group, key, count);
                for key in keys {
                    *Self::slot(&mut models, first, key) = None;
                }
            }
            92..95 => {
                // The maximum number of pools may be draining.
                let (name, batch) = (below(6), 1 + below(8) as usize);
                let make = if name < 3 { Trim::tiered } else { Trim::new };
                let _ = self.zswap.set_compressor(make(&name.to_string(), batch));
            }
            95 => {
                self.zswap.compact();
            }
            96 => {
                let report = self.zswap.promote(group, below(120) as u32, below(100));
                assert_eq!(report.bytes, report.pages * support::PADDING as u64);
                self.promoted.fetch_add(report.pages, Ordering::Relaxed);
            }
            97 => drop(self.zswap.shrink(self.zswap.pool_bytes() * (50 + below(50)) / 100)),
            98 => match below(2) {
                0 => drop(self.zswap.maintain(4)),
                _ => self.faults.set_rates(self.rates(below(5))),
            },
            _ => {
                let after = Some(below(8) as u32);
                match below(3) {
                    0 => self.zswap.fail_objects_after(after),
                    1 => self.zswap.fail_leaves_after(after),
                    _ => self.zswap.fail_nodes_after(after),
                }
                std::thread::yield_now();
                self.zswap.fail_objects_after(None);
                self.zswap.fail_leaves_after(None);
                self.zswap.fail_nodes_after(None);
            }
        }
    }

    fn rates(&self, which: u64) -> Rates {
        let default = Rates::default;
        match which {
            0 => Rates { write_enospc: 100, reserve_enospc: 100, release_fails: 100, ..default() },
            1 => Rates { write_short: 200, read_short: 200, interrupted: 100, ..default() },
            2 => Rates { read_eio: 60, read_flip: 60, ..default() },
            // Each of these faults costs a segment for good.
            3 => Rates { write_eio: u16::from(self.file.counters().segments_retired < 24), ..default() },
            _ => default(),
        }
    }

    fn drain(&self) {
        self.faults.set_rates(Rates::default());
        for number in 0..GROUPS {
            for key in 0..(FOLIOS * FOLIO) as u64 {
                let group = Group(number);
                let mut folio = self.folios[number as usize * FOLIOS + key as usize / FOLIO].lock().unwrap();
                let model = folio[key as usize % FOLIO].take();
                let stored = support::load(&self.zswap, group, key, 1, Keep::Exclusive);
                let found = stored.as_ref().ok().map(|pages| &pages[0]);
                assert!(found == model.as_deref(), "key {key} of {group:?}: {:?}", stored.err());
            }
        }
        assert_empty(&self.zswap);
        assert_file_empty(&self.file);
        assert_eq!(self.zswap.pools().len(), 1);
    }
}

fn soak(unit_size: usize, name: &str, swap: (Arc<SwapFile>, Arc<Faults>)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seconds = number("UZSWAP_TEST_SOAK_SECONDS").unwrap_or(20u64);
    let seed = number("UZSWAP_TEST_SEED").unwrap_or(0u64);
    let world = World::new(unit_size, swap);
    let end = Instant::now() + Duration::from_millis(seconds * 1000 / 4);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let world = &world;
            scope.spawn(move || {
                let mut random =
                    0x1234_5678_9ABC_DEF1 ^ (thread << 40) ^ ((unit_size as u64) << 50) ^ (seed << 8);
                while Instant::now() < end {
                    for _ in 0..50 {
                        world.step(&mut random);
                    }
                }
            });
        }
    });
    let (counters, disk) = (world.zswap.counters(), world.file.counters());
    world.drain();
    println!(
        "{name}, units of {unit_size}: {} pages stored, {} loaded, {} promoted, {} written, {} from disk, {} cleaned \
         segments, {} failed",
        world.stored.load(Ordering::Relaxed),
        world.loaded.load(Ordering::Relaxed),
        world.promoted.load(Ordering::Relaxed),
        counters.zswpwb,
        counters.disk_loads,
        disk.segments_cleaned,
        world.failed.load(Ordering::Relaxed),
    );
    assert!(counters.zswpwb > 100 && counters.disk_loads > 100 && counters.zswpout > 1000);
    assert!(world.promoted.load(Ordering::Relaxed) > 0);
}

#[test]
fn two_threads_agree_with_the_model() {
    let swap = Swap::new(64);
    soak(65536, "memory", (swap.file, swap.faults));
    let spawn = |work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().spawn(work).map(|_| ());
    for (direct, unit_size) in [(true, 4096), (true, 16384), (false, 4096)] {
        let directory = PathBuf::from("/var/tmp");
        let config = swapfile::Config { directory, direct, ..swapfile::Config::default() };
        match swapfile::open_engine(&config, &spawn) {
            Ok(engine) => soak(unit_size, if direct { "direct" } else { "cached" }, Swap::on(engine, 64)),
            Err(error) => testkit::skip!("disk", "{error}"),
        }
    }
}
