//! Random operations against an ordered map, without a swap file and with one on a faulty disk.
#![cfg(not(feature = "shuttle"))]

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use support::{assert_empty, load, page, refs, Swap, Trim};
use swapfile::Rates;
use zswap::{Config, Group, Keep, LoadError, Page, StoreError, Zswap};

/// Keys cluster around these, with room between.
const PLACES: [u64; 4] = [0, 40, 1 << 20, (1 << 36) - 64];

#[derive(Debug, Clone)]
enum Step {
    Store { group: u16, key: u64, kinds: Vec<u8>, seed: u64 },
    Scatter { group: u16, key: u64, pages: Vec<(u64, u8)>, folio_bits: u32, seed: u64 },
    Load { group: u16, key: u64, count: usize, keep: bool },
    LoadPresent { group: u16, key: u64, keep: bool },
    LoadAvailable { group: u16, key: u64, wanted: u64, keep: bool },
    Invalidate { group: u16, key: u64, count: u64 },
    Switch { to: u8 },
    Compact,
    Promote { group: u16 },
    Shrink { percent: u64 },
    Maintain,
    Limit { group: u16, bytes: Option<u64> },
    Writeback { group: u16, allowed: bool },
    FailUnit { after: i64 },
    Faults { which: u8 },
}

fn key() -> impl Strategy<Value = u64> {
    (0..PLACES.len(), 0u64..40).prop_map(|(place, at)| PLACES[place] + at)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u16..3, key(), prop::collection::vec(0u8..6, 1..24), any::<u64>())
            .prop_map(|(group, key, kinds, seed)| Step::Store { group, key, kinds, seed }),
        6 => (0u16..3, key(), prop::collection::vec((1u64..5, 0u8..6), 1..40), 0u32..5, any::<u64>())
            .prop_map(|(group, key, pages, folio_bits, seed)| Step::Scatter { group, key, pages, folio_bits, seed }),
        5 => (0u16..3, key(), 1usize..24, any::<bool>())
            .prop_map(|(group, key, count, keep)| Step::Load { group, key, count, keep }),
        4 => (0u16..3, key(), any::<bool>())
            .prop_map(|(group, key, keep)| Step::LoadPresent { group, key, keep }),
        4 => (0u16..3, key(), any::<u64>(), any::<bool>())
            .prop_map(|(group, key, wanted, keep)| Step::LoadAvailable { group, key, wanted, keep }),
        2 => (0u16..3, key(), prop_oneof![1u64..30, Just(1 << 36)])
            .prop_map(|(group, key, count)| Step::Invalidate { group, key, count }),
        1 => (0u8..4).prop_map(|to| Step::Switch { to }),
        1 => Just(Step::Compact),
        1 => (0u16..3).prop_map(|group| Step::Promote { group }),
        5 => (0u64..100).prop_map(|percent| Step::Shrink { percent }),
        2 => Just(Step::Maintain),
        1 => (0u16..3, prop_oneof![Just(None), (0u64..40_000).prop_map(Some)])
            .prop_map(|(group, bytes)| Step::Limit { group, bytes }),
        1 => (0u16..3, any::<bool>()).prop_map(|(group, allowed)| Step::Writeback { group, allowed }),
        1 => (0i64..10).prop_map(|after| Step::FailUnit { after }),
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

