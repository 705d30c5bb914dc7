//! Writeback to a swap file: the pages written, their return, events during a write, and a failing
//! disk.
#![cfg(not(feature = "shuttle"))]

mod support;

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use support::{assert_file_empty, load, page, pages, pages_of, refs, Swap, Trim};
use swapfile::{Fault, ReadFault, Room};
use zswap::{Config, Error, Group, Keep, LoadError, Page, StoreError, Zswap};

const A: Group = Group(0);
const B: Group = Group(1);

struct World {
    zswap: Zswap,
    swap: Swap,
    trim: Arc<Trim>,
}

fn world_with(config: Config) -> World {
    let (swap, trim) = (Swap::new(64), Trim::new("trim", 1));
    let config = Config { swap: Some(swap.file.clone()), ..config };
    World { zswap: Zswap::new(config, trim.clone()).unwrap(), swap, trim }
}

fn world() -> World {
    world_with(Config::default())
}

impl Deref for World {
    type Target = Zswap;

    fn deref(&self) -> &Zswap {
        &self.zswap
    }
}

impl World {
    /// Stores the pages of one folio each, under its number.
    fn store_folios(&self, group: Group, folios: std::ops::Range<u64>) {
        for folio in folios {
            self.store(group, folio * 16, &refs(&pages(16, folio))).unwrap();
        }
    }

    /// Stores pages of one seed and writes all of them.
    fn written(&self, count: usize, seed: u64) -> Vec<Page> {
        let all = pages(count, seed);
        self.store(A, 0, &refs(&all)).unwrap();
        assert!(self.shrink(0).reached);
        all
    }
}

#[test]
fn objects_go_as_they_are_in_large_writes_and_come_back() {
    let world = world();
    let all = pages(1024, 1);
    world.store(A, 0, &refs(&all)).unwrap();
    let (bytes, units) = (world.compressed_bytes(), world.trim.units.load(Ordering::Relaxed));
    // Any decompression on the way would be an error.
    world.trim.damage_after.store(0, Ordering::Relaxed);
    let report = world.shrink(0);
    assert!(report.reached && report.pages_written == 1024 && report.failures == 0, "{report:?}");
    world.trim.damage_after.store(-1, Ordering::Relaxed);
    assert_eq!(world.trim.units.load(Ordering::Relaxed), units, "nothing was compressed");
    let (counters, file) = (world.counters(), world.swap.file.counters());
    assert_eq!((counters.zswpwb, counters.on_disk_pages, counters.stored_pages), (1024, 1024, 0));
    assert_eq!((world.compressed_bytes(), world.pool_bytes(), file.object_bytes), (0, 0, bytes));
    assert!(file.writes <= 1024 / 32, "{} writes", file.writes);
    assert!(file.bytes_written < bytes * 115 / 100, "{} bytes for {bytes}", file.bytes_written);
    assert_eq!((world.present(A, 0, 64), world.on_disk(A, 0, 64)), (u64::MAX, u64::MAX));
    assert_eq!(world.group_usage(A).on_disk, 1024 * 4096);
    assert!(load(&world.zswap, A, 0, 1024, Keep::Shared).unwrap() == all);
    assert_eq!(world.counters().disk_loads, 1024);
    assert!(load(&world.zswap, A, 0, 1024, Keep::Exclusive).unwrap() == all);
    world.swap.assert_empty(&world.zswap);
}

