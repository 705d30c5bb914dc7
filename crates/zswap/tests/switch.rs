//! Changing the compressor.
#![cfg(not(feature = "shuttle"))]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use support::{assert_empty, load, page, refs, Trim};
use zswap::{Config, Error, Group, Keep, LoadTally, Page, Requests, Tally, Zswap, POOLS_MAX};

const A: Group = Group(0);

fn pages(seed: u64) -> Vec<Page> {
    (0..16).map(|n| page(2, seed * 100 + n)).collect()
}

#[test]
fn an_old_pool_serves_its_pages_and_goes_with_the_last() {
    let (first, second) = (Trim::new("first", 1), Trim::new("second", 4));
    let zswap = Zswap::new(Config::default(), first.clone()).unwrap();
    zswap.store(A, 0, &refs(&pages(0))).unwrap();
    zswap.set_compressor(second.clone()).unwrap();
    assert_eq!(zswap.compressor(), "second");
    assert_eq!(zswap.pools().len(), 2);
    zswap.store(A, 16, &refs(&pages(1))).unwrap();
    assert_eq!(second.units.load(Ordering::Relaxed), 16);
    // One load over both pools.
    let both = [pages(0), pages(1)].concat();
    assert!(load(&zswap, A, 0, 32, Keep::Shared).unwrap() == both);
    assert!(load(&zswap, A, 0, 15, Keep::Exclusive).unwrap() == both[..15]);
    assert_eq!(zswap.pools().len(), 2);
    assert_eq!(Arc::strong_count(&first), 2);
    // Replacing the last page of the old pool ends it.
    zswap.store(A, 15, &refs(&pages(3)[..1])).unwrap();
    assert_eq!(zswap.pools(), ["second"]);
    assert_eq!(Arc::strong_count(&first), 1);
    zswap.invalidate(A, 0, 100);
    assert_eq!(zswap.pools(), ["second"], "the current pool stays when empty");
    assert_empty(&zswap);
}

#[test]
fn an_unused_pool_goes_at_once() {
    let zswap = Zswap::new(Config::default(), Trim::new("first", 1)).unwrap();
    for round in 0..100 {
        zswap.set_compressor(Trim::new(&format!("number {round}"), 1)).unwrap();
        assert_eq!(zswap.pools(), [format!("number {round}")]);
    }
}

#[test]
fn switching_back_revives_the_draining_pool() {
    let first = Trim::new("first", 1);
    let zswap = Zswap::new(Config::default(), first.clone()).unwrap();
    zswap.store(A, 0, &refs(&pages(0))).unwrap();
    zswap.set_compressor(Trim::new("second", 1)).unwrap();
    zswap.store(A, 16, &refs(&pages(1))).unwrap();
    // The same name: the living pool is used, not the given algorithm.
    let other = Trim::new("first", 1);
    zswap.set_compressor(other.clone()).unwrap();
    assert_eq!((zswap.compressor(), zswap.pools().len()), ("first".to_owned(), 2));
    zswap.store(A, 32, &refs(&pages(2))).unwrap();
    assert_eq!((first.units.load(Ordering::Relaxed), other.units.load(Ordering::Relaxed)), (32, 0));
    zswap.invalidate(A, 16, 16);
    assert_eq!(zswap.pools(), ["first"]);
    zswap.set_compressor(Trim::new("first", 1)).unwrap();
    assert_eq!(zswap.pools(), ["first"]);
    assert!(load(&zswap, A, 0, 16, Keep::Exclusive).unwrap() == pages(0));
}

#[test]
fn there_is_an_end_to_draining_pools() {
    let zswap = Zswap::new(Config::default(), Trim::new("0", 1)).unwrap();
    for pool in 0..POOLS_MAX {
        zswap.store(A, pool as u64 * 16, &refs(&pages(pool as u64))).unwrap();
        let switched = zswap.set_compressor(Trim::new(&(pool + 1).to_string(), 1));
        if pool + 1 < POOLS_MAX {
            switched.unwrap();
        } else {
            assert!(matches!(switched, Err(Error::TooManyPools)));
            assert_eq!(zswap.compressor(), pool.to_string());
        }
    }
    for pool in 0..POOLS_MAX as u64 {
        assert!(load(&zswap, A, pool * 16, 16, Keep::Exclusive).unwrap() == pages(pool));
    }
    zswap.set_compressor(Trim::new("last", 1)).unwrap();
    assert_eq!(zswap.pools(), ["last"]);
}

#[test]
fn batches_are_as_large_as_the_compressor_wants_or_as_set_and_are_counted() {
    static COUNTED: [[AtomicU64; 3]; 2] = [const { [const { AtomicU64::new(0) }; 3] }; 2];
    fn count(way: usize, requests: &Requests) {
        COUNTED[way][0].fetch_add(requests.count.into(), Ordering::Relaxed);
        COUNTED[way][1].fetch_add(requests.units.into(), Ordering::Relaxed);
        COUNTED[way][2].fetch_add(requests.emulated.into(), Ordering::Relaxed);
    }
    let tally: Tally = |forms| count(0, &forms.compress);
    let load_tally: LoadTally = |requests| count(1, requests);
    for (own, set, expected) in [(1, 0, 8), (4, 0, 4), (8, 0, 8), (8, 1, 1), (1, 3, 3)] {
        let trim = Trim::new("trim", own);
        let tallies = Config { tally: Some(tally), load_tally: Some(load_tally), ..Config::default() };
        let zswap = Zswap::new(Config { batch: set, ..tallies }, trim.clone()).unwrap();
        zswap.store(A, 3, &refs(&[pages(0), pages(1)].concat()[..24])).unwrap();
        let requests = 24 / expected as u64;
        assert_eq!(trim.requests[expected].load(Ordering::Relaxed), requests);
        trim.is_emulated.store(true, Ordering::Relaxed);
        load(&zswap, A, 3, 24, Keep::Shared).unwrap();
        let counted = COUNTED.each_ref().map(|way| way.each_ref().map(|n| n.swap(0, Ordering::Relaxed)));
        assert_eq!(counted, [[requests, 24, 0], [requests, 24, requests]]);
    }
}
