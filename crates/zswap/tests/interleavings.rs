//! Stores, loads, writeback, compaction and compressor switches of the same pages, in thousands of random
//! interleavings: `cargo test -p zswap --features shuttle --test interleavings`.

mod support;

use std::sync::Arc;

use shuttle::thread;
use support::{page, refs, Trim};
use zswap::{Config, Group, Keep, LoadError, MemoryWriteback, Page, Zswap};

const A: Group = Group(0);
const PAGES: usize = 4;
const ROUNDS: usize = 1500;

fn pages(version: u64) -> Vec<Page> {
    (0..PAGES as u64).map(|n| page(2, version * 100 + n)).collect()
}

fn world(unit_size: usize, contexts: usize) -> (Arc<Zswap>, Arc<MemoryWriteback>) {
    let writeback = Arc::new(MemoryWriteback::new());
    let config = Config {
        unit_size,
        contexts,
        batch: 2,
        max_groups: 1,
        verify: true,
        writeback: Some(writeback.clone()),
        ..Config::default()
    };
    (Arc::new(Zswap::new(config, Trim::new("first", 1)).unwrap()), writeback)
}

/// Takes whatever of the pages is stored at the moment.
fn take_present(zswap: &Zswap, keep: Keep) -> Vec<(usize, Page)> {
    let mask = zswap.present(A, 0, PAGES);
    let mut loaded = vec![[0xEE; 4096]; mask.count_ones() as usize];
    match zswap.load_masked(A, 0, mask, &mut loaded.iter_mut().collect::<Vec<_>>(), keep) {
        Ok(()) => (0..PAGES).filter(|at| mask >> at & 1 == 1).zip(loaded).collect(),
        Err(LoadError::Missing { .. }) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// What is where at the end: the newer version of each page is in one place, and nothing is left over.
fn check(
    zswap: &Zswap,
    writeback: &MemoryWriteback,
    taken: &[(usize, Page)],
    newer: &[Page],
    older: &[Page],
) {
    for at in 0..PAGES {
        let mut places = Vec::new();
        places.extend(taken.iter().filter(|(other, _)| *other == at).map(|(_, page)| *page));
        if zswap.present(A, at as u64, 1) == 1 {
            let stored = support::load(zswap, A, at as u64, 1, Keep::Exclusive).unwrap();
            assert!(stored[0] == newer[at], "an older page came back");
            places.push(stored[0]);
        }
        places.extend(writeback.take(A, at as u64).map(|page| *page));
        assert_eq!(places.iter().filter(|page| **page == newer[at]).count(), 1, "page {at}");
        assert!(places.iter().all(|page| *page == newer[at] || *page == older[at]));
    }
    assert_eq!(zswap.stored_pages(), 0);
    assert_eq!(zswap.compressed_bytes(), 0);
    assert_eq!(zswap.objects(), 0);
    assert_eq!(zswap.table_bytes(), 0);
    assert_eq!(zswap.pools().len(), 1);
}

/// Stores newer pages, loads and whatever `others` do, all at once.
fn store_load_and(
    unit_size: usize,
    contexts: usize,
    compressor: fn(&str, usize) -> Arc<Trim>,
    others: &'static [fn(&Zswap)],
) {
    shuttle::check_random(
        move || {
            let (zswap, writeback) = world(unit_size, contexts);
            zswap.set_compressor(compressor("own", 1)).unwrap();
            let (older, newer) = (pages(1), pages(2));
            zswap.store(A, 0, &refs(&older)).unwrap();
            let storing = {
                let (zswap, newer) = (zswap.clone(), newer.clone());
                thread::spawn(move || zswap.store(A, 0, &refs(&newer)).unwrap())
            };
            let loading = {
                let zswap = zswap.clone();
                thread::spawn(move || take_present(&zswap, Keep::Exclusive))
            };
            let others: Vec<_> = others
                .iter()
                .map(|other| {
                    let zswap = zswap.clone();
                    thread::spawn(move || other(&zswap))
                })
                .collect();
            storing.join().unwrap();
            let taken = loading.join().unwrap();
            others.into_iter().for_each(|other| other.join().unwrap());
            check(&zswap, &writeback, &taken, &newer, &older);
        },
        ROUNDS,
    );
}

fn write_back(zswap: &Zswap) {
    zswap.shrink(0);
}

fn promote(zswap: &Zswap) {
    zswap.promote(A, 100, 1);
    zswap.compact();
    zswap.promote(A, 100, 1);
}

#[test]
fn a_page_is_stored_loaded_and_written_back_at_once() {
    store_load_and(4096, 1, Trim::new, &[write_back]);
    store_load_and(4096, 3, Trim::new, &[write_back]);
}

#[test]
fn a_unit_is_stored_loaded_and_written_back_at_once() {
    store_load_and(16384, 2, Trim::new, &[write_back]);
}

#[test]
fn the_compressor_changes_and_objects_move_meanwhile() {
    shuttle::check_random(
        || {
            let (zswap, writeback) = world(8192, 2);
            let (older, newer) = (pages(1), pages(2));
            zswap.store(A, 0, &refs(&older)).unwrap();
            let switching = {
                let zswap = zswap.clone();
                thread::spawn(move || {
                    zswap.set_compressor(Trim::new("second", 1)).unwrap();
                    zswap.compact();
                    zswap.set_compressor(Trim::new("first", 1)).unwrap();
                })
            };
            let storing = {
                let (zswap, newer) = (zswap.clone(), newer.clone());
                thread::spawn(move || zswap.store(A, 0, &refs(&newer)).unwrap())
            };
            let loading = {
                let zswap = zswap.clone();
                thread::spawn(move || {
                    let seen = take_present(&zswap, Keep::Shared);
                    (seen, take_present(&zswap, Keep::Exclusive))
                })
            };
            switching.join().unwrap();
            storing.join().unwrap();
            let (seen, taken) = loading.join().unwrap();
            assert!(seen.iter().all(|(at, page)| *page == older[*at] || *page == newer[*at]));
            check(&zswap, &writeback, &taken, &newer, &older);
        },
        ROUNDS,
    );
}

#[test]
fn a_page_is_promoted_stored_loaded_and_written_back_at_once() {
    store_load_and(4096, 1, Trim::tiered, &[promote, write_back]);
    store_load_and(4096, 3, Trim::tiered, &[promote, write_back]);
}

#[test]
fn readers_of_the_same_pages_and_an_invalidation() {
    shuttle::check_random(
        || {
            let (zswap, _) = world(8192, 2);
            let older = pages(1);
            zswap.store(A, 0, &refs(&older)).unwrap();
            let reading: Vec<_> = (0..2)
                .map(|_| {
                    let zswap = zswap.clone();
                    thread::spawn(move || take_present(&zswap, Keep::Shared))
                })
                .collect();
            let forgetting = {
                let zswap = zswap.clone();
                thread::spawn(move || zswap.invalidate(A, 1, 2))
            };
            for reader in reading {
                assert!(reader.join().unwrap().iter().all(|(at, page)| *page == older[*at]));
            }
            assert_eq!(forgetting.join().unwrap(), 2);
            assert_eq!(zswap.present(A, 0, PAGES), 0b1001);
            assert_eq!(zswap.invalidate(A, 0, u64::MAX), 2);
            assert_eq!((zswap.objects(), zswap.table_bytes()), (0, 0));
        },
        ROUNDS,
    );
}

#[test]
fn loads_that_overlap_wait_in_order() {
    shuttle::check_random(
        || {
            let (zswap, _) = world(4096, 1);
            // More than one chunk of 64, so that pages are held while others are waited for.
            let all: Vec<Page> = (0..80).map(|n| page(0, n)).collect();
            zswap.store(A, 8, &refs(&all)).unwrap();
            let loading: Vec<_> = [(8, 80), (60, 28), (8, 60)]
                .map(|(key, count)| {
                    let zswap = zswap.clone();
                    thread::spawn(move || {
                        support::load(&zswap, A, key, count, Keep::Exclusive).map(|_| count)
                    })
                })
                .into_iter()
                .collect();
            let loaded: usize = loading.into_iter().filter_map(|load| load.join().unwrap().ok()).sum();
            assert_eq!(zswap.stored_pages() as usize, 80 - loaded);
            assert!(loaded > 0);
        },
        ROUNDS / 5,
    );
}