fn run(config: Config, swap: Option<Swap>, steps: &[Step]) {
    let is_unit_a_page = config.unit_size == 4096;
    let is_armed = steps.iter().any(|step| matches!(step, Step::FailUnit { .. }));
    let mut raw_allowed = [swap.is_some(); 3];
    let mut reads_fail = false;
    let mut trim = Trim::tiered("0", 1);
    let file = swap.as_ref().map(|swap| swap.file.clone());
    let zswap = Zswap::new(Config { swap: file, ..config }, trim.clone()).unwrap();
    let mut map: BTreeMap<(u16, u64), Page> = BTreeMap::new();
    let mut out = 0u64;
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
                        Err(_) => map.remove(&(*group, at)),
                    };
                }
                match stored {
                    Ok(()) => out += pages.len() as u64,
                    Err(StoreError::Poor { index } | StoreError::Failed { index }) => {
                        assert!(!raw_allowed[*group as usize] && index < pages.len());
                    }
                    Err(StoreError::GroupLimit) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            Step::Scatter { group, key, pages, folio_bits, seed } => {
                let mut at = *key;
                let pages: Vec<(u64, u8, Page)> = pages
                    .iter()
                    .map(|&(gap, kind)| {
                        // Every other page is the next one's neighbour.
                        at += gap.saturating_sub(2).max(1);
                        (at, kind, page(kind, seed.wrapping_add(at)))
                    })
                    .filter(|(at, ..)| *at < 1 << 36)
                    .collect();
                let keyed: Vec<(u64, &Page)> = pages.iter().map(|(at, _, page)| (*at, page)).collect();
                let folio_pages = 1u64 << folio_bits;
                let stored = zswap.store_scattered(Group(*group), &keyed, folio_pages);
                let refused = match stored {
                    Ok(refused) => refused,
                    Err(StoreError::GroupLimit) => zswap::Refused { pages: u64::MAX, poor: 0, failed: 0 },
                    Err(other) => panic!("{other}"),
                };
                let is_in = |mask: u64, n: usize| mask >> n & 1 != 0;
                for (n, &(at, kind, page)) in pages.iter().enumerate() {
                    match is_in(refused.pages, n) {
                        false => map.insert((*group, at), page),
                        true => map.remove(&(*group, at)),
                    };
                    if stored.is_err() {
                        continue;
                    }
                    assert!(!is_in(refused.poor, n) || is_in(refused.pages, n), "what is poor is refused");
                    let same = |other: &(u64, u8, Page)| other.0 / folio_pages == at / folio_pages;
                    let of_folio: Vec<usize> = (0..pages.len()).filter(|n| same(&pages[*n])).collect();
                    let all =
                        of_folio.iter().all(|other| is_in(refused.pages, *other) == is_in(refused.pages, n));
                    assert!(all, "a folio is stored or not");
                    if raw_allowed[*group as usize] {
                        assert_eq!(refused.pages, 0);
                    } else if is_unit_a_page && !is_armed {
                        let has_poor = of_folio.iter().any(|other| pages[*other].1 == 1);
                        assert_eq!(
                            is_in(refused.pages, n),
                            has_poor,
                            "what is refused is what does not compress"
                        );
                        assert_eq!(is_in(refused.poor, n), kind == 1);
                    }
                }
                if stored.is_ok() {
                    out += (0..pages.len()).filter(|n| !is_in(refused.pages, *n)).count() as u64;
                }
            }
            Step::Load { group, key, count, keep } => {
                let keep = if *keep { Keep::Shared } else { Keep::Exclusive };
                let missing = (0..*count).find(|&n| !map.contains_key(&(*group, key + n as u64)));
                match (load(&zswap, Group(*group), *key, *count, keep), missing) {
                    (Ok(pages), None) => {
                        for (at, page) in (*key..).zip(&pages) {
                            assert!(map[&(*group, at)] == *page);
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
            Step::LoadPresent { group, key, keep } => {
                let keep = if *keep { Keep::Shared } else { Keep::Exclusive };
                let count = 64.min((1u64 << 36) - key) as usize;
                let mask = zswap.present(Group(*group), *key, count);
                let expected = (0..count as u64)
                    .filter(|at| map.contains_key(&(*group, key + at)))
                    .fold(0u64, |mask, at| mask | 1 << at);
                assert_eq!(mask, expected);
                let mut pages = vec![[0xEE; 4096]; mask.count_ones() as usize];
                let mut slots: Vec<&mut Page> = pages.iter_mut().collect();
                if let Err(error) = zswap.load_masked(Group(*group), *key, mask, &mut slots, keep) {
                    assert!(reads_fail, "{error}");
                    continue;
                }
                let keys = (0..64).filter(|at| mask >> at & 1 == 1).map(|at| (*group, key + at));
                for (at, page) in keys.zip(&pages) {
                    assert!(map[&at] == *page);
                    if keep == Keep::Exclusive {
                        map.remove(&at);
                    }
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
                let next = Trim::tiered(&to.to_string(), 1 + *to as usize * 2);
                match zswap.set_compressor(next.clone()) {
                    Ok(()) => trim = next,
                    Err(error) => panic!("{error}"),
                }
                assert_eq!(zswap.compressor(), to.to_string());
            }
            Step::Compact => drop(zswap.compact()),
            Step::Promote { group } => drop(zswap.promote(Group(*group), 100, 10)),
            Step::Shrink { percent } => drop(zswap.shrink(zswap.pool_bytes() * percent / 100)),
            Step::Maintain => drop(zswap.maintain(4)),
            Step::Limit { group, bytes } => zswap.set_group_limit(Group(*group), bytes.unwrap_or(u64::MAX)),
            Step::Writeback { group, allowed } => {
                zswap.set_group_writeback(Group(*group), *allowed);
                raw_allowed[*group as usize] = *allowed && swap.is_some();
            }
            Step::FailUnit { after } => trim.fail_after.store(*after, std::sync::atomic::Ordering::Relaxed),
            Step::Faults { which } => {
                reads_fail = *which == 3;
                swap.iter().for_each(|swap| swap.faults.set_rates(rates(*which)));
            }
        }
        let counters = zswap.counters();
        assert_eq!((counters.stored_pages + counters.on_disk_pages) as usize, map.len());
        assert_eq!(counters.zswpout, out);
        if let Some(swap) = swap.as_ref().filter(|_| counters.on_disk_pages == 0) {
            assert_eq!(swap.file.counters().live_bytes, 0);
        }
        for group in (0..3).map(Group) {
            assert_eq!(zswap.on_disk(group, 0, 64) & !zswap.present(group, 0, 64), 0);
        }
    }
    swap.iter().for_each(|swap| swap.faults.set_rates(Rates::default()));
    for (&(group, key), page) in &map {
        assert!(load(&zswap, Group(group), key, 1, Keep::Exclusive).unwrap()[0] == *page);
    }
    match &swap {
        Some(swap) => swap.assert_empty(&zswap),
        None => assert_empty(&zswap),
    }
    assert!(zswap.pools().len() == 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn random_steps_agree_with_a_map(
        steps in prop::collection::vec(step(), 1..80),
        unit_bits in 0u32..5,
        batch in 0usize..9,
        has_swap in any::<bool>(),
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
        run(config, has_swap.then(|| Swap::new(16)), &steps);
    }
}
