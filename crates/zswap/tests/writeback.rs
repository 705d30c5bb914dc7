//! Limits, ages, writeback and calls during it. Among these are the behaviours that the kernel's
//! own tests of zswap in groups look at: usage is counted, loads are counted, limits hold,
//! writeback can be forbidden, and no group is shrunk for another's sake.
#![cfg(not(feature = "shuttle"))]

mod support;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

use support::{assert_empty, load, page, refs, Trim};
use zswap::{
    Config, FailingWriteback, Group, Keep, LoadError, MemoryWriteback, Page, StoreError, Writeback,
    WritebackError, Zswap,
};

const A: Group = Group(0);
const B: Group = Group(1);
const C: Group = Group(2);

fn pages(count: usize, seed: u64) -> Vec<Page> {
    (0..count as u64).map(|n| page(2, seed * 1000 + n)).collect()
}

fn with_writeback(config: Config) -> (Zswap, Arc<MemoryWriteback>) {
    let writeback = Arc::new(MemoryWriteback::new());
    let config = Config { writeback: Some(writeback.clone()), ..config };
    (Zswap::new(config, Trim::new("trim", 1)).unwrap(), writeback)
}

#[test]
fn usage_and_loads_are_counted_by_group() {
    let (zswap, _) = with_writeback(Config::default());
    let some = pages(32, 1);
    zswap.store(A, 0, &refs(&some)).unwrap();
    zswap.store(B, 0, &refs(&some[..16])).unwrap();
    let (a, b) = (zswap.group_usage(A), zswap.group_usage(B));
    assert_eq!((a.zswapped, b.zswapped), (32 * 4096, 16 * 4096));
    assert!(a.zswap > b.zswap && b.zswap > 0);
    assert_eq!(a.zswap + b.zswap, zswap.compressed_bytes());
    assert!(zswap.pool_bytes() >= zswap.compressed_bytes());
    assert_eq!((a.zswpout, a.zswpin, b.zswpout, b.zswpin), (32, 0, 16, 0));
    load(&zswap, A, 3, 4, Keep::Shared).unwrap();
    load(&zswap, A, 0, 32, Keep::Exclusive).unwrap();
    let (a, b) = (zswap.group_usage(A), zswap.group_usage(B));
    assert_eq!((a.zswap, a.zswapped, a.zswpin, b.zswpin), (0, 0, 36, 0));
    let counters = zswap.counters();
    assert_eq!((counters.zswpout, counters.zswpin, counters.zswpwb), (48, 36, 0));
    assert_eq!(counters.stored_pages, 16);
}

#[test]
fn a_full_pool_refuses_until_it_is_down_to_the_threshold() {
    const MAX: u64 = 1 << 20;
    let (zswap, writeback) = with_writeback(Config { max_pool_bytes: MAX, ..Config::default() });
    let mut key = 0;
    let refused = loop {
        match zswap.store(A, key, &refs(&pages(16, key))) {
            Ok(()) => key += 16,
            Err(error) => break error,
        }
        assert!(key < 1 << 16, "the limit holds");
    };
    assert_eq!(refused, StoreError::PoolLimit);
    assert!(zswap.pool_bytes() >= MAX && zswap.pool_bytes() < MAX + 64 * 1024);
    assert_eq!(zswap.counters().pool_limit_hit, 1);
    assert!(zswap.wants_shrink());
    // Just below the maximum is not enough.
    let mut gone = 0;
    while zswap.pool_bytes() >= MAX {
        gone += zswap.invalidate(A, gone, 16);
        zswap.compact();
    }
    assert!(zswap.pool_bytes() > MAX * 9 / 10);
    assert_eq!(zswap.store(A, key, &refs(&pages(16, key))), Err(StoreError::PoolLimit));
    assert_eq!(zswap.counters().pool_limit_hit, 1);
    // The refused folio is not there, and what is, is whole.
    assert_eq!(zswap.present(A, key, 16), 0);
    let report = zswap.shrink_to_accept();
    assert!(report.reached && report.failures == 0, "{report:?}");
    assert!(zswap.pool_bytes() <= MAX * 9 / 10);
    assert_eq!(zswap.counters().zswpwb, report.pages_written);
    assert_eq!(zswap.counters().written_back_pages, writeback.len() as u64);
    zswap.store(A, key, &refs(&pages(16, key))).unwrap();
    assert!(!zswap.wants_shrink());
    for at in (gone..=key).step_by(16) {
        for (n, page) in pages(16, at).iter().enumerate() {
            let at = at + n as u64;
            match writeback.take(A, at) {
                Some(written) => {
                    assert!(*written == *page);
                    assert_eq!(zswap.present(A, at, 1), 0, "a page has one home");
                }
                None => assert!(load(&zswap, A, at, 1, Keep::Exclusive).unwrap()[0] == *page),
            }
        }
    }
    assert_empty(&zswap);
}