/// Writing ahead of demand takes the requested bytes or slightly more, and packs nothing.
#[test]
fn writing_out_takes_the_requested_pages_and_packs_nothing() {
    let world = world();
    let all = pages(1024, 1);
    world.store(A, 0, &refs(&all)).unwrap();
    let (live, held) = (world.compressed_bytes(), world.pool_bytes());
    let report = world.write_out(live / 4);
    assert!(report.reached && report.pages_written == world.counters().on_disk_pages, "{report:?}");
    let gone = live - world.compressed_bytes();
    assert!(gone >= live / 4 && gone < live / 3, "{gone} of {live}");
    assert!(world.pool_bytes() <= held);
    let rest = world.write_out(u64::MAX);
    assert!(!rest.reached && rest.pages_written == 1024 - report.pages_written, "{rest:?}");
    // A full disk is reported, and so is a failing one.
    world.store(A, 0, &refs(&all)).unwrap();
    world.swap.faults.set_room(Some(Room { available: 0, total: 1 << 41 }));
    world.swap.faults.next_write(Fault::Errno(28));
    let full = world.write_out(live);
    assert!(full.no_space && !full.reached, "{full:?}");
    world.swap.faults.set_room(None);
    assert!(load(&world.zswap, A, 0, 1024, Keep::Exclusive).unwrap() == all);
    world.swap.assert_empty(&world.zswap);
    let without = Zswap::new(Config::default(), Trim::new("trim", 1)).unwrap();
    assert_eq!(without.write_out(1), zswap::ShrinkReport::default());
}

#[test]
fn a_block_comes_back_with_one_read_and_full_requests() {
    let world = world();
    let all = world.written(64, 1);
    let before = world.swap.file.counters();
    let requests = |n: usize| world.trim.decompressions[n].load(Ordering::Relaxed);
    assert!(load(&world.zswap, A, 16, 16, Keep::Exclusive).unwrap() == all[16..32]);
    let after = world.swap.file.counters();
    assert_eq!((after.reads - before.reads, after.loads - before.loads), (1, 1));
    assert_eq!((after.objects_read - before.objects_read, requests(8)), (16, 2));
    // One page alone is one object, in as few blocks as its length needs.
    load(&world.zswap, A, 40, 1, Keep::Exclusive).unwrap();
    assert_eq!(world.swap.file.counters().bytes_read - after.bytes_read, 4096);
    // In the pool and on disk, mixed, in one request.
    let newer = pages(4, 9);
    world.store(A, 50, &refs(&newer)).unwrap();
    assert_eq!(world.on_disk(A, 48, 16), 0xFFFF & !0b11_1100);
    let mut expected = all[48..64].to_vec();
    expected[2..6].copy_from_slice(&newer);
    assert!(load(&world.zswap, A, 48, 16, Keep::Exclusive).unwrap() == expected);
}

#[test]
fn incompressible_pages_leave_uncompressed_in_whole_runs() {
    let world = world();
    let all = pages_of(1, 256, 1);
    world.store(A, 0, &refs(&all)).unwrap();
    assert_eq!(world.counters().stored_incompressible_pages, 256);
    assert!(world.shrink(0).reached);
    let file = world.swap.file.counters();
    assert!(file.bytes_written < 256 * 4096 * 103 / 100 && file.writes <= 6, "{file:?}");
    assert_eq!(world.counters().stored_incompressible_pages, 0);
    assert!(load(&world.zswap, A, 0, 64, Keep::Exclusive).unwrap() == all[..64]);
    assert!(world.swap.file.counters().reads <= 4);
    assert!(load(&world.zswap, A, 64, 192, Keep::Exclusive).unwrap() == all[64..]);
    world.swap.assert_empty(&world.zswap);
}

#[test]
fn same_filled_pages_stay_since_they_take_nothing() {
    let world = world();
    let mut all = pages(16, 1);
    all[3] = [7; 4096];
    world.store(A, 0, &refs(&all)).unwrap();
    world.shrink(0);
    assert_eq!(world.on_disk(A, 0, 16), 0xFFFF & !(1 << 3));
    assert!(load(&world.zswap, A, 0, 16, Keep::Exclusive).unwrap() == all);
    world.swap.assert_empty(&world.zswap);
}

