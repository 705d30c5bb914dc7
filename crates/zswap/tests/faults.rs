//! Failures at every point in turn: a folio is stored as a whole or not at all, and no older page
//! is left under it.
#![cfg(not(feature = "shuttle"))]

mod support;

use std::sync::atomic::Ordering;
use std::sync::Arc;

use support::{assert_empty, load, page, refs, with_swap, Liar, Trim};
use zswap::{Config, Group, Keep, LoadError, Page, StoreError, Zswap};

const A: Group = Group(3);
const FOLIO: usize = 21;
const KEY: u64 = 1000;

/// A store with an older folio under the test's keys and neighbours on both sides.
struct Scene {
    zswap: Zswap,
    trim: Arc<Trim>,
    neighbours: Vec<Page>,
}

impl Scene {
    fn new(config: Config) -> Self {
        let trim = Trim::new("trim", 1);
        let zswap = Zswap::new(config, trim.clone()).unwrap();
        let neighbours: Vec<Page> = (0..2 * FOLIO as u64).map(|n| page(2, 500 + n)).collect();
        zswap.store(A, KEY - FOLIO as u64, &refs(&neighbours[..FOLIO])).unwrap();
        zswap.store(A, KEY + FOLIO as u64, &refs(&neighbours[FOLIO..])).unwrap();
        let old: Vec<Page> = (0..FOLIO as u64).map(|n| page(2, 900 + n)).collect();
        zswap.store(A, KEY, &refs(&old)).unwrap();
        Scene { zswap, trim, neighbours }
    }

    fn assert_nothing_of_the_folio_left(&self) {
        assert_eq!(self.zswap.present(A, KEY, FOLIO), 0);
        assert_eq!(self.zswap.stored_pages(), 2 * FOLIO as u64);
        assert_eq!(self.zswap.counters().zswpout, 3 * FOLIO as u64);
    }

    fn assert_neighbours_whole_then_nothing(&self) {
        let before = load(&self.zswap, A, KEY - FOLIO as u64, FOLIO, Keep::Exclusive).unwrap();
        let after = load(&self.zswap, A, KEY + FOLIO as u64, FOLIO, Keep::Exclusive).unwrap();
        assert!([before, after].concat() == self.neighbours);
        assert_empty(&self.zswap);
        assert_eq!(self.trim.alive.load(Ordering::Relaxed), 0, "objects that the compressor was not told of");
    }
}

fn folio() -> Vec<Page> {
    (0..FOLIO as u64).map(|n| page(2, n)).collect()
}

#[test]
fn the_compressor_fails_on_every_unit_in_turn() {
    for unit_size in [4096, 16384] {
        for batch in [1, 8] {
            // KEY is not inside a unit, so units are counted from it.
            let pages_per_unit = unit_size / 4096;
            for unit in 0..FOLIO.div_ceil(pages_per_unit) {
                let scene = Scene::new(Config { unit_size, batch, ..Config::default() });
                scene.trim.fail_after.store(unit as i64, Ordering::Relaxed);
                let stored = scene.zswap.store(A, KEY, &refs(&folio()));
                assert_eq!(stored, Err(StoreError::Failed { index: unit * pages_per_unit }));
                assert_eq!(scene.zswap.counters().reject_compress_fail, 1);
                scene.assert_nothing_of_the_folio_left();
                scene.assert_neighbours_whole_then_nothing();
            }
        }
    }
}

#[test]
fn with_a_swap_file_a_failing_compressor_only_costs_room() {
    for unit in 0..FOLIO {
        let scene = Scene::new(with_swap(Config::default()));
        scene.trim.fail_after.store(unit as i64, Ordering::Relaxed);
        let folio = folio();
        scene.zswap.store(A, KEY, &refs(&folio)).unwrap();
        assert_eq!(scene.zswap.counters().stored_incompressible_pages, 1);
        assert_eq!(scene.zswap.counters().reject_compress_fail, 0);
        assert!(load(&scene.zswap, A, KEY, FOLIO, Keep::Exclusive).unwrap() == folio);
        scene.assert_neighbours_whole_then_nothing();
    }
}

#[test]
fn the_allocator_fails_on_every_object_in_turn() {
    for unit_size in [4096, 16384] {
        for object in 0..FOLIO.div_ceil(unit_size / 4096) {
            let scene = Scene::new(Config { unit_size, ..Config::default() });
            scene.zswap.fail_objects_after(Some(object as u32));
            assert_eq!(scene.zswap.store(A, KEY, &refs(&folio())), Err(StoreError::NoMemory));
            scene.zswap.fail_objects_after(None);
            assert_eq!(scene.zswap.counters().reject_alloc_fail, 1);
            scene.assert_nothing_of_the_folio_left();
            scene.assert_neighbours_whole_then_nothing();
        }
    }
}