#[test]
fn a_threshold_of_100_percent_is_no_hysteresis() {
    const MAX: u64 = 1 << 19;
    let config = Config { max_pool_bytes: MAX, accept_threshold_percent: 100, ..Config::default() };
    let (zswap, _) = with_writeback(config);
    let mut key = 0;
    while zswap.store(A, key, &refs(&pages(16, key))).is_ok() {
        key += 16;
    }
    let mut gone = 0;
    while zswap.pool_bytes() >= MAX {
        gone += zswap.invalidate(A, gone, 16);
        zswap.compact();
    }
    zswap.store(A, key, &refs(&pages(16, key))).unwrap();
}

#[test]
fn the_oldest_go_first_and_the_referenced_get_a_second_chance() {
    let (zswap, writeback) = with_writeback(Config::default());
    for folio in 0..8 {
        zswap.store(A, folio * 16, &refs(&pages(16, folio))).unwrap();
    }
    // Every leaf is referenced by its store; one round takes that from all of them and writes the
    // oldest.
    let write_one = || {
        let before = writeback.len();
        zswap.shrink(zswap.pool_bytes() - 1);
        assert!(writeback.len() > before);
    };
    write_one();
    assert_eq!(zswap.present(A, 0, 16), 0);
    // Read since: passed over once.
    load(&zswap, A, 20, 1, Keep::Shared).unwrap();
    while zswap.present(A, 32, 16) != 0 {
        assert_eq!(zswap.present(A, 16, 16), 0xFFFF, "the leaf that was read outlives the next older one");
        write_one();
    }
    // Stored again: the youngest.
    zswap.store(A, 16, &refs(&pages(16, 77))).unwrap();
    let report = zswap.shrink(0);
    assert!(report.reached);
    assert_eq!(writeback.len(), 8 * 16);
    assert!(*writeback.take(A, 17).unwrap() == pages(16, 77)[1]);
    assert_empty(&zswap);
}

#[test]
fn groups_take_turns() {
    let (zswap, _) = with_writeback(Config::default());
    for group in [A, B, C] {
        for folio in 0..12 {
            zswap.store(group, folio * 16, &refs(&pages(16, folio))).unwrap();
        }
    }
    let full = zswap.pool_bytes();
    assert!(zswap.shrink(full * 2 / 3).reached);
    let written: Vec<u64> = [A, B, C].map(|group| zswap.group_usage(group).zswpwb).to_vec();
    let (least, most) = (written.iter().min().unwrap(), written.iter().max().unwrap());
    assert!(*least > 0 && most - least <= 16, "{written:?}");
}

#[test]
fn a_group_s_limit_holds_and_shrinks_nobody_else() {
    let (zswap, writeback) = with_writeback(Config::default());
    zswap.store(B, 0, &refs(&pages(64, 9))).unwrap();
    let limit = 100_000;
    zswap.set_group_limit(A, limit);
    let mut stored = 0;
    for folio in 0..40 {
        match zswap.store(A, folio * 16, &refs(&pages(16, folio))) {
            Ok(()) => stored += 1,
            Err(error) => assert_eq!(error, StoreError::GroupLimit),
        }
        assert!(zswap.group_usage(A).zswap <= limit + 16 * 4096);
    }
    // Each store at the limit wrote one old leaf of its own group.
    assert_eq!(stored, 40);
    assert!(zswap.group_usage(A).zswpwb > 0);
    assert_eq!(zswap.group_usage(B).zswpwb, 0);
    assert_eq!(zswap.present(B, 0, 64), u64::MAX);
    assert_eq!(writeback.len() as u64, zswap.group_usage(A).zswpwb);
    // Without writeback the limit refuses, and what was stored stays.
    zswap.set_group_writeback(A, false);
    zswap.set_group_limit(A, zswap.group_usage(A).zswap);
    let before = zswap.group_usage(A);
    assert_eq!(zswap.store(A, 5000, &refs(&pages(1, 1))), Err(StoreError::GroupLimit));
    assert_eq!(zswap.group_usage(A), before);
    // A limit of nothing is no store at all, for this group.
    zswap.set_group_limit(A, 0);
    assert_eq!(zswap.store(A, 5000, &refs(&pages(1, 1))), Err(StoreError::GroupLimit));
    zswap.store(B, 5000, &refs(&pages(1, 1))).unwrap();
}