#[test]
fn the_oldest_leave_first_and_returned_pages_have_another_chance() {
    let world = world();
    world.store_folios(A, 0..16);
    let write_some = || world.shrink(world.pool_bytes() - 1);
    assert_eq!(write_some().pages_written, 32, "no fewer than a batch");
    assert_eq!((world.on_disk(A, 0, 48), world.present(A, 0, 48)), (0xFFFF_FFFF, 0xFFFF_FFFF_FFFF));
    // The oldest block returns and is stored again; then a new one is stored, which never returned.
    load(&world.zswap, A, 0, 16, Keep::Exclusive).unwrap();
    world.store(A, 0, &refs(&pages(16, 0))).unwrap();
    world.store(A, 1000 * 16, &refs(&pages(16, 50))).unwrap();
    while world.on_disk(A, 1000 * 16, 16) == 0 {
        assert_eq!(world.on_disk(A, 0, 16), 0, "it came back, so it outlives what did not");
        write_some();
    }
    world.shrink(0);
    assert_eq!(world.on_disk(A, 0, 16), 0xFFFF);
}

#[test]
fn newer_pages_and_invalidations_free_space_on_disk() {
    let world = world();
    world.written(256, 1);
    let live = world.swap.file.counters().live_bytes;
    let newer = pages(100, 7);
    world.store(A, 20, &refs(&newer)).unwrap();
    let less = world.swap.file.counters().live_bytes;
    assert!(less < live);
    assert!(load(&world.zswap, A, 20, 100, Keep::Shared).unwrap() == newer);
    assert_eq!(world.invalidate(A, 10, 5), 5);
    assert!(world.swap.file.counters().live_bytes < less);
    assert_eq!(load(&world.zswap, A, 10, 1, Keep::Shared), Err(LoadError::Missing { index: 0 }));
    assert_eq!(world.invalidate(A, 0, u64::MAX), 251);
    world.swap.assert_empty(&world.zswap);
}

/// Stores folios until the pool is full; returns the first key without one.
fn fill(zswap: &Zswap) -> u64 {
    let mut key = 0;
    loop {
        match zswap.store(A, key, &refs(&pages(16, key))) {
            Ok(()) => key += 16,
            Err(error) => {
                assert_eq!(error, StoreError::PoolLimit);
                return key;
            }
        }
    }
}

#[test]
fn a_full_pool_writes_down_to_its_threshold_and_accepts_again() {
    const MAX: u64 = 1 << 20;
    let world = world_with(Config { max_pool_bytes: MAX, ..Config::default() });
    let key = fill(&world);
    assert!(world.wants_shrink());
    assert!(world.pool_bytes() >= MAX && world.pool_bytes() < MAX + 64 * 1024);
    assert_eq!(world.counters().pool_limit_hit, 1);
    // Just below the maximum is not enough.
    let mut gone = 0;
    while world.pool_bytes() >= MAX {
        gone += world.invalidate(A, gone, 16);
        world.compact();
    }
    assert!(world.pool_bytes() > MAX * 9 / 10);
    assert_eq!(world.store(A, key, &refs(&pages(16, key))), Err(StoreError::PoolLimit));
    assert_eq!((world.counters().pool_limit_hit, world.present(A, key, 16)), (1, 0));
    let report = world.shrink_to_accept();
    assert!(report.reached && world.pool_bytes() <= MAX * 9 / 10);
    assert!(world.pool_bytes() > MAX / 2, "and no more than needed");
    assert_eq!(world.counters().written_back_pages, report.pages_written);
    world.store(A, key, &refs(&pages(16, key))).unwrap();
    assert!(!world.wants_shrink());
    for at in (gone..=key).step_by(16) {
        assert!(load(&world.zswap, A, at, 16, Keep::Exclusive).unwrap() == pages(16, at));
    }
    world.swap.assert_empty(&world.zswap);
}

