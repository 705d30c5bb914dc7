//! Promotion: which objects become denser, and which stay.
#![cfg(not(feature = "shuttle"))]

mod support;

use std::sync::atomic::Ordering;

use support::{assert_empty, load, page, pages, refs, with_swap, Trim, PADDING};
use zswap::{Config, Group, Keep, PromoteReport, Zswap};

const A: Group = Group(0);
const B: Group = Group(1);

fn store_of(trim: &std::sync::Arc<Trim>) -> Zswap {
    Zswap::new(Config { verify: true, ..Config::default() }, trim.clone()).unwrap()
}

fn report(leaves: u64, pages: u64) -> PromoteReport {
    PromoteReport { leaves, pages, bytes: pages * PADDING as u64 }
}

#[test]
fn the_current_compressor_is_asked_for_its_tiers() {
    let trim = Trim::tiered("tiers", 8);
    let zswap = store_of(&trim);
    zswap.store(A, 0, &refs(&pages(16, 1))).unwrap();
    assert_eq!(zswap.tier_sample().map(|sample| sample.pages), Some(16));
    for dense in [true, false] {
        zswap.set_dense(dense);
        assert_eq!(trim.dense.load(Ordering::Relaxed), dense);
    }
    zswap.set_compressor(Trim::new("plain", 1)).unwrap();
    assert_eq!(zswap.tier_sample(), None);
    zswap.set_dense(true);
    assert!(!trim.dense.load(Ordering::Relaxed), "it is another one's business");
}

#[test]
fn the_oldest_become_denser_once_and_keep_their_contents() {
    let trim = Trim::tiered("tiers", 8);
    let zswap = store_of(&trim);
    assert!(zswap.has_tiers());
    assert_eq!(zswap.promote(A, 100, 100), report(0, 0), "no such group");
    let all = pages(64, 1);
    for key in (0..64).step_by(16) {
        zswap.store(A, key, &refs(&all[key as usize..key as usize + 16])).unwrap();
    }
    zswap.store(B, 0, &refs(&all[..16])).unwrap();
    let (before, b) = (zswap.group_usage(A).zswap, zswap.group_usage(B));
    assert_eq!(zswap.promote(A, 24, 100), report(0, 0), "a quarter is more");
    assert_eq!(zswap.promote(A, 50, 100), report(2, 32));
    assert_eq!(zswap.promote(A, 50, 100), report(0, 0));
    assert_eq!(zswap.promote(A, 100, 1), report(1, 16));
    assert_eq!(zswap.group_usage(A).zswap, before - 48 * PADDING as u64);
    assert_eq!(zswap.group_usage(B), b, "another group");
    assert_eq!(zswap.objects(), 80);
    assert_eq!(trim.alive.load(Ordering::Relaxed), 80, "the old objects were given back");
    assert!(load(&zswap, A, 0, 64, Keep::Shared).unwrap() == all);
    // An overwritten page is young again.
    let newer = pages(1, 2);
    zswap.store(A, 5, &refs(&newer)).unwrap();
    assert_eq!(zswap.promote(A, 100, 100), report(2, 17), "the youngest leaf and the new page");
    let found = load(&zswap, A, 0, 64, Keep::Exclusive).unwrap();
    assert!(found[5] == newer[0] && found[..5] == all[..5] && found[6..] == all[6..]);
    zswap.invalidate(B, 0, 16);
    assert_empty(&zswap);
    assert_eq!(trim.alive.load(Ordering::Relaxed), 0);
}

#[test]
fn a_page_that_comes_to_the_youngest_leaf_has_its_turn() {
    let trim = Trim::tiered("tiers", 8);
    let zswap = store_of(&trim);
    let all = pages(2, 1);
    zswap.store(A, 0, &refs(&all[..1])).unwrap();
    assert_eq!(zswap.promote(A, 100, 100), report(1, 1));
    zswap.store(A, 1, &refs(&all[1..])).unwrap();
    assert_eq!(zswap.promote(A, 100, 100), report(1, 1));
    assert!(load(&zswap, A, 0, 2, Keep::Exclusive).unwrap() == all);
}

#[test]
fn pages_without_a_denser_object_stay() {
    let trim = Trim::tiered("tiers", 8);
    let zswap = Zswap::new(with_swap(Config { verify: true, ..Config::default() }), trim.clone()).unwrap();
    // Same-filled, raw, and one that was promoted.
    let some = [page(0, 1), page(1, 2), page(2, 3)];
    zswap.store(A, 0, &refs(&some)).unwrap();
    assert_eq!(zswap.promote(A, 100, 100), report(1, 1));
    assert!(load(&zswap, A, 0, 1, Keep::Exclusive).unwrap()[0] == some[0]);
    zswap.store(A, 0, &refs(&some[..1])).unwrap();
    assert_eq!(zswap.promote(A, 100, 100), report(1, 0), "it is dense already");
    // Another compressor's pool, which has one tier.
    zswap.set_compressor(Trim::new("plain", 1)).unwrap();
    assert!(!zswap.has_tiers());
    let others = pages(16, 4);
    zswap.store(A, 16, &refs(&others)).unwrap();
    assert_eq!(zswap.promote(A, 100, 100), report(1, 0));
    assert!(load(&zswap, A, 0, 3, Keep::Exclusive).unwrap() == some);
    assert!(load(&zswap, A, 16, 16, Keep::Exclusive).unwrap() == others);
    assert_empty(&zswap);
}

#[test]
fn units_of_several_pages_stay() {
    let trim = Trim::tiered("tiers", 2);
    let zswap = Zswap::new(Config { unit_size: 16384, ..Config::default() }, trim.clone()).unwrap();
    let all = pages(16, 1);
    zswap.store(A, 0, &refs(&all[..13])).unwrap();
    assert_eq!(zswap.promote(A, 100, 100), report(1, 1), "the last page is a unit of its own");
    assert!(load(&zswap, A, 0, 13, Keep::Exclusive).unwrap() == all[..13]);
    assert_empty(&zswap);
    assert_eq!(trim.alive.load(Ordering::Relaxed), 0);
}

#[test]
fn without_memory_everything_stays() {
    let trim = Trim::tiered("tiers", 4);
    let zswap = store_of(&trim);
    let all = pages(32, 1);
    zswap.store(A, 0, &refs(&all)).unwrap();
    let before = zswap.compressed_bytes();
    // The third batch of four fails, and every later one.
    zswap.fail_objects_after(Some(9));
    let report = zswap.promote(A, 100, 100);
    zswap.fail_objects_after(None);
    assert_eq!(report.leaves, 2);
    assert!((8..32).contains(&report.pages), "{report:?}");
    assert_eq!(zswap.compressed_bytes(), before - report.bytes);
    assert_eq!(trim.alive.load(Ordering::Relaxed), 32);
    assert_eq!(zswap.objects(), 32);
    assert!(load(&zswap, A, 0, 32, Keep::Exclusive).unwrap() == all);
    assert_empty(&zswap);
}
