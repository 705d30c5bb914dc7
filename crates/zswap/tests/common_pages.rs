//! Two stores, as those of relatives, with one copy of the pages that they have in common.

use std::os::fd::{AsFd, OwnedFd};

use acomp::Page;
use proptest::prelude::*;
use sys::shared;
use zswap::{Config, Group, Keep, Zswap};

const GROUP: Group = Group(0);

fn store() -> Zswap {
    let mut registry = acomp::Registry::new();
    codecs::register_all(&mut registry);
    Zswap::new(Config::default(), registry.find("lz4").unwrap()).unwrap()
}

/// A page that compresses to about a third.
fn page(stamp: u64) -> Page {
    let mut page = [0; 4096];
    let mut state = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in &mut page[..1300] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    page
}

fn put(store: &Zswap, key: u64, stamp: u64) {
    store.store(GROUP, key, &[&page(stamp)]).unwrap();
}

/// Packs the pages of `keys` that a store has, as long as there are any.
fn packed(store: &Zswap, keys: impl Iterator<Item = u64>) -> Vec<OwnedFd> {
    keys.for_each(|key| store.note_common(key));
    let turns = (0..20).filter_map(|_| store.pack_common(GROUP));
    turns.map(|bytes| shared::holding(c"segment", &bytes).unwrap()).collect()
}

fn map(store: &Zswap, segments: &[OwnedFd]) -> Vec<u64> {
    segments.iter().flat_map(|file| store.map_segment(GROUP, file.as_fd()).unwrap()).collect()
}

#[test]
fn equal_pages_share_their_objects_and_others_keep_theirs() {
    let stores = [store(), store()];
    for key in 0..2000 {
        put(&stores[0], key, key);
        // Each third page differs, and each seventh is not out.
        if key % 7 != 0 {
            put(&stores[1], key, if key % 3 == 0 { key + 5000 } else { key });
        }
    }
    let segments = packed(&stores[0], 0..2000);
    assert!(segments.len() > 1, "more than one holds");
    assert_eq!(map(&stores[0], &segments), [0; 0]);
    let others = map(&stores[1], &segments);
    assert!(others.iter().copied().eq((0..2000).filter(|key| key % 3 == 0 || key % 7 == 0)));
    assert_eq!(stores[0].shared_pages(), 2000);
    assert_eq!(stores[1].shared_pages(), 2000 - others.len() as u64);
    // A page that is stored later finds its object, too.
    put(&stores[1], 7, 7);
    put(&stores[1], 14, 99);
    assert_eq!(stores[1].shared_pages(), 2001 - others.len() as u64);

    let mut read = page(0);
    for (store, differs) in stores.iter().zip([false, true]) {
        for key in (0..2000).filter(|key| !differs || key % 7 != 0) {
            store.load(GROUP, key, &mut [&mut read], Keep::Exclusive).unwrap();
            assert_eq!(read, page(if differs && key % 3 == 0 { key + 5000 } else { key }), "{key}");
        }
    }
    assert_eq!((stores[0].shared_pages(), stores[0].stored_pages()), (0, 0));
    (0..100).for_each(|_| stores[0].tidy_segments(true));
    assert_eq!(stores[0].segment_bytes(), 0, "unmapped once nothing was used for a while");
}

#[test]
fn without_relatives_pages_leave_their_segments() {
    let store = store();
    (0..1000).for_each(|key| put(&store, key, key));
    let segments = packed(&store, 0..1000);
    map(&store, &segments);
    assert!(store.segment_bytes() > 1 << 20);
    (0..200).for_each(|_| store.tidy_segments(false));
    assert_eq!((store.shared_pages(), store.segment_bytes()), (0, 0));
    let mut read = page(0);
    for key in 0..1000 {
        store.load(GROUP, key, &mut [&mut read], Keep::Shared).unwrap();
        assert_eq!(read, page(key));
    }
}

#[test]
fn a_few_pages_are_not_worth_a_segment_unless_they_wait() {
    let store = store();
    (0..100).for_each(|key| put(&store, key, key));
    (0..100).for_each(|key| store.note_common(key));
    assert!((0..3).all(|_| store.pack_common(GROUP).is_none()));
    assert!(store.pack_common(GROUP).is_some());
    (0..20).for_each(|key| store.note_common(key));
    assert!((0..50).all(|_| store.pack_common(GROUP).is_none()));
}

#[test]
fn pages_whose_objects_are_shared_are_not_packed_again() {
    let store = store();
    (0..300).for_each(|key| put(&store, key, key));
    let segments = packed(&store, 0..300);
    map(&store, &segments);
    assert!(packed(&store, 0..300).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// A relative may show any bytes: pages stay as they are.
    #[test]
    fn a_false_segment_changes_no_page(
        mut place in 0usize..1 << 20, change in 1u8.., cut in prop::option::of(0usize..1 << 20), tail in prop::collection::vec(any::<u8>(), 0..40)
    ) {
        let stores = [store(), store()];
        for key in 0..300 {
            put(&stores[0], key, key);
            put(&stores[1], key, key);
        }
        (0..300).for_each(|key| stores[0].note_common(key));
        let mut bytes = stores[0].pack_common(GROUP).unwrap();
        // Half of the changes are among the entries at the end.
        place = if place % 2 == 0 { place % bytes.len() } else { bytes.len() - 1 - place % 5000 };
        bytes[place] ^= change;
        if let Some(cut) = cut {
            bytes.truncate(1 + cut % bytes.len());
        }
        bytes.extend(tail);
        let file = shared::holding(c"segment", &bytes).unwrap();
        map(&stores[1], &[file]);
        let mut read = page(0);
        for key in 0..300 {
            stores[1].load(GROUP, key, &mut [&mut read], Keep::Shared).unwrap();
            prop_assert_eq!(read, page(key));
        }
    }
}