#[test]
fn a_group_at_its_limit_writes_its_own_down_to_the_threshold() {
    let world = world();
    world.store(B, 0, &refs(&pages(64, 9))).unwrap();
    let limit = 200_000;
    world.set_group_limit(A, limit);
    for folio in 0..40 {
        world.store(A, folio * 16, &refs(&pages(16, folio))).unwrap();
        assert!(world.group_usage(A).zswap <= limit + 16 * 4096);
    }
    assert!(world.group_usage(A).zswpwb > 0);
    assert_eq!((world.group_usage(B).zswpwb, world.on_disk(B, 0, 64)), (0, 0));
    // Without writeback a group at its limit is refused until it is down to the threshold.
    world.set_group_writeback(A, false);
    let mut folio = 100;
    while world.store(A, folio * 16, &refs(&pages(16, folio))).is_ok() {
        folio += 1;
    }
    let usage = || world.group_usage(A).zswap;
    assert!(usage() >= limit);
    let mut gone = 0;
    while usage() > limit * 9 / 10 {
        assert!(gone <= folio);
        assert_eq!(world.store(A, 5000, &refs(&pages(1, 1))), Err(StoreError::GroupLimit));
        world.invalidate(A, gone * 16, 4);
        gone += 1;
    }
    world.store(A, 5000, &refs(&pages(1, 1))).unwrap();
    // Nor is it written when the pool shrinks.
    let before = world.group_usage(A).zswpwb;
    assert!(!world.shrink(0).reached);
    assert_eq!(world.group_usage(A).zswpwb, before);
    assert_eq!(world.group_usage(B).on_disk, 64 * 4096);
    // A limit of zero refuses all stores of this group.
    world.invalidate(A, 0, u64::MAX);
    world.set_group_limit(A, 0);
    assert_eq!(world.store(A, 5000, &refs(&pages(1, 1))), Err(StoreError::GroupLimit));
    world.store(B, 5000, &refs(&pages(1, 1))).unwrap();
}

#[test]
fn a_threshold_of_100_percent_is_no_hysteresis() {
    const MAX: u64 = 1 << 19;
    let config = Config { max_pool_bytes: MAX, accept_threshold_percent: 100, ..Config::default() };
    let zswap = world_with(config);
    let key = fill(&zswap);
    let mut gone = 0;
    while zswap.pool_bytes() >= MAX {
        gone += zswap.invalidate(A, gone, 16);
        zswap.compact();
    }
    zswap.store(A, key, &refs(&pages(16, key))).unwrap();
}

