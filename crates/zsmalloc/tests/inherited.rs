//! A forked process shares its pool's pages with relatives until one of them writes.

mod common;

use std::collections::BTreeSet;

use common::content;
use zsmalloc::{Config, Handle, Pool};

const SIZES: [usize; 5] = [40, 500, 1100, 1900, 3000];

fn store(pool: &Pool, stamps: std::ops::Range<u64>) -> Vec<(Handle, Vec<u8>)> {
    let objects = stamps.map(|stamp| {
        let bytes = content(stamp, SIZES[stamp as usize % SIZES.len()]);
        let mut handle = [Handle::DANGLING];
        pool.put_bulk(&[&bytes], 0, &mut handle).unwrap();
        (handle[0], bytes)
    });
    objects.collect()
}

fn pages(pool: &Pool, objects: &[(Handle, Vec<u8>)]) -> BTreeSet<usize> {
    let pages_of = |(handle, bytes): &(Handle, Vec<u8>)| {
        let start = pool.read(*handle).bytes().as_ptr().addr();
        start / 4096..=(start + bytes.len() - 1) / 4096
    };
    objects.iter().flat_map(pages_of).collect()
}

#[test]
fn inherited_pages_are_not_written_to() {
    let pool = Pool::new(&Config::default()).unwrap();
    let mut old = store(&pool, 0..4000);
    pool.inherit();
    let inherited = pages(&pool, &old);
    // Every other object is freed; its bytes stay, since no link is written there.
    let going: Vec<_> = old.extract_if(.., |(handle, _)| handle.to_raw().get() % 2 == 0).collect();
    let places: Vec<*const u8> =
        going.iter().map(|(handle, _)| pool.read(*handle).bytes().as_ptr()).collect();
    pool.free_bulk(&going.iter().map(|(handle, _)| *handle).collect::<Vec<_>>());
    for ((_, bytes), place) in going.iter().zip(places) {
        // SAFETY: the zspage has other objects, so the pool has given nothing of it back.
        assert_eq!(unsafe { std::slice::from_raw_parts(place, bytes.len()) }, bytes);
    }
    let new = store(&pool, 10_000..14_000);
    assert_eq!(pages(&pool, &new).intersection(&inherited).count(), 0);
    for (handle, bytes) in old.iter().chain(&new) {
        assert_eq!(pool.read(*handle).bytes(), bytes);
    }

    let before = pool.bytes();
    pool.compact();
    assert!(pool.bytes() + (1 << 20) < before, "compaction packs inherited objects, too");
    for (handle, bytes) in old.iter().chain(&new) {
        assert_eq!(pool.read(*handle).bytes(), bytes);
    }
}

#[test]
fn without_relatives_inherited_zspages_are_tidied() {
    let freed = |looks| {
        let pool = Pool::new(&Config::default()).unwrap();
        let old = store(&pool, 0..16_000);
        pool.inherit();
        let (going, _): (Vec<_>, Vec<_>) = old.iter().partition(|(handle, _)| handle.to_raw().get() % 8 != 0);
        pool.free_bulk(&going.iter().map(|(handle, _)| *handle).collect::<Vec<_>>());
        (0..looks).for_each(|_| pool.note_relatives(false));
        let before = pool.bytes();
        store(&pool, 20_000..20_100);
        pool.trim();
        before.saturating_sub(pool.bytes())
    };
    assert_eq!(freed(7), 0, "relatives may not be known yet");
    assert!(freed(8) > 2 << 20, "{}", freed(8));
}