#[test]
fn a_group_without_writeback_is_passed_over() {
    let (zswap, _) = with_writeback(Config::default());
    zswap.store(A, 0, &refs(&pages(64, 1))).unwrap();
    zswap.store(B, 0, &refs(&pages(64, 2))).unwrap();
    zswap.set_group_writeback(A, false);
    let report = zswap.shrink(0);
    assert!(!report.reached && report.failures == 0);
    assert_eq!(zswap.group_usage(A).zswapped, 64 * 4096);
    assert_eq!(zswap.group_usage(B).zswapped, 0);
    assert_eq!(zswap.group_usage(B).zswpwb, 64);
}

#[test]
fn a_shrink_gives_up_after_sixteen_failures() {
    let config = Config { writeback: Some(Arc::new(FailingWriteback::after(3))), ..Config::default() };
    let zswap = Zswap::new(config, Trim::new("trim", 1)).unwrap();
    let all = pages(640, 1);
    zswap.store(A, 0, &refs(&all)).unwrap();
    let report = zswap.shrink(0);
    assert_eq!((report.pages_written, report.failures, report.reached), (48, 16, false));
    assert_eq!(zswap.counters().reject_reclaim_fail, 16);
    assert_eq!(zswap.counters().zswpwb, 48);
    assert_eq!(zswap.stored_pages(), 640 - 48);
    assert!(load(&zswap, A, 48, 592, Keep::Exclusive).unwrap() == all[48..]);
    assert_empty(&zswap);
}

#[test]
fn a_page_that_does_not_decompress_stays_and_its_neighbours_go() {
    let writeback = Arc::new(MemoryWriteback::new());
    let trim = Trim::new("trim", 1);
    let config = Config { writeback: Some(writeback.clone()), ..Config::default() };
    let zswap = Zswap::new(config, trim.clone()).unwrap();
    let all = pages(16, 1);
    zswap.store(A, 0, &refs(&all)).unwrap();
    trim.damage_after.store(5, Ordering::Relaxed);
    zswap.shrink(0);
    assert_eq!(zswap.counters().decompress_fail, 1);
    // Only one object was damaged, and only for one reading.
    assert_eq!(writeback.len(), 16);
    assert!(*writeback.take(A, 5).unwrap() == all[5]);
}

type Interruption = Box<dyn Fn(&Zswap) + Send + Sync>;

/// Writeback during whose write something else happens, once.
#[derive(Default)]
struct Interrupted {
    inner: MemoryWriteback,
    zswap: OnceLock<std::sync::Weak<Zswap>>,
    interruption: Mutex<Option<Interruption>>,
    leave_out: u16,
    finished: Mutex<Vec<(u64, u16, u16)>>,
}

impl Writeback for Interrupted {
    fn claim(&self, _: Group, _: u64, mask: u16) -> u16 {
        mask & !self.leave_out
    }

    fn write(&self, group: Group, key: u64, mask: u16, pages: &[&Page]) -> Result<(), WritebackError> {
        let interruption = self.interruption.lock().unwrap().take();
        if let Some(interruption) = interruption {
            interruption(&self.zswap.get().unwrap().upgrade().unwrap());
        }
        self.inner.write(group, key, mask, pages)
    }

    fn finish(&self, group: Group, key: u64, claimed: u16, written: u16) {
        self.finished.lock().unwrap().push((key, claimed, written));
        self.inner.finish(group, key, claimed, written);
    }
}

