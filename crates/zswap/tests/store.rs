//! Stores, loads and invalidations on one thread.
#![cfg(not(feature = "shuttle"))]

mod support;

use std::sync::atomic::Ordering;
use std::sync::Arc;

use support::{assert_empty, load, page, refs, with_swap, Trim};
use zswap::{Config, Group, Keep, LoadError, Page, StoreError, Zswap};

const A: Group = Group(0);
const B: Group = Group(7);

fn make(config: Config) -> (Zswap, Arc<Trim>) {
    let trim = Trim::new("trim", 1);
    (Zswap::new(config, trim.clone()).unwrap(), trim)
}

fn mixed(count: usize, seed: u64) -> Vec<Page> {
    (0..count as u64).map(|n| page(if n % 5 == 0 { 0 } else { 2 }, seed + n)).collect()
}

#[test]
fn every_unit_and_alignment_round_trips() {
    for unit_size in [4096, 8192, 16384, 32768, 65536] {
        for batch in [1, 3, 8] {
            let (zswap, _) = make(Config { unit_size, batch, ..Config::default() });
            for (key, count) in [(0, 16), (5, 1), (13, 9), (30, 37), (1 << 35, 130), ((1 << 36) - 3, 3)] {
                let pages = mixed(count, key);
                zswap.store(A, key, &refs(&pages)).unwrap();
                assert_eq!(load(&zswap, A, key, count, Keep::Shared).unwrap(), pages);
                assert_eq!(zswap.stored_pages(), count as u64);
                assert_eq!(load(&zswap, A, key, count, Keep::Exclusive).unwrap(), pages);
                assert_empty(&zswap);
            }
        }
    }
}

/// Between two units of a batch may be pages without decompression, or of an older compressor.
#[test]
fn batches_of_a_load_pass_over_pages_without_a_unit() {
    let load_in = |kinds: &[u8; 64], unit_size: usize, switch: bool| -> Vec<[u64; 9]> {
        let trims = [Trim::new("first", 8), Trim::new("second", 4)];
        let config = with_swap(Config { unit_size, ..Config::default() });
        let zswap = Zswap::new(config, trims[0].clone()).unwrap();
        let pages: Vec<Page> = (0..).zip(kinds).map(|(n, &kind)| page(kind.min(2), n)).collect();
        zswap.store(A, 64, &refs(&pages)).unwrap();
        if switch {
            zswap.set_compressor(trims[1].clone()).unwrap();
            for (n, page) in pages.iter().enumerate().filter(|(n, _)| kinds[*n] == 3) {
                zswap.store(A, 64 + n as u64, &[page]).unwrap();
            }
        }
        for keep in [Keep::Shared, Keep::Exclusive] {
            assert!(load(&zswap, A, 64, 64, keep).unwrap() == pages);
        }
        assert_empty(&zswap);
        // Two loads.
        let counted =
            |trim: &Arc<Trim>| std::array::from_fn(|n| trim.decompressions[n].load(Ordering::Relaxed) / 2);
        trims.iter().map(counted).collect()
    };
    let of = |sizes: &[(usize, u64)]| -> [u64; 9] {
        let mut counts = [0; 9];
        sizes.iter().for_each(|&(size, count)| counts[size] = count);
        counts
    };
    // Every third page is same-filled, every other third raw: 22 pages are left.
    let sparse: [u8; 64] = std::array::from_fn(|n| [2, 0, 1][n % 3]);
    assert_eq!(load_in(&sparse, 4096, false), [of(&[(8, 2), (6, 1)]), of(&[])]);
    // One page in two was stored with the second compressor.
    let turns: [u8; 64] = std::array::from_fn(|n| 2 + (n % 2) as u8);
    assert_eq!(load_in(&turns, 4096, true), [of(&[(8, 4)]), of(&[(4, 8)])]);
    // Units of four pages, every second same-filled; of each other one page was stored again alone.
    let units: [u8; 64] = std::array::from_fn(|n| if n / 4 % 2 == 1 { 0 } else { 2 + u8::from(n % 4 == 1) });
    assert_eq!(load_in(&units, 16384, false), [of(&[(8, 1)]), of(&[])]);
    assert_eq!(load_in(&units, 16384, true), [of(&[(8, 2)]), of(&[(4, 2)])]);
}

