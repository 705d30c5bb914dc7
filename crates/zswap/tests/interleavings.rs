//! Stores, loads, writeback, compaction and compressor switches of the same pages, in thousands of
//! random interleavings: `cargo test -p uzswap-zswap --features shuttle --test interleavings`.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use shuttle::thread;
use support::{page, refs, Swap, Trim};
use zswap::{Config, Group, Keep, LoadError, Page, Zswap};

const A: Group = Group(0);
const PAGES: usize = 4;
const ROUNDS: usize = 1000;

fn pages(version: u64) -> Vec<Page> {
    (0..PAGES as u64).map(|n| page(2, version * 100 + n)).collect()
}

fn world(unit_size: usize, contexts: usize, trim: Arc<Trim>, swap: &Swap) -> Arc<Zswap> {
    let config = Config {
        unit_size,
        contexts,
        batch: 2,
        max_groups: 1,
        verify: true,
        swap: Some(swap.file.clone()),
        ..Config::default()
    };
    Arc::new(Zswap::new(config, trim).unwrap())
}

fn take_present(zswap: &Zswap, keep: Keep) -> Vec<(usize, Page)> {
    let mask = zswap.present(A, 0, PAGES);
    let mut loaded = vec![[0xEE; 4096]; mask.count_ones() as usize];
    match zswap.load_masked(A, 0, mask, &mut loaded.iter_mut().collect::<Vec<_>>(), keep) {
        Ok(()) => (0..PAGES).filter(|at| mask >> at & 1 == 1).zip(loaded).collect(),
        Err(LoadError::Missing { .. }) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn readers_of_the_same_pages_and_an_invalidation() {
    shuttle::check_random(
        || {
            let zswap = world(8192, 2, Trim::new("first", 1), &Swap::new(4));
            let older = pages(1);
            zswap.store(A, 0, &refs(&older)).unwrap();
            let reading = [(); 2].map(|()| {
                let zswap = zswap.clone();
                thread::spawn(move || take_present(&zswap, Keep::Shared))
            });
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
            let zswap = world(4096, 1, Trim::new("first", 1), &Swap::new(4));
            // More than one chunk of 64, so that a thread waits for pages while it holds others.
            let all: Vec<Page> = (0..80).map(|n| page(0, n)).collect();
            zswap.store(A, 8, &refs(&all)).unwrap();
            let loading = [(8, 80), (60, 28), (8, 60)].map(|(key, count)| {
                let zswap = zswap.clone();
                thread::spawn(move || support::load(&zswap, A, key, count, Keep::Exclusive).map(|_| count))
            });
            let loaded: usize = loading.into_iter().filter_map(|load| load.join().unwrap().ok()).sum();
            assert_eq!(zswap.stored_pages() as usize, 80 - loaded);
            assert!(loaded > 0);
        },
        ROUNDS / 3,
    );
}

/// Objects that cleaning moved, as proof that it was not idle.
static MOVED: AtomicU64 = AtomicU64::new(0);

/// An action of a thread on pages in the pool, on disk, or on their way between. Returns the pages
/// that it took.
type Doing = fn(&Zswap, &[Page]) -> Vec<(usize, Page)>;

fn take(zswap: &Zswap, _: &[Page]) -> Vec<(usize, Page)> {
    take_present(zswap, Keep::Exclusive)
}

fn look_and_take(zswap: &Zswap, newer: &[Page]) -> Vec<(usize, Page)> {
    let (seen, older) = (take_present(zswap, Keep::Shared), pages(1));
    assert!(seen.iter().all(|(at, page)| *page == older[*at] || *page == newer[*at]));
    take(zswap, newer)
}

fn take_available(zswap: &Zswap, _: &[Page]) -> Vec<(usize, Page)> {
    load_available(zswap, Keep::Exclusive)
}

fn read_available(zswap: &Zswap, _: &[Page]) -> Vec<(usize, Page)> {
    load_available(zswap, Keep::Shared);
    Vec::new()
}

fn load_available(zswap: &Zswap, keep: Keep) -> Vec<(usize, Page)> {
    let mut loaded = vec![[0xEE; 4096]; PAGES];
    let mut pages: Vec<&mut Page> = loaded.iter_mut().collect();
    let got = zswap.load_available(A, 0, (1 << PAGES) - 1, &mut pages, keep).unwrap();
    (0..PAGES).filter(|at| got >> at & 1 == 1).map(|at| (at, loaded[at])).collect()
}

fn store_newer(zswap: &Zswap, newer: &[Page]) -> Vec<(usize, Page)> {
    zswap.store(A, 0, &refs(newer)).unwrap();
    Vec::new()
}

fn swap_out(zswap: &Zswap, _: &[Page]) -> Vec<(usize, Page)> {
    zswap.shrink(0);
    Vec::new()
}

fn promote(zswap: &Zswap, _: &[Page]) -> Vec<(usize, Page)> {
    zswap.promote(A, 100, 1);
    zswap.compact();
    zswap.promote(A, 100, 1);
    Vec::new()
}

fn switch(zswap: &Zswap, _: &[Page]) -> Vec<(usize, Page)> {
    zswap.set_compressor(Trim::new("second", 1)).unwrap();
    zswap.compact();
    zswap.set_compressor(Trim::new("first", 1)).unwrap();
    Vec::new()
}

fn clean(zswap: &Zswap, _: &[Page]) -> Vec<(usize, Page)> {
    MOVED.fetch_add(zswap.clean_now(4), Ordering::Relaxed);
    Vec::new()
}

fn shrink_group(zswap: &Zswap, _: &[Page]) -> Vec<(usize, Page)> {
    zswap.set_group_limit(A, 1);
    let page = page(2, 999);
    // Whether there is room depends on the interleaving; the page is not one of those watched.
    let _ = zswap.store(A, 100, &[&page]);
    zswap.set_group_limit(A, u64::MAX);
    Vec::new()
}

fn forget_last(zswap: &Zswap, _: &[Page]) -> Vec<(usize, Page)> {
    zswap.invalidate(A, PAGES as u64 - 1, 1);
    Vec::new()
}

/// How pages are stored at first.
struct Start {
    unit_size: usize,
    contexts: usize,
    compressor: fn(&str, usize) -> Arc<Trim>,
    is_on_disk: bool,
}

const POOL: Start = Start { unit_size: 4096, contexts: 2, compressor: Trim::new, is_on_disk: false };
const DISK: Start = Start { is_on_disk: true, ..POOL };

/// All `doings` run at once on older pages. At the end each page was found once: the newer one if
/// it was stored, unless it was invalidated. No older one came back, and nothing is left over.
fn at_once(start: Start, doings: &'static [Doing]) {
    let stores = doings.iter().any(|doing| std::ptr::fn_addr_eq(*doing, store_newer as Doing));
    let forgets = doings.iter().any(|doing| std::ptr::fn_addr_eq(*doing, forget_last as Doing));
    shuttle::check_random(
        move || {
            let swap = Swap::new(4);
            let zswap = world(start.unit_size, start.contexts, (start.compressor)("first", 1), &swap);
            let (older, newer) = (pages(1), pages(2));
            zswap.store(A, 0, &refs(&older)).unwrap();
            if start.is_on_disk {
                zswap.shrink(0);
                assert_eq!(zswap.on_disk(A, 0, PAGES), 0b1111);
            }
            let threads: Vec<_> = doings
                .iter()
                .map(|doing| {
                    let (zswap, newer) = (zswap.clone(), newer.clone());
                    thread::spawn(move || doing(&zswap, &newer))
                })
                .collect();
            let taken: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            zswap.invalidate(A, 100, 1);
            for at in 0..PAGES {
                let last = if stores { newer[at] } else { older[at] };
                let mut found: Vec<Page> =
                    taken.iter().filter(|(other, _)| *other == at).map(|(_, page)| *page).collect();
                if zswap.present(A, at as u64, 1) == 1 {
                    let stored = support::load(&zswap, A, at as u64, 1, Keep::Exclusive).unwrap()[0];
                    assert!(stored == last, "an older page came back");
                    found.push(stored);
                }
                assert!(found.iter().all(|page| *page == newer[at] || *page == older[at]));
                let count = found.iter().filter(|page| **page == last).count();
                let may_be_gone = forgets && at == PAGES - 1;
                assert!(count == 1 || count == 0 && may_be_gone, "page {at}: {count}");
            }
            swap.assert_empty(&zswap);
            assert_eq!(zswap.pools().len(), 1);
        },
        ROUNDS,
    );
}

#[test]
fn a_page_is_stored_loaded_and_written_back_at_once() {
    at_once(Start { contexts: 1, ..POOL }, &[store_newer, take, swap_out]);
    at_once(Start { contexts: 3, ..POOL }, &[store_newer, take, swap_out]);
}

#[test]
fn a_unit_is_stored_loaded_and_written_back_at_once() {
    at_once(Start { unit_size: 16384, ..POOL }, &[store_newer, take, swap_out]);
}

#[test]
fn the_compressor_changes_and_objects_move_at_the_same_time() {
    at_once(Start { unit_size: 8192, ..POOL }, &[switch, store_newer, look_and_take]);
}

#[test]
fn a_page_is_promoted_stored_loaded_and_written_back_at_once() {
    for contexts in [1, 3] {
        let start = Start { contexts, compressor: Trim::tiered, ..POOL };
        at_once(start, &[store_newer, take, promote, swap_out]);
    }
}

#[test]
fn a_page_goes_to_disk_while_it_is_stored_loaded_and_forgotten() {
    at_once(POOL, &[swap_out, store_newer, take_available]);
    at_once(POOL, &[swap_out, store_newer, read_available, forget_last]);
    at_once(POOL, &[swap_out, take_available, forget_last]);
    at_once(Start { unit_size: 8192, ..POOL }, &[swap_out, store_newer, take_available]);
    at_once(Start { unit_size: 16384, ..POOL }, &[swap_out, take_available, forget_last]);
}

#[test]
fn a_page_on_disk_is_moved_while_it_is_stored_loaded_and_forgotten() {
    at_once(DISK, &[clean, take_available, store_newer]);
    at_once(DISK, &[clean, read_available, store_newer, swap_out]);
    at_once(Start { unit_size: 16384, ..DISK }, &[clean, take_available, forget_last]);
    at_once(Start { unit_size: 16384, ..DISK }, &[clean, read_available, take_available]);
    let moved = MOVED.load(Ordering::Relaxed);
    assert!(moved > 1000, "{moved} objects moved");
}

#[test]
fn a_page_on_disk_is_taken_once() {
    at_once(DISK, &[take_available, take_available, swap_out]);
    at_once(Start { unit_size: 16384, ..DISK }, &[take_available, take_available, store_newer]);
}

#[test]
fn two_write_at_once_and_only_one_does() {
    at_once(POOL, &[swap_out, swap_out, take_available]);
    at_once(POOL, &[swap_out, shrink_group, take_available]);
}