#[test]
fn usage_and_loads_are_counted_by_group() {
    let zswap = world();
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
fn without_a_swap_file_nothing_is_shrunk() {
    let config = Config { max_pool_bytes: 1 << 18, ..Config::default() };
    let zswap = Zswap::new(config, Trim::new("trim", 1)).unwrap();
    let key = fill(&zswap);
    assert!(!zswap.wants_shrink());
    let report = zswap.shrink(0);
    assert_eq!((report.pages_written, report.reached), (0, false));
    assert_eq!(zswap.stored_pages(), key);
}

#[test]
fn groups_take_turns() {
    let world = world();
    [A, B].iter().for_each(|group| world.store_folios(*group, 0..32));
    let full = world.pool_bytes();
    assert!(world.shrink(full / 2).reached);
    let written = [A, B].map(|group| world.group_usage(group).zswpwb);
    assert!(written[0].abs_diff(written[1]) <= 16, "{written:?}");
}

#[test]
fn units_of_several_pages_are_one_object_there_too() {
    let world = world_with(Config { unit_size: 16384, ..Config::default() });
    let all = pages(64, 1);
    world.store(A, 0, &refs(&all)).unwrap();
    // One page of a unit leaves before, one on disk; newer pages lie in the range of others.
    load(&world.zswap, A, 5, 1, Keep::Exclusive).unwrap();
    world.store(A, 12, &refs(&all[12..13])).unwrap();
    assert!(world.shrink(0).reached);
    assert_eq!(world.on_disk(A, 0, 64), !(1 << 5));
    let objects = world.swap.file.counters();
    assert!(load(&world.zswap, A, 4, 1, Keep::Exclusive).unwrap()[0] == all[4]);
    assert!(load(&world.zswap, A, 6, 2, Keep::Exclusive).unwrap() == all[6..8]);
    assert!(world.swap.file.counters().live_bytes < objects.live_bytes, "the unit's last page took it along");
    assert!(load(&world.zswap, A, 8, 56, Keep::Shared).unwrap() == all[8..]);
    assert!(load(&world.zswap, A, 0, 4, Keep::Exclusive).unwrap() == all[..4]);
    assert!(load(&world.zswap, A, 8, 56, Keep::Exclusive).unwrap() == all[8..]);
    world.swap.assert_empty(&world.zswap);
}

#[test]
fn a_pool_lives_as_long_as_its_objects_on_disk() {
    let world = world();
    let all = world.written(64, 1);
    world.set_compressor(Trim::new("other", 1)).unwrap();
    assert_eq!(world.pools(), ["trim", "other"]);
    assert!(load(&world.zswap, A, 0, 64, Keep::Exclusive).unwrap() == all);
    assert_eq!(world.pools(), ["other"]);
}

#[test]
fn objects_on_disk_count_as_alive_for_their_algorithm() {
    let swap = Swap::new(8);
    let trim = Trim::tiered("trim", 1);
    let config = Config { swap: Some(swap.file.clone()), ..Config::default() };
    let zswap = Zswap::new(config, trim.clone()).unwrap();
    let all = pages(48, 1);
    zswap.store(A, 0, &refs(&all)).unwrap();
    zswap.promote(A, 100, 2);
    assert!(zswap.shrink(0).reached);
    assert_eq!(trim.alive.load(Ordering::Relaxed), 48, "going to disk is not being dropped");
    load(&zswap, A, 0, 40, Keep::Exclusive).unwrap();
    assert_eq!(trim.alive.load(Ordering::Relaxed), 8, "what was read back is");
}

#[test]
fn stored_pages_are_loaded_and_the_rest_left_alone() {
    let world = world();
    let all = world.written(32, 1);
    world.invalidate(A, 7, 1);
    let mut room = vec![[0xEE; 4096]; 16];
    let wanted = 0b1111_1111 << 4 | 0xFF << 40;
    let got = world
        .zswap
        .load_available(A, 0, wanted, &mut room.iter_mut().collect::<Vec<_>>(), Keep::Exclusive)
        .unwrap();
    assert_eq!(got, 0b1111_0111 << 4);
    assert!(room[..3] == all[4..7] && room[3] == [0xEE; 4096] && room[4..8] == all[8..12]);
    assert!(room[8..].iter().all(|page| *page == [0xEE; 4096]));
    assert_eq!(world.present(A, 0, 32) & got, 0);
}

#[test]
fn a_disk_without_room_leaves_pages_where_they_are_until_it_has_some() {
    let world = world();
    world.swap.faults.set_room(Some(Room { available: 0, total: 1 << 40 }));
    let all = pages(256, 1);
    world.store(A, 0, &refs(&all)).unwrap();
    let report = world.shrink(0);
    assert!(report.no_space && !report.reached && report.pages_written == 0, "{report:?}");
    assert!(load(&world.zswap, A, 0, 256, Keep::Shared).unwrap() == all);
    assert_eq!(world.swap.file.counters().bytes_written, 0);
    world.swap.faults.set_room(None);
    assert!(world.shrink(0).reached);
    // During a write.
    let more = pages(256, 2);
    world.store(A, 1000, &refs(&more)).unwrap();
    world.swap.faults.next_write(Fault::Errno(28));
    let report = world.shrink(0);
    assert_eq!((report.failures, world.swap.file.counters().no_space), (1, 2));
    assert!(world.shrink(0).reached);
    assert!(load(&world.zswap, A, 0, 256, Keep::Exclusive).unwrap() == all);
    assert!(load(&world.zswap, A, 1000, 256, Keep::Exclusive).unwrap() == more);
    world.swap.assert_empty(&world.zswap);
}

#[test]
fn a_file_that_is_too_small_is_full_and_nothing_is_lost() {
    let swap = Swap::new(2);
    let config = Config { swap: Some(swap.file.clone()), ..Config::default() };
    let zswap = Zswap::new(config, Trim::new("trim", 1)).unwrap();
    let all = pages_of(1, 1024, 1);
    zswap.store(A, 0, &refs(&all)).unwrap();
    let report = zswap.shrink(0);
    assert!(report.no_space && !report.reached && report.pages_written > 400, "{report:?}");
    assert_eq!(zswap.counters().stored_pages, 1024 - report.pages_written);
    assert!(load(&zswap, A, 0, 1024, Keep::Exclusive).unwrap() == all);
    swap.assert_empty(&zswap);
}

#[test]
fn a_write_that_fails_goes_elsewhere_or_leaves_pages_where_they_are() {
    let world = world();
    let all = pages(256, 1);
    world.store(A, 0, &refs(&all)).unwrap();
    world.swap.faults.next_write(Fault::Errno(5));
    let report = world.shrink(0);
    assert!(report.reached && report.failures == 0);
    assert_eq!(world.swap.file.counters().segments_retired, 1);
    let more = pages(256, 2);
    world.store(A, 1000, &refs(&more)).unwrap();
    (0..3000).for_each(|_| world.swap.faults.next_write(Fault::Errno(5)));
    let report = world.shrink(0);
    assert!(!report.reached && report.pages_written == 0 && report.failures > 0, "{report:?}");
    assert!(load(&world.zswap, A, 1000, 256, Keep::Exclusive).unwrap() == more);
    assert!(load(&world.zswap, A, 0, 256, Keep::Exclusive).unwrap() == all);
    assert_eq!(world.counters().stored_pages, 0);
    assert_file_empty(&world.swap.file);
}

#[test]
fn a_read_that_fails_says_where_and_takes_nothing() {
    let world = world();
    let all = world.written(64, 1);
    for (fault, expected) in [(Fault::Errno(5), ReadFault::Io(5)), (Fault::Lost, ReadFault::Damaged)] {
        for keep in [Keep::Exclusive, Keep::Shared] {
            world.swap.faults.next_read(fault);
            match load(&world.zswap, A, 16, 16, keep) {
                Err(error @ LoadError::Disk { index, offset, fault }) => {
                    assert!(index < 16 && offset < 64 << 20 && fault == expected);
                    assert!(
                        error.to_string().contains(&format!("byte {offset} of the swap file")),
                        "{error}"
                    );
                }
                other => panic!("{:?}", other.map(|_| ())),
            }
        }
    }
    assert_eq!(world.counters().disk_load_fail, 4);
    assert!(load(&world.zswap, A, 0, 64, Keep::Exclusive).unwrap() == all);
    world.swap.assert_empty(&world.zswap);
}

#[test]
fn a_bit_that_changed_on_disk_is_never_a_page() {
    let world = world();
    let all = world.written(64, 1);
    // Anywhere in the written bytes; only the damaged object is lost.
    let written = world.swap.disk.bytes();
    for at in (100..written).step_by(9973) {
        assert!(world.swap.disk.flip(at, 4));
        for key in 0..64 {
            match load(&world.zswap, A, key, 1, Keep::Shared) {
                Ok(page) => assert!(page[0] == all[key as usize]),
                Err(error) => assert!(matches!(error, LoadError::Disk { fault: ReadFault::Damaged, .. })),
            }
        }
        world.swap.disk.flip(at, 4);
    }
    assert!(load(&world.zswap, A, 0, 64, Keep::Exclusive).unwrap() == all);
}

/// Holds the shrinker's write while `happens` runs.
fn during_write(config: Config, happens: impl FnOnce(&Zswap)) -> (World, Vec<Page>) {
    let world = world_with(config);
    let all = pages(48, 1);
    world.store(A, 0, &refs(&all)).unwrap();
    world.swap.faults.hold(true);
    std::thread::scope(|scope| {
        let shrinking = scope.spawn(|| world.shrink(0));
        world.swap.faults.wait_for_held(1);
        happens(&world.zswap);
        world.swap.faults.hold(false);
        shrinking.join().unwrap();
    });
    (world, all)
}

#[test]
fn pages_being_written_can_be_had_changed_and_forgotten() {
    for unit_size in [4096, 16384] {
        let newer = page(2, 4711);
        let (world, all) = during_write(Config { unit_size, ..Config::default() }, |zswap| {
            assert_eq!(zswap.on_disk(A, 0, 48), 0, "not before it is written");
            load(zswap, A, 5, 2, Keep::Exclusive).unwrap();
            load(zswap, A, 7, 1, Keep::Shared).unwrap();
            zswap.store(A, 20, &[&newer]).unwrap();
            zswap.invalidate(A, 32, 16);
        });
        assert_eq!(world.present(A, 0, 48), 0xFFFF_FFFF & !(0b11 << 5));
        let live = world.swap.file.counters();
        assert!(live.live_bytes > 0);
        assert!(load(&world.zswap, A, 0, 5, Keep::Exclusive).unwrap() == all[..5]);
        assert!(load(&world.zswap, A, 7, 13, Keep::Exclusive).unwrap() == all[7..20]);
        assert!(load(&world.zswap, A, 20, 1, Keep::Exclusive).unwrap()[0] == newer);
        assert!(load(&world.zswap, A, 21, 11, Keep::Exclusive).unwrap() == all[21..32]);
        world.swap.assert_empty(&world.zswap);
    }
}

#[test]
fn a_leaf_that_goes_and_comes_while_it_is_written_is_another() {
    let again = pages(48, 2);
    let (world, _) = during_write(Config::default(), |zswap| {
        zswap.invalidate(A, 0, 48);
        zswap.store(A, 0, &refs(&again)).unwrap();
    });
    assert!(load(&world.zswap, A, 0, 48, Keep::Exclusive).unwrap() == again);
    world.swap.assert_empty(&world.zswap);
}

#[test]
fn a_slow_disk_does_not_keep_the_pool_from_answering() {
    let (world, all) = during_write(Config::default(), |zswap| {
        let fresh = pages(16, 5);
        zswap.store(B, 0, &refs(&fresh)).unwrap();
        assert!(load(zswap, B, 0, 16, Keep::Exclusive).unwrap() == fresh);
        assert!(load(zswap, A, 0, 48, Keep::Shared).unwrap().len() == 48);
    });
    assert!(load(&world.zswap, A, 0, 48, Keep::Exclusive).unwrap() == all);
}

/// The writer, holding the next block, waited for a reader of a block it had written, and the
/// reader waited for the next block.
#[test]
fn long_loads_and_writes_do_not_wait_for_each_other() {
    let world = Arc::new(world());
    // So that the third pack waits for the first write. Each has three blocks of sixteen pages.
    world.swap.file.limit_packs(1);
    let all = pages_of(1, 192, 1);
    world.store(A, 0, &refs(&all)).unwrap();
    world.swap.faults.hold(true);
    let (tell, told) = std::sync::mpsc::channel();
    let run = |act: fn(&World) -> Vec<Page>| {
        let (world, tell) = (world.clone(), tell.clone());
        std::thread::spawn(move || tell.send(act(&world)).unwrap());
    };
    run(|world| {
        world.shrink(0);
        Vec::new()
    });
    world.swap.faults.wait_for_held(1);
    run(|world| load(&world.zswap, A, 0, 192, Keep::Exclusive).unwrap());
    std::thread::sleep(Duration::from_millis(200));
    world.swap.faults.hold(false);
    for _ in 0..2 {
        let loaded = told.recv_timeout(Duration::from_secs(30)).expect("both come to an end");
        assert!(loaded.is_empty() || loaded == all);
    }
    world.swap.assert_empty(&world.zswap);
}

#[test]
fn cleaning_keeps_every_page_and_gives_room_back() {
    let world = world();
    let all: Vec<Page> = pages_of(1, 4096, 1);
    for (n, folio) in all.chunks(16).enumerate() {
        world.store(A, n as u64 * 16, &refs(folio)).unwrap();
    }
    assert!(world.shrink(0).reached);
    let used = world.swap.file.counters().used_bytes;
    (0..4096).filter(|key| key % 16 < 11).for_each(|key| assert_eq!(world.invalidate(A, key, 1), 1));
    assert_eq!(world.swap.file.counters().used_bytes, used, "something lives in every segment");
    let mut report = world.maintain(4);
    assert!(report.segments_cleaned == 4 && report.objects_moved > 0, "{report:?}");
    while report.segments_cleaned > 0 {
        report = world.maintain(4);
    }
    let counters = world.swap.file.counters();
    assert!(counters.used_bytes < used / 2, "{} of {used}", counters.used_bytes);
    assert!(counters.kept_bytes <= 24 << 20 && counters.bytes_cleaned > 0 && counters.clean_ns > 0);
    for key in (0..4096).filter(|key| key % 16 >= 11) {
        assert!(load(&world.zswap, A, key, 1, Keep::Exclusive).unwrap()[0] == all[key as usize]);
    }
    world.swap.assert_empty(&world.zswap);
}

#[test]
fn a_disk_whose_loads_cost_much_is_written_to_less() {
    let share = |latency: Duration, back: u64| {
        let world = world_with(Config { fault_ns: 1_000_000, ..Config::default() });
        world.written(640, 1);
        world.swap.faults.throttle(latency, 0);
        for folio in 0..back {
            load(&world.zswap, A, folio * 16, 16, Keep::Exclusive).unwrap();
        }
        world.swap.faults.throttle(Duration::ZERO, 0);
        // Most pages in the pool are wanted again, too.
        for folio in 100..140 {
            world.store(A, folio * 16, &refs(&pages(16, folio))).unwrap();
            load(&world.zswap, A, folio * 16, 16, Keep::Exclusive).unwrap();
        }
        world.store(A, 5000, &refs(&pages(640, 3))).unwrap();
        let costs = world.costs();
        (costs, costs.share())
    };
    let (_, untouched) = share(Duration::ZERO, 0);
    assert_eq!(untouched, 1024, "what never comes back costs nothing");
    let (slow, some) = share(Duration::from_millis(20), 8);
    assert!(slow.disk_load_ns > 1_000_000 && slow.disk_return > 0, "{slow:?}");
    let (_, much) = share(Duration::from_millis(20), 40);
    assert!(much < some && some < 1024, "{much} {some}");
}

#[test]
fn the_tables_take_eight_bytes_a_page_and_a_hundredth_of_the_written_bytes() {
    let world = world();
    world.store_folios(A, 0..1024);
    assert!(world.shrink(0).reached);
    let (tables, sums) = (world.table_bytes(), 4 * 16 * 1024 * u64::from(cfg!(debug_assertions)));
    let file = world.swap.file.counters();
    let allowed = 8 * 16 * 1024 + file.bytes_written / 100;
    assert!(tables - sums <= allowed, "{tables} bytes, {sums} of checksums; {allowed} allowed");
    println!("{} bytes a page", (tables - sums) as f64 / (16.0 * 1024.0));
}

#[test]
fn a_store_gone_leaves_its_file_empty_and_a_file_has_one_writer() {
    let world = world();
    world.written(64, 1);
    let again = Config { swap: Some(world.swap.file.clone()), ..Config::default() };
    assert!(matches!(Zswap::new(again.clone(), Trim::new("trim", 1)), Err(Error::Swap(_))));
    drop(world.zswap);
    assert_file_empty(&world.swap.file);
    assert_eq!(world.swap.file.counters().used_bytes, 0);
    Zswap::new(again, Trim::new("trim", 1)).unwrap();
}

/// Each store replaces all but the first page of the unit before, so that the leaf's sixteen units
/// have 136 pages, more than a write.
#[test]
fn a_block_of_units_that_were_mostly_replaced_is_written() {
    let world = world_with(Config { unit_size: 65536, ..Config::default() });
    let mut expected = Vec::new();
    for first in 0..16 {
        let mut all = pages_of(1, 16 - first, 1 + first as u64);
        all.iter_mut().for_each(|page| page[3800..].fill(0));
        world.store(A, first as u64, &refs(&all)).unwrap();
        expected.push(all[0]);
    }
    assert!(world.shrink(0).reached);
    assert_eq!(load(&world.zswap, A, 0, 16, Keep::Exclusive), Ok(expected));
    assert_file_empty(&world.swap.file);
}