#[test]
fn the_last_keys_are_seen_in_ranges_that_reach_beyond() {
    let (zswap, _) = make(Config::default());
    let (last, pages) = ((1 << 36) - 1, mixed(3, 1));
    zswap.store(A, last - 2, &refs(&pages)).unwrap();
    assert_eq!(zswap.present(A, last - 2, 64), 0b111);
    assert_eq!(
        (zswap.present(A, last, 2), zswap.present(A, last + 1, 1), zswap.present(A, u64::MAX, 64)),
        (1, 0, 0)
    );
    let mut back = [[0; 4096]; 5];
    let refs = &mut back.each_mut()[..];
    assert_eq!(zswap.load_available(A, last - 1, 0b11111, refs, Keep::Exclusive).unwrap(), 0b11);
    assert_eq!(back[..2], pages[1..]);
}

#[test]
fn a_part_of_a_unit_leaves_the_rest() {
    let (zswap, _) = make(Config { unit_size: 16384, ..Config::default() });
    let pages: Vec<Page> = (0..16).map(|n| page(2, n)).collect();
    zswap.store(A, 16, &refs(&pages)).unwrap();
    let bytes = zswap.compressed_bytes();
    assert_eq!(load(&zswap, A, 17, 2, Keep::Exclusive).unwrap(), pages[1..3]);
    assert_eq!(zswap.compressed_bytes(), bytes, "the unit has pages yet");
    assert_eq!(zswap.present(A, 16, 16), 0xFFF9);
    // A newer page in the unit's range.
    let newer = page(2, 99);
    zswap.store(A, 18, &[&newer]).unwrap();
    assert_eq!(load(&zswap, A, 18, 3, Keep::Shared).unwrap(), [newer, pages[3], pages[4]]);
    assert_eq!(zswap.invalidate(A, 16, 1), 1);
    assert_eq!(load(&zswap, A, 19, 13, Keep::Exclusive).unwrap(), pages[3..]);
    assert_eq!(load(&zswap, A, 18, 1, Keep::Exclusive).unwrap(), [newer]);
    assert_empty(&zswap);
}

#[test]
fn a_mask_loads_the_stored_pages() {
    for unit_size in [4096, 16384] {
        let (zswap, _) = make(Config { unit_size, ..Config::default() });
        let pages = mixed(64, 3);
        zswap.store(A, 1000, &refs(&pages)).unwrap();
        for at in [0, 1, 7, 8, 31, 50, 63] {
            zswap.invalidate(A, 1000 + at, 1);
        }
        let mask = zswap.present(A, 1000, 64);
        assert_eq!(mask.count_ones(), 57);
        let mut loaded = vec![[1; 4096]; 57];
        zswap
            .load_masked(A, 1000, mask, &mut loaded.iter_mut().collect::<Vec<_>>(), Keep::Exclusive)
            .unwrap();
        let kept: Vec<Page> = (0..64).filter(|at| mask >> at & 1 == 1).map(|at| pages[at]).collect();
        assert_eq!(loaded, kept);
        assert_empty(&zswap);
    }
}

#[test]
fn a_missing_page_fails_the_load_and_removes_nothing() {
    let (zswap, _) = make(Config::default());
    let pages = mixed(100, 1);
    zswap.store(A, 0, &refs(&pages)).unwrap();
    zswap.invalidate(A, 77, 1);
    assert_eq!(load(&zswap, A, 0, 100, Keep::Exclusive), Err(LoadError::Missing { index: 77 }));
    assert_eq!(load(&zswap, A, 76, 3, Keep::Exclusive), Err(LoadError::Missing { index: 1 }));
    assert_eq!(zswap.stored_pages(), 99);
    assert_eq!(load(&zswap, A, 0, 77, Keep::Exclusive).unwrap(), pages[..77]);
    assert_eq!(load(&zswap, B, 0, 1, Keep::Shared), Err(LoadError::Missing { index: 0 }));
}

