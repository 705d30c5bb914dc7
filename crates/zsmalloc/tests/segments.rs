//! Objects of several pools in one segment.

mod common;

use std::os::fd::{AsFd, OwnedFd};

use common::content;
use zsmalloc::{Config, Handle, Pool, Segment};

fn pool() -> Pool {
    Pool::new(&Config::default()).unwrap()
}

fn put(pool: &Pool, bytes: &[u8]) -> Handle {
    let mut handle = [Handle::DANGLING];
    pool.put_bulk(&[bytes], 0, &mut handle).unwrap();
    handle[0]
}

/// The contents back to back, and where each begins.
fn file_of(contents: &[Vec<u8>]) -> (OwnedFd, usize, Vec<usize>) {
    let bytes = contents.concat();
    let starts = contents.iter().scan(0, |at, one| {
        *at += one.len();
        Some(*at - one.len())
    });
    (sys::shared::holding(c"segment", &bytes).unwrap(), bytes.len(), starts.collect())
}

fn contents(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(|stamp| content(stamp, 300 + (stamp as usize * 37) % 2500)).collect()
}

fn mapped(pool: &Pool, file: &OwnedFd, len: usize) -> Segment {
    pool.map_segment(file.as_fd(), len, 7).unwrap()
}

#[test]
fn an_object_moves_into_a_segment_only_if_its_bytes_are_there() {
    let all = contents(500);
    let (file, len, starts) = file_of(&all);
    let pools = [pool(), pool()];
    for pool in &pools {
        let segment = mapped(pool, &file, len);
        let handles: Vec<Handle> = all.iter().map(|bytes| put(pool, bytes)).collect();
        let before = pool.bytes();
        for (handle, at) in handles.iter().zip(&starts) {
            assert!(!pool.share(*handle, &segment, at + 1), "other bytes");
            assert!(!pool.share(*handle, &segment, len), "beyond the end");
            assert!(!pool.share(*handle, &segment, usize::MAX));
            assert!(pool.share(*handle, &segment, *at) && pool.is_shared(*handle));
            assert!(!pool.share(*handle, &segment, *at), "it is there already");
        }
        pool.compact();
        pool.trim();
        assert!(pool.bytes() < before / 8, "{} of {before}", pool.bytes());
        assert_eq!((pool.shared_objects(), pool.segment_bytes(), pool.live_bytes(&segment)), (500, len, len));
        assert_eq!((pool.stats().objects, pool.stats().payload_bytes), (500, 0));
        for (handle, bytes) in handles.iter().zip(&all) {
            assert_eq!(pool.read(*handle).bytes(), bytes);
        }
        let segment = pool.unmap_segment(segment).unwrap_err();
        let other = put(pool, b"other");
        pool.free_bulk(&handles);
        assert_eq!(pool.shared_objects(), 0);
        pool.unmap_segment(segment).unwrap();
        assert_eq!((pool.segment_bytes(), pool.read(other).bytes()), (0, &b"other"[..]));
    }
}

#[test]
fn an_object_that_is_read_stays_where_it_is() {
    let all = contents(1);
    let (file, len, _) = file_of(&all);
    let pool = pool();
    let segment = mapped(&pool, &file, len);
    let handle = put(&pool, &all[0]);
    let read = pool.read(handle);
    assert!(!pool.share(handle, &segment, 0));
    drop(read);
    assert!(pool.share(handle, &segment, 0));
}

#[test]
fn of_two_segments_all_use_the_one_of_lower_rank() {
    let all = contents(2);
    let files = [(), ()].map(|()| file_of(&all));
    let used = |order: [usize; 2]| {
        let pool = pool();
        let handle = put(&pool, &all[1]);
        let segments = order.map(|rank| {
            let (file, len, starts) = &files[rank];
            let segment = pool.map_segment(file.as_fd(), *len, rank as u32).unwrap();
            pool.share(handle, &segment, starts[1]);
            segment
        });
        assert_eq!((pool.read(handle).bytes(), pool.shared_objects()), (&all[1][..], 1));
        let live = segments.each_ref().map(|segment| pool.live_bytes(segment));
        order.into_iter().zip(live).filter(|(_, live)| *live > 0).map(|(rank, _)| rank).collect::<Vec<_>>()
    };
    assert_eq!((used([0, 1]), used([1, 0])), (vec![0], vec![0]));
}

#[test]
fn objects_leave_segments_when_nobody_shares_them() {
    let all = contents(600);
    let (file, len, starts) = file_of(&all);
    let pool = pool();
    let segment = mapped(&pool, &file, len);
    let handles: Vec<Handle> = all.iter().map(|bytes| put(&pool, bytes)).collect();
    handles.iter().zip(&starts).for_each(|(handle, at)| assert!(pool.share(*handle, &segment, *at)));
    pool.free_bulk(&handles[..300]);
    pool.leave_segments();
    assert_eq!((pool.shared_objects(), pool.live_bytes(&segment)), (0, 0));
    let stats = pool.stats();
    assert_eq!(
        (stats.objects, stats.payload_bytes),
        (300, all[300..].iter().map(|one| one.len() as u64).sum())
    );
    pool.unmap_segment(segment).unwrap();
    for (handle, bytes) in handles[300..].iter().zip(&all[300..]) {
        assert_eq!(pool.read(*handle).bytes(), bytes);
    }
    pool.free_bulk(&handles[300..]);
    assert_eq!(pool.stats().payload_bytes, 0);
}

/// Chunks of segments serve later ones, and a pool that is dropped leaves usable memory.
#[test]
fn address_space_of_segments_is_used_again() {
    let all = contents(100);
    let (file, len, starts) = file_of(&all);
    for _ in 0..20 {
        let (pool, mut first) = (pool(), None);
        for _ in 0..3 {
            let segment = mapped(&pool, &file, len);
            let at = pool.segment(&segment).as_ptr();
            assert_eq!(pool.segment(&segment), all.concat());
            assert_eq!(*first.get_or_insert(at), at);
            let handle = put(&pool, &all[7]);
            assert!(pool.share(handle, &segment, starts[7]));
            pool.free(handle);
            pool.unmap_segment(segment).unwrap();
        }
        let _left = mapped(&pool, &file, len);
        let handle = put(&pool, &all[3]);
        assert!(pool.share(handle, &_left, starts[3]));
    }
    let pool = pool();
    let handles: Vec<Handle> = (0..4000).map(|stamp| put(&pool, &content(stamp, 2000))).collect();
    assert!((0..).zip(&handles).all(|(stamp, handle)| pool.read(*handle).bytes() == content(stamp, 2000)));
}
