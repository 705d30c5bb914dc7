//! Two threads store, load, invalidate, switch compressors, promote, compact, shrink and run out of
//! memory, against a model.
//!
//! 20 seconds, or as many as `UZSWAP_TEST_SOAK_SECONDS` says; `UZSWAP_TEST_SEED` takes other steps.
#![cfg(not(feature = "shuttle"))]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use support::{assert_empty, page, refs, Trim};
use zswap::{Config, Group, Keep, LoadError, Page, StoreError, Writeback, WritebackError, Zswap};

const FOLIO: usize = 16;
const FOLIOS: usize = 96;
const GROUPS: u16 = 2;

type Written = BTreeMap<(u16, u64), Box<Page>>;

/// Where pages go: what is written, and what is at home here since.
#[derive(Default)]
struct Home {
    pages: Mutex<[Written; 2]>,
    writes: AtomicU64,
}

impl Home {
    fn take(&self, group: Group, key: u64) -> Option<Box<Page>> {
        self.pages.lock().unwrap()[1].remove(&(group.0, key))
    }

    /// Forgets the page unless it is `page`.
    fn drop_older(&self, group: Group, key: u64, page: &Page) {
        let mut pages = self.pages.lock().unwrap();
        if pages[1].get(&(group.0, key)).is_some_and(|written| **written != *page) {
            pages[1].remove(&(group.0, key));
        }
    }
}

impl Writeback for Home {
    fn write(&self, group: Group, key: u64, mask: u16, pages: &[&Page]) -> Result<(), WritebackError> {
        if self.writes.fetch_add(1, Ordering::Relaxed) % 13 == 12 {
            return Err(std::io::Error::from_raw_os_error(5).into());
        }
        let mut all = self.pages.lock().unwrap();
        let slots = (0..16).filter(|slot| mask >> slot & 1 == 1);
        for (slot, page) in slots.zip(pages) {
            all[0].insert((group.0, key + slot), Box::new(**page));
        }
        Ok(())
    }

    fn finish(&self, group: Group, key: u64, claimed: u16, written: u16) {
        let mut all = self.pages.lock().unwrap();
        for slot in (0..16).filter(|slot| claimed >> slot & 1 == 1) {
            let at = (group.0, key + slot);
            let page = all[0].remove(&at);
            if written >> slot & 1 == 1 {
                all[1].insert(at, page.expect("written"));
            }
        }
    }
}

type Folio = [Option<Box<Page>>; FOLIO];

struct World {
    zswap: Zswap,
    home: Arc<Home>,
    folios: Vec<Mutex<Folio>>,
    done: AtomicBool,
    versions: AtomicU64,
    stored: AtomicU64,
    loaded: AtomicU64,
    promoted: AtomicU64,
}