#[test]
fn groups_are_apart() {
    let (zswap, _) = make(Config::default());
    let (one, two) = (mixed(16, 1), mixed(16, 2));
    zswap.store(A, 32, &refs(&one)).unwrap();
    zswap.store(B, 32, &refs(&two)).unwrap();
    assert_eq!(load(&zswap, A, 32, 16, Keep::Exclusive).unwrap(), one);
    assert_eq!(load(&zswap, B, 32, 16, Keep::Exclusive).unwrap(), two);
    assert_eq!(zswap.store(Group(9999), 0, &refs(&one)), Err(StoreError::OutOfRange));
    assert_eq!(zswap.store(A, (1 << 36) - 1, &refs(&one)), Err(StoreError::OutOfRange));
}

#[test]
fn a_huge_invalidation_costs_by_stored_pages() {
    let (zswap, _) = make(Config::default());
    let pages = mixed(20, 4);
    for key in [0, 1 << 20, 1 << 30, (1 << 36) - 20] {
        zswap.store(A, key, &refs(&pages)).unwrap();
    }
    assert_eq!(zswap.invalidate(A, 5, (1 << 30) - 5 + 3), 15 + 20 + 3);
    assert_eq!(zswap.present(A, 0, 20), 0x1F);
    assert_eq!(zswap.present(A, 1 << 30, 20), 0xFFFF8);
    assert_eq!(zswap.invalidate(A, 0, u64::MAX), 5 + 17 + 20);
    assert_empty(&zswap);
}

#[test]
fn a_newer_store_replaces_an_older_one() {
    let (zswap, _) = make(Config::default());
    let (old, new) = (mixed(32, 1), mixed(7, 100));
    zswap.store(A, 64, &refs(&old)).unwrap();
    zswap.store(A, 70, &refs(&new)).unwrap();
    let mut expected = old.clone();
    expected[6..13].copy_from_slice(&new);
    assert_eq!(load(&zswap, A, 64, 32, Keep::Exclusive).unwrap(), expected);
    assert_empty(&zswap);
}

#[test]
fn same_filled_pages_take_no_object() {
    let (zswap, trim) = make(Config::default());
    let pages: Vec<Page> = (0..40).map(|n| page(0, n)).collect();
    zswap.store(A, 3, &refs(&pages)).unwrap();
    assert_eq!((zswap.compressed_bytes(), zswap.pool_bytes(), zswap.objects()), (0, 0, 0));
    assert_eq!(trim.units.load(Ordering::Relaxed), 0);
    assert_eq!(zswap.counters().same_filled_pages, 40);
    assert_eq!(load(&zswap, A, 3, 40, Keep::Exclusive).unwrap(), pages);
    assert_empty(&zswap);
}

#[test]
fn incompressible_pages_are_raw_with_a_swap_file_and_refused_without() {
    for unit_size in [4096, 16384] {
        let pages: Vec<Page> = (0..16).map(|n| page(if n == 9 { 1 } else { 2 }, n)).collect();
        let hard: Vec<Page> = (0..16).map(|n| page(1, n)).collect();
        let first_of_unit = 9 / (unit_size / 4096) * (unit_size / 4096);

        let (zswap, _) = make(Config { unit_size, ..Config::default() });
        zswap.store(A, 0, &refs(&mixed(16, 5))).unwrap();
        let refused = zswap.store(A, 0, &refs(if unit_size == 4096 { &pages } else { &hard }));
        let index = if unit_size == 4096 { first_of_unit } else { 0 };
        assert_eq!(refused, Err(StoreError::Poor { index }));
        assert!(zswap.counters().reject_compress_poor > 0);
        assert_empty(&zswap);

        let (zswap, _) = make(with_swap(Config { unit_size, ..Config::default() }));
        zswap.store(A, 0, &refs(&hard)).unwrap();
        assert_eq!(zswap.counters().stored_incompressible_pages, 16);
        assert_eq!(zswap.compressed_bytes(), 16 * 4096);
        assert_eq!(load(&zswap, A, 5, 3, Keep::Shared).unwrap(), hard[5..8]);
        assert_eq!(load(&zswap, A, 0, 16, Keep::Exclusive).unwrap(), hard);
        assert_empty(&zswap);
        // Forbidden for the group: refused again.
        zswap.set_group_writeback(A, false);
        assert_eq!(zswap.store(A, 0, &refs(&hard)), Err(StoreError::Poor { index: 0 }));
        assert_empty(&zswap);
    }
}