fn interrupted(
    leave_out: u16,
    unit_size: usize,
    interruption: Interruption,
) -> (Arc<Zswap>, Arc<Interrupted>, Vec<Page>) {
    let writeback = Arc::new(Interrupted {
        interruption: Mutex::new(Some(interruption)),
        leave_out,
        ..Interrupted::default()
    });
    let config = Config { writeback: Some(writeback.clone()), unit_size, ..Config::default() };
    let zswap = Arc::new(Zswap::new(config, Trim::new("trim", 1)).unwrap());
    writeback.zswap.set(Arc::downgrade(&zswap)).ok().unwrap();
    let all = pages(16, 1);
    zswap.store(A, 0, &refs(&all)).unwrap();
    (zswap, writeback, all)
}

#[test]
fn a_store_during_its_page_s_writeback_wins() {
    for unit_size in [4096, 16384] {
        let newer = page(2, 4711);
        let (zswap, writeback, all) =
            interrupted(0, unit_size, Box::new(move |zswap| zswap.store(A, 3, &[&newer]).unwrap()));
        zswap.shrink(zswap.pool_bytes() - 1);
        assert_eq!(*writeback.finished.lock().unwrap(), [(0, 0xFFFF, 0xFFF7)]);
        assert!(load(&zswap, A, 3, 1, Keep::Exclusive).unwrap() == [newer]);
        assert!(writeback.inner.take(A, 3).is_none());
        assert!(*writeback.inner.take(A, 4).unwrap() == all[4]);
        assert_empty(&zswap);
    }
}

#[test]
fn a_page_taken_during_its_writeback_is_not_written() {
    for unit_size in [4096, 16384] {
        let (zswap, writeback, all) = interrupted(
            0,
            unit_size,
            Box::new(|zswap| {
                load(zswap, A, 5, 2, Keep::Exclusive).unwrap();
                load(zswap, A, 7, 1, Keep::Shared).unwrap();
                zswap.invalidate(A, 15, 1);
            }),
        );
        zswap.shrink(zswap.pool_bytes() - 1);
        assert_eq!(*writeback.finished.lock().unwrap(), [(0, 0xFFFF, 0x7F9F)]);
        assert_eq!(zswap.stored_pages(), 0);
        assert_eq!(zswap.counters().zswpwb, 13);
        assert!(writeback.inner.take(A, 5).is_none() && writeback.inner.take(A, 15).is_none());
        assert!(*writeback.inner.take(A, 7).unwrap() == all[7]);
        assert_empty(&zswap);
    }
}

#[test]
fn a_leaf_that_goes_and_comes_during_writeback_is_another_leaf() {
    let all = pages(16, 2);
    let again = all.clone();
    let (zswap, writeback, _) = interrupted(
        0,
        4096,
        Box::new(move |zswap| {
            zswap.invalidate(A, 0, 16);
            zswap.store(A, 0, &refs(&again)).unwrap();
        }),
    );
    let report = zswap.shrink(zswap.pool_bytes() - 1);
    assert_eq!(writeback.finished.lock().unwrap()[0], (0, 0xFFFF, 0));
    assert!(report.failures >= 1);
    for (n, page) in all.iter().enumerate() {
        let page_now = match writeback.inner.take(A, n as u64) {
            Some(written) => *written,
            None => load(&zswap, A, n as u64, 1, Keep::Exclusive).unwrap()[0],
        };
        assert!(page_now == *page);
    }
}

#[test]
fn pages_in_their_owner_s_hands_are_left_out() {
    let (zswap, writeback, all) = interrupted(0x00F0, 4096, Box::new(|_| {}));
    zswap.shrink(zswap.pool_bytes() - 1);
    assert_eq!(writeback.finished.lock().unwrap()[0], (0, 0xFF0F, 0xFF0F));
    assert_eq!(zswap.present(A, 0, 16), 0x00F0);
    assert!(load(&zswap, A, 4, 4, Keep::Exclusive).unwrap() == all[4..8]);
    assert_eq!(load(&zswap, A, 0, 1, Keep::Shared), Err(LoadError::Missing { index: 0 }));
    assert_empty(&zswap);
}

#[test]
fn without_writeback_nothing_is_shrunk() {
    let zswap =
        Zswap::new(Config { max_pool_bytes: 1 << 18, ..Config::default() }, Trim::new("trim", 1)).unwrap();
    let mut key = 0;
    while zswap.store(A, key, &refs(&pages(16, key))).is_ok() {
        key += 16;
    }
    assert!(!zswap.wants_shrink());
    let report = zswap.shrink(0);
    assert_eq!((report.pages_written, report.reached), (0, false));
    assert_eq!(zswap.stored_pages(), key);
}
