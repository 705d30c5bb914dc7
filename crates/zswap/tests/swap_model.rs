//! Random steps with a swap file against a map, with all that a disk does to one; and two threads
//! at once on real files.
//!
//! The threads go on for 3 seconds an engine, or as many as `UZSWAP_TEST_SOAK_SECONDS` says;
//! `UZSWAP_TEST_SEED` takes other steps.
#![cfg(not(feature = "shuttle"))]

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use support::{assert_file_empty, load, page, refs, Swap, Trim};
use swapfile::{EngineChoice, Rates};
use zswap::{Config, Group, Keep, LoadError, Page, StoreError, Zswap};

/// Keys cluster around these, with room between.
const PLACES: [u64; 3] = [0, 60, (1 << 36) - 64];

#[derive(Debug, Clone)]
enum Step {
    Store { group: u16, key: u64, kinds: Vec<u8>, seed: u64 },
    Load { group: u16, key: u64, count: usize, keep: bool },
    LoadAvailable { group: u16, key: u64, wanted: u64, keep: bool },
    Invalidate { group: u16, key: u64, count: u64 },
    Switch { to: u8 },
    Compact,
    Promote { group: u16 },
    Shrink { percent: u64 },
    ShrinkFor { bytes: u64 },
    Maintain,
    Limit { group: u16, bytes: Option<u64> },
    Writeback { group: u16, allowed: bool },
    Faults { which: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let key = || (0..PLACES.len(), 0u64..40).prop_map(|(place, at)| PLACES[place] + at);
    prop_oneof![
        10 => (0u16..3, key(), prop::collection::vec(0u8..6, 1..24), any::<u64>())
            .prop_map(|(group, key, kinds, seed)| Step::Store { group, key, kinds, seed }),
        5 => (0u16..3, key(), 1usize..24, any::<bool>())
            .prop_map(|(group, key, count, keep)| Step::Load { group, key, count, keep }),
        4 => (0u16..3, key(), any::<u64>(), any::<bool>())
            .prop_map(|(group, key, wanted, keep)| Step::LoadAvailable { group, key, wanted, keep }),
        2 => (0u16..3, key(), prop_oneof![1u64..30, Just(1 << 36)])
            .prop_map(|(group, key, count)| Step::Invalidate { group, key, count }),
        1 => (0u8..4).prop_map(|to| Step::Switch { to }),
        1 => Just(Step::Compact),
        1 => (0u16..3).prop_map(|group| Step::Promote { group }),
        5 => (0u64..100).prop_map(|percent| Step::Shrink { percent }),
        1 => (0u64..100_000).prop_map(|bytes| Step::ShrinkFor { bytes }),
        2 => Just(Step::Maintain),
        1 => (0u16..3, prop_oneof![Just(None), (0u64..40_000).prop_map(Some)])
            .prop_map(|(group, bytes)| Step::Limit { group, bytes }),
        1 => (0u16..3, any::<bool>()).prop_map(|(group, allowed)| Step::Writeback { group, allowed }),
        2 => (0u8..5).prop_map(|which| Step::Faults { which }),
    ]
}

fn rates(which: u8) -> Rates {
    match which {
        0 => Rates { write_eio: 300, ..Rates::default() },
        1 => Rates { write_enospc: 300, reserve_enospc: 300, release_fails: 300, ..Rates::default() },
        2 => Rates { write_short: 300, read_short: 300, interrupted: 200, ..Rates::default() },
        3 => Rates { read_eio: 200, read_flip: 200, ..Rates::default() },
        _ => Rates::default(),
    }
}

fn run(config: Config, steps: &[Step]) {
    let swap = Swap::new(16);
    let zswap = Zswap::new(Config { swap: Some(swap.file.clone()), ..config }, Trim::tiered("0", 1)).unwrap();
    let mut map: BTreeMap<(u16, u64), Page> = BTreeMap::new();
    let mut reads_fail = false;
    for step in steps {
        match step {
            Step::Store { group, key, kinds, seed } => {
                let pages: Vec<Page> = kinds
                    .iter()
                    .enumerate()
                    .map(|(n, &kind)| page(kind, seed.wrapping_add(n as u64)))
                    .collect();
                let pages = &pages[..pages.len().min(((1u64 << 36) - key) as usize)];
                let stored = zswap.store(Group(*group), *key, &refs(pages));
                for (at, page) in (*key..).zip(pages) {
                    match stored {
                        Ok(()) => map.insert((*group, at), *page),
                        Err(StoreError::GroupLimit | StoreError::Poor { .. }) => map.remove(&(*group, at)),
                        Err(other) => panic!("{other}"),
                    };
                }
            }
            Step::Load { group, key, count, keep } => {
                let keep = if *keep { Keep::Shared } else { Keep::Exclusive };
                let missing = (0..*count).find(|&n| !map.contains_key(&(*group, key + n as u64)));
                match (load(&zswap, Group(*group), *key, *count, keep), missing) {
                    (Ok(pages), None) => {
                        for (at, page) in (*key..).zip(&pages) {
                            assert!(map[&(*group, at)] == *page, "key {at}");
                            if keep == Keep::Exclusive {
                                map.remove(&(*group, at));
                            }
                        }
                    }
                    (Err(LoadError::Missing { index }), Some(missing)) => {
                        assert!(index == missing || key + *count as u64 > 1 << 36);
                    }
                    (Err(LoadError::Disk { .. }), _) => assert!(reads_fail),
                    (got, expected) => panic!("{:?} where {expected:?} is missing", got.map(|_| ())),
                }
            }
            Step::LoadAvailable { group, key, wanted, keep } => {
                let keep = if *keep { Keep::Shared } else { Keep::Exclusive };
                let expected = (0..64.min((1u64 << 36) - key))
                    .filter(|at| wanted >> at & 1 == 1 && map.contains_key(&(*group, key + at)))
                    .fold(0u64, |mask, at| mask | 1 << at);
                let wanted = if key + 64 > 1 << 36 { expected } else { *wanted };
                let mut pages = vec![[0xEE; 4096]; wanted.count_ones() as usize];
                let mut slots: Vec<&mut Page> = pages.iter_mut().collect();
                match zswap.load_available(Group(*group), *key, wanted, &mut slots, keep) {
                    Ok(got) => {
                        assert_eq!(got, expected);
                        for (at, page) in (0..64).filter(|at| wanted >> at & 1 == 1).zip(&pages) {
                            match got >> at & 1 {
                                1 => assert!(map[&(*group, key + at)] == *page),
                                _ => assert!(*page == [0xEE; 4096]),
                            }
                            if keep == Keep::Exclusive {
                                map.remove(&(*group, key + at));
                            }
                        }
                    }
                    Err(error) => assert!(reads_fail, "{error}"),
                }
            }
            Step::Invalidate { group, key, count } => {
                let gone = zswap.invalidate(Group(*group), *key, *count);
                let before = map.len();
                map.retain(|&(other, at), _| {
                    other != *group || at < *key || at >= key.saturating_add(*count)
                });
                assert_eq!(gone as usize, before - map.len());
            }
            Step::Switch { to } => {
                zswap.set_compressor(Trim::tiered(&to.to_string(), 1 + *to as usize * 2)).unwrap();
            }
            Step::Compact => drop(zswap.compact()),
            Step::Promote { group } => drop(zswap.promote(Group(*group), 100, 10)),
            Step::Shrink { percent } => drop(zswap.shrink(zswap.pool_bytes() * percent / 100)),
            Step::ShrinkFor { bytes } => drop(zswap.shrink_for(*bytes)),
            Step::Maintain => drop(zswap.maintain(4)),
            Step::Limit { group, bytes } => zswap.set_group_limit(Group(*group), bytes.unwrap_or(u64::MAX)),
            Step::Writeback { group, allowed } => zswap.set_group_writeback(Group(*group), *allowed),
            Step::Faults { which } => {
                reads_fail = *which == 3;
                swap.faults.set_rates(rates(*which));
            }
        }
        let counters = zswap.counters();
        assert_eq!((counters.stored_pages + counters.on_disk_pages) as usize, map.len());
        if counters.on_disk_pages == 0 {
            assert_eq!(swap.file.counters().live_bytes, 0);
        }
        for group in 0..3 {
            let mask = zswap.on_disk(Group(group), 0, 64);
            assert_eq!(mask & !zswap.present(Group(group), 0, 64), 0);
        }
    }
    swap.faults.set_rates(Rates::default());
    for (&(group, key), page) in &map {
        assert!(load(&zswap, Group(group), key, 1, Keep::Exclusive).unwrap()[0] == *page);
    }
    swap.assert_empty(&zswap);
    assert_eq!(zswap.pools().len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn random_steps_agree_with_a_map(
        steps in prop::collection::vec(step(), 1..80),
        unit_bits in 0u32..5,
        batch in 0usize..9,
        verify in any::<bool>(),
    ) {
        let config = Config {
            unit_size: 4096 << unit_bits,
            batch,
            verify,
            max_groups: 3,
            contexts: 1,
            ..Config::default()
        };
        run(config, &steps);
    }
}

const FOLIO: usize = 16;
const FOLIOS: u64 = 96;

type Folio = [Option<Box<Page>>; FOLIO];

/// Each thread works on folios of any group under the folio's lock, as the owner of pages does;
/// what shrinks, tends and compacts takes none.
fn threads(name: &str, unit_size: usize, file: Arc<swapfile::SwapFile>, faults: &swapfile::Faults) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seconds = number("UZSWAP_TEST_SOAK_SECONDS").unwrap_or(3u64);
    let seed = number("UZSWAP_TEST_SEED").unwrap_or(0u64);
    let config = Config {
        unit_size,
        swap: Some(file.clone()),
        verify: true,
        contexts: 2,
        max_groups: 2,
        ..Config::default()
    };
    let zswap = Zswap::new(config, Trim::tiered("0", 1)).unwrap();
    let folios: Vec<Mutex<Folio>> = (0..2 * FOLIOS).map(|_| Mutex::default()).collect();
    let (versions, loaded, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let end = Instant::now() + Duration::from_secs(seconds);
    let work = |thread: u64| {
        let mut random = 0x1234_5678_9ABC_DEF1 ^ (thread << 40) ^ (seed << 8);
        let mut below = |end: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) % end
        };
        while Instant::now() < end {
            let (group, folio) = (below(2), below(FOLIOS));
            let (first, from) = (folio * FOLIO as u64, below(FOLIO as u64) as usize);
            let count = 1 + below((FOLIO - from) as u64) as usize;
            let model = || folios[(group * FOLIOS + folio) as usize].lock().unwrap();
            let (owner, key) = (Group(group as u16), first + from as u64);
            match below(100) {
                0..40 => {
                    let mut model = model();
                    let version = versions.fetch_add(count as u64, Ordering::Relaxed);
                    let kind = below(4) as u8;
                    let pages: Vec<Page> = (0..count as u64).map(|n| page(1 + kind, version + n)).collect();
                    zswap.store(owner, key, &refs(&pages)).unwrap();
                    for (slot, page) in model[from..].iter_mut().zip(pages) {
                        *slot = Some(Box::new(page));
                    }
                }
                40..80 => {
                    let mut model = model();
                    let keep = if below(3) == 0 { Keep::Shared } else { Keep::Exclusive };
                    let wanted = ((1u64 << count) - 1) << from;
                    let mut pages = vec![[0xEE; 4096]; count];
                    let mut slots: Vec<&mut Page> = pages.iter_mut().collect();
                    match zswap.load_available(owner, first, wanted, &mut slots, keep) {
                        Ok(got) => {
                            for (n, page) in pages.iter().enumerate() {
                                let is_there = got >> (from + n) & 1 == 1;
                                let slot = &mut model[from + n];
                                assert_eq!(slot.is_some(), is_there);
                                assert!(!is_there || slot.as_deref() == Some(page), "another page came back");
                                if keep == Keep::Exclusive {
                                    *slot = None;
                                }
                            }
                            loaded.fetch_add(u64::from(got.count_ones()), Ordering::Relaxed);
                        }
                        Err(LoadError::Disk { .. }) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => panic!("{error}"),
                    }
                }
                80..90 => {
                    let mut model = model();
                    zswap.invalidate(owner, key, count as u64);
                    model[from..from + count].fill(None);
                }
                90..96 => drop(zswap.shrink(zswap.pool_bytes() * below(100) / 100)),
                96 => drop(zswap.maintain(4)),
                97 => drop(zswap.promote(owner, below(120) as u32, below(100))),
                98 => drop(zswap.compact()),
                _ => {
                    let rates = [
                        Rates {
                            write_enospc: 100,
                            reserve_enospc: 100,
                            release_fails: 100,
                            ..Rates::default()
                        },
                        Rates { write_short: 200, read_short: 200, interrupted: 100, ..Rates::default() },
                        Rates { read_eio: 60, read_flip: 60, ..Rates::default() },
                        // Every one costs a segment for good.
                        Rates {
                            write_eio: u16::from(file.counters().segments_retired < 24),
                            ..Rates::default()
                        },
                        Rates::default(),
                    ];
                    faults.set_rates(rates[below(5) as usize]);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|thread| drop(scope.spawn(move || work(thread)))));
    faults.set_rates(Rates::default());
    let (counters, disk) = (zswap.counters(), file.counters());
    for (at, folio) in folios.iter().enumerate() {
        let (group, first) = (at as u64 / FOLIOS, at as u64 % FOLIOS * FOLIO as u64);
        for (n, model) in folio.lock().unwrap().iter().enumerate() {
            let stored = load(&zswap, Group(group as u16), first + n as u64, 1, Keep::Exclusive);
            assert!(stored.as_ref().ok().map(|pages| &pages[0]) == model.as_deref(), "{:?}", stored.err());
        }
    }
    support::assert_empty(&zswap);
    assert_file_empty(&file);
    println!(
        "{name}, units of {unit_size}: {} pages stored, {} loaded, {} written, {} from disk, {} cleaned segments, {} failed",
        counters.zswpout,
        loaded.load(Ordering::Relaxed),
        counters.zswpwb,
        counters.disk_loads,
        disk.segments_cleaned,
        failed.load(Ordering::Relaxed),
    );
    assert!(counters.zswpwb > 100 && counters.disk_loads > 100);
}

#[test]
fn two_threads_agree_with_a_map_on_both_engines() {
    let spawn = |work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().spawn(work).map(|_| ());
    for (choice, direct, unit_size) in [
        (EngineChoice::Uring, true, 4096),
        (EngineChoice::Threads, true, 16384),
        (EngineChoice::Threads, false, 4096),
    ] {
        let config = swapfile::Config {
            directory: PathBuf::from("/var/tmp"),
            engine: choice,
            direct,
            ..swapfile::Config::default()
        };
        match swapfile::open_engine(&config, &spawn) {
            Ok(engine) => {
                let (file, faults) = Swap::on(engine, 64);
                threads(&format!("{choice:?}"), unit_size, file, &faults);
            }
            Err(error) => testkit::skip!("disk", "{error}"),
        }
    }
}