#[test]
fn metadata_is_at_most_32_bytes_a_page_and_checksums_4_more() {
    for verify in [false, true] {
        let (zswap, _) = make(Config { verify, ..Config::default() });
        let pages: Vec<Page> = (0..16).map(|n| page(2, n)).collect();
        for folio in 0..1024 {
            zswap.store(A, folio * 16, &refs(&pages)).unwrap();
        }
        let a_page = zswap.metadata_bytes() as f64 / zswap.stored_pages() as f64;
        let tables = zswap.table_bytes() as f64 / zswap.stored_pages() as f64;
        assert!(a_page <= if verify { 36.0 } else { 32.0 }, "{a_page}");
        assert!(tables <= if verify { 15.0 } else { 11.0 }, "{tables}");
        zswap.invalidate(A, 0, u64::MAX);
        assert_empty(&zswap);
    }
}

/// Pages of many folios fill batches of eight, where single stores make a request each. Pages that
/// repeat a word take no place, and incompressible ones do not affect others.
#[test]
fn scattered_pages_fill_batches() {
    let sizes = |trim: &Trim| -> Vec<u64> {
        trim.requests.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    };
    let pages: Vec<Page> = (0..64).map(|n| page(2, n)).collect();
    let keyed: Vec<(u64, &Page)> =
        pages.iter().enumerate().map(|(n, page)| (n as u64 * 3 + 7, page)).collect();
    let (zswap, trim) = make(Config { batch: 8, ..Config::default() });
    for &(key, page) in &keyed {
        zswap.store(A, key, &[page]).unwrap();
    }
    assert_eq!(sizes(&trim), [0, 64, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(zswap.store_scattered(A, &keyed, 1), Ok(zswap::Refused::default()));
    assert_eq!(sizes(&trim), [0, 64, 0, 0, 0, 0, 0, 0, 8]);
    assert_eq!((zswap.stored_pages(), zswap.counters().zswpout), (64, 128));
    for &(key, page) in &keyed {
        assert!(load(&zswap, A, key, 1, Keep::Exclusive).unwrap()[0] == *page);
    }
    assert_empty(&zswap);

    // Every third page repeats a word, one does not compress; folios of four pages.
    let kinds = |n: usize| {
        if n == 21 {
            1
        } else if n.is_multiple_of(3) {
            0
        } else {
            2
        }
    };
    let pages: Vec<Page> = (0..64).map(|n| page(kinds(n), n as u64)).collect();
    let keyed: Vec<(u64, &Page)> = pages.iter().enumerate().map(|(n, page)| (n as u64, page)).collect();
    let (zswap, trim) = make(Config { batch: 8, ..Config::default() });
    let refused = zswap.store_scattered(B, &keyed, 4).unwrap();
    assert_eq!((refused.pages, refused.poor), (0b1111 << 20, 1 << 21));
    assert_eq!(zswap.present(B, 0, 64), !(0b1111 << 20));
    // 42 pages that do not repeat a word, and the one that does not compress.
    let sizes = sizes(&trim);
    assert!(sizes[8] >= 5 && sizes.iter().sum::<u64>() <= 6, "{sizes:?}");
    assert_eq!(zswap.store_scattered(B, &keyed[..1], 1), Ok(zswap::Refused::default()));
    for wrong in [&[keyed[1], keyed[0]][..], &[keyed[0], keyed[0]], &[(1 << 36, &pages[0])]] {
        assert_eq!(zswap.store_scattered(B, wrong, 1), Err(StoreError::OutOfRange));
    }
    assert!(zswap.invalidate(B, 0, 64) == 60);
    assert_empty(&zswap);
}