impl World {
    fn new(unit_size: usize) -> Self {
        let home = Arc::new(Home::default());
        let config = Config {
            unit_size,
            writeback: Some(home.clone()),
            verify: true,
            max_groups: GROUPS,
            contexts: 2,
            ..Config::default()
        };
        World {
            zswap: Zswap::new(config, Trim::tiered("0", 1)).unwrap(),
            home,
            folios: (0..GROUPS as usize * FOLIOS).map(|_| Mutex::new(Folio::default())).collect(),
            done: AtomicBool::new(false),
            versions: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
            promoted: AtomicU64::new(0),
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
        // A folio is locked by the thread that works on it, in ascending order: what the owner of
        // the pages does.
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
                // No two pages are ever the same, so that an older one is known for what it is.
                let unique = |kind, version: u64| match kind {
                    0 => version.to_le_bytes().repeat(512).try_into().expect("4096 bytes"),
                    kind => page(kind, version),
                };
                let pages: Vec<Page> = (0..count).map(|n| unique(below(5) as u8, version + n)).collect();
                match self.zswap.store(group, key, &refs(&pages)) {
                    Ok(()) => {
                        self.stored.fetch_add(count, Ordering::Relaxed);
                        for (key, page) in keys.zip(&pages) {
                            self.home.drop_older(group, key, page);
                            *Self::slot(&mut models, first, key) = Some(Box::new(*page));
                        }
                    }
                    Err(error) => {
                        assert_eq!(error, StoreError::NoMemory);
                        for key in keys {
                            self.home.take(group, key);
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
                    let mask = self.zswap.present(group, at, part);
                    let mut pages = vec![[0xEE; 4096]; mask.count_ones() as usize];
                    let mut slots: Vec<&mut Page> = pages.iter_mut().collect();
                    match self.zswap.load_masked(group, at, mask, &mut slots, keep) {
                        Ok(()) => {}
                        // Written back since; look again.
                        Err(LoadError::Missing { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    }
                    let mut loaded = pages.into_iter();
                    for n in 0..part as u64 {
                        let model = Self::slot(&mut models, first, at + n);
                        if mask >> n & 1 == 1 {
                            let page = loaded.next().unwrap();
                            assert!(model.as_deref() == Some(&page), "key {} of {group:?}, stored", at + n);
                            if keep == Keep::Exclusive {
                                *model = None;
                            }
                        } else if let Some(page) = self.home.take(group, at + n) {
                            assert!(
                                model.as_deref() == Some(&*page),
                                "key {} of {group:?}, at home; model {:x?}, home {:x?}",
                                at + n,
                                model.as_deref().map(|page| &page[..16]),
                                &page[..16]
                            );
                            *model = None;
                        } else {
                            assert!(model.is_none(), "key {} of {group:?} is lost", at + n);
                        }
                        self.loaded.fetch_add(1, Ordering::Relaxed);
                    }
                    at += part as u64;
                }
            }
            85..92 => {
                let mut models = lock();
                self.zswap.invalidate(group, key, count);
                for key in keys {
                    self.home.take(group, key);
                    *Self::slot(&mut models, first, key) = None;
                }
            }
            92..95 => {
                // Pools that drain may be as many as there can be.
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
            97..99 => {
                let target = self.zswap.pool_bytes() * (50 + below(50)) / 100;
                self.zswap.shrink(target);
            }
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

    fn drain(&self) {
        for number in 0..GROUPS {
            for key in 0..(FOLIOS * FOLIO) as u64 {
                let group = Group(number);
                let mut folio = self.folios[number as usize * FOLIOS + key as usize / FOLIO].lock().unwrap();
                let model = folio[key as usize % FOLIO].take();
                let stored = support::load(&self.zswap, group, key, 1, Keep::Exclusive);
                let found = match (stored, self.home.take(group, key)) {
                    (Ok(pages), None) => Some(Box::new(pages[0])),
                    (Err(LoadError::Missing { .. }), home) => home,
                    (stored, home) => panic!("{:?} and {}", stored.map(|_| ()), home.is_some()),
                };
                assert!(found == model, "key {key} of {group:?}");
            }
        }
        assert_empty(&self.zswap);
        assert!(self.home.pages.lock().unwrap().iter().all(BTreeMap::is_empty));
        assert_eq!(self.zswap.pools().len(), 1);
    }
}

#[test]
fn two_threads_agree_with_the_model() {
    let seconds =
        std::env::var("UZSWAP_TEST_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20u64);
    let seed = std::env::var("UZSWAP_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0u64);
    for (round, unit_size) in [4096, 16384, 65536, 4096].into_iter().enumerate() {
        let world = World::new(unit_size);
        let end = Instant::now() + Duration::from_millis(seconds * 1000 / 4);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let world = &world;
                scope.spawn(move || {
                    let mut random =
                        0x1234_5678_9ABC_DEF1 ^ (thread << 40) ^ ((round as u64) << 50) ^ (seed << 8);
                    while !world.done.load(Ordering::Relaxed) && Instant::now() < end {
                        for _ in 0..50 {
                            world.step(&mut random);
                        }
                    }
                });
            }
        });
        let counters = world.zswap.counters();
        world.drain();
        println!(
            "units of {unit_size}: {} pages stored, {} loaded, {} promoted, {} written back, {} failed writebacks",
            world.stored.load(Ordering::Relaxed),
            world.loaded.load(Ordering::Relaxed),
            world.promoted.load(Ordering::Relaxed),
            counters.zswpwb,
            counters.reject_reclaim_fail,
        );
        assert!(counters.zswpwb > 0 && counters.zswpout > 1000);
        assert!(world.promoted.load(Ordering::Relaxed) > 0);
    }
}