#[test]
fn every_leaf_and_every_node_fails_in_turn() {
    // A distant folio, so that it needs three leaves and three nodes of its own.
    const FAR: u64 = (1 << 33) + 5;
    let pages: Vec<Page> = (0..40).map(|n| page(2, n)).collect();
    for nodes in [false, true] {
        for allowed in 0..3 {
            let scene = Scene::new(Config::default());
            scene.zswap.invalidate(A, KEY, FOLIO as u64);
            let before = (scene.zswap.table_bytes(), scene.zswap.objects());
            let fail = |count| match nodes {
                true => scene.zswap.fail_nodes_after(count),
                false => scene.zswap.fail_leaves_after(count),
            };
            fail(Some(allowed));
            assert_eq!(scene.zswap.store(A, FAR, &refs(&pages)), Err(StoreError::NoMemory));
            fail(None);
            assert_eq!(scene.zswap.counters().reject_kmemcache_fail, 1);
            assert_eq!((scene.zswap.table_bytes(), scene.zswap.objects()), before);
            scene.zswap.store(A, FAR, &refs(&pages)).unwrap();
            assert!(load(&scene.zswap, A, FAR, 40, Keep::Exclusive).unwrap() == pages);
            scene.assert_neighbours_whole_then_nothing();
        }
    }
}

#[test]
fn a_damaged_object_is_an_error_for_its_page_and_removes_nothing() {
    for unit_size in [4096, 16384] {
        let pages_per_unit = unit_size / 4096;
        for unit in 0..FOLIO.div_ceil(pages_per_unit) {
            let scene = Scene::new(Config { unit_size, ..Config::default() });
            let folio = folio();
            scene.zswap.store(A, KEY, &refs(&folio)).unwrap();
            scene.trim.damage_after.store(unit as i64, Ordering::Relaxed);
            let index = unit * pages_per_unit;
            for keep in [Keep::Exclusive, Keep::Shared] {
                scene.trim.damage_after.store(unit as i64, Ordering::Relaxed);
                let loaded = load(&scene.zswap, A, KEY, FOLIO, keep);
                assert_eq!(loaded, Err(LoadError::Damaged { index }));
            }
            assert_eq!(scene.zswap.counters().decompress_fail, 2);
            assert_eq!(scene.zswap.counters().zswpin, 0);
            scene.trim.damage_after.store(-1, Ordering::Relaxed);
            assert!(load(&scene.zswap, A, KEY, FOLIO, Keep::Exclusive).unwrap() == folio);
            scene.assert_neighbours_whole_then_nothing();
        }
    }
}

#[test]
fn with_checksums_a_compressor_cannot_lie() {
    let zswap = Zswap::new(Config { verify: true, ..Config::default() }, Arc::new(Liar)).unwrap();
    let honest = [9u8; 4096];
    let mut other = honest;
    other[77] = 1;
    let mut another = honest;
    another[4000] = 1;
    zswap.store(A, 0, &[&honest, &other, &another]).unwrap();
    assert_eq!(load(&zswap, A, 0, 3, Keep::Exclusive), Err(LoadError::Damaged { index: 1 }));
    assert_eq!(load(&zswap, A, 2, 1, Keep::Exclusive), Err(LoadError::Damaged { index: 0 }));
    assert_eq!(zswap.stored_pages(), 3);
    assert_eq!(load(&zswap, A, 0, 1, Keep::Exclusive).unwrap(), [honest]);
    assert_eq!(zswap.invalidate(A, 0, 10), 2);
    assert_empty(&zswap);
}

#[test]
fn figures_out_of_range_are_refused_with_the_range() {
    let trim = Trim::new("trim", 1);
    for (config, part) in [
        (Config { unit_size: 5000, ..Config::default() }, "unit_size is 5000"),
        (Config { unit_size: 131072, ..Config::default() }, "4096, 8192, 16384, 32768 or 65536"),
        (Config { batch: 9, ..Config::default() }, "batch is 9"),
        (Config { accept_threshold_percent: 101, ..Config::default() }, "0 to 100"),
        (Config { max_groups: 0, ..Config::default() }, "max_groups is 0"),
        (Config { contexts: 5000, ..Config::default() }, "contexts is 5000"),
        (Config { chain: 99, ..Config::default() }, "arena"),
    ] {
        let error = Zswap::new(config, trim.clone()).err().expect("refused").to_string();
        assert!(error.contains(part), "{error}");
    }
}
