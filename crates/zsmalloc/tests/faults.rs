//! Failures at every point: an allocation yields all or nothing, and nothing leaks.

mod common;

use std::panic::{catch_unwind, AssertUnwindSafe};

use common::{content, Random};
use zsmalloc::{AllocError, Config, Handle, Pool};

fn pool() -> Pool {
    Pool::new(&Config::default()).unwrap()
}

/// Asserts that no object, zspage or page remains.
fn assert_empty(pool: &Pool) {
    pool.trim();
    let stats = pool.stats();
    assert_eq!((stats.objects, stats.payload_bytes), (0, 0));
    assert_eq!((stats.class_zspages, stats.mixed_zspages, stats.mixed_dead_bytes), (0, 0, 0));
    assert_eq!((stats.pool_bytes, stats.cached_bytes), (0, 0));
}

/// Closes open mixed zspages, which wait for more objects even when they are empty.
fn assert_empty_when_compacted(pool: &Pool) {
    pool.compact();
    assert_empty(pool);
}

#[test]
fn wrong_sizes_are_refused_before_anything_is_held() {
    let pool = pool();
    let mut handles = [Handle::DANGLING; 3];
    assert_eq!(pool.malloc_bulk(&[10, 0, 10], 0, &mut handles), Err(AllocError::Empty));
    assert_eq!(pool.malloc_bulk(&[10, 10, 65537], 0, &mut handles), Err(AllocError::TooBig));
    assert_eq!(pool.malloc_bulk(&[u32::MAX, 1, 1], 0, &mut handles), Err(AllocError::TooBig));
    assert_empty(&pool);
    assert_eq!(pool.malloc_bulk(&[], 0, &mut []), Ok(()));
    let whole = pool.malloc(65536, 0).unwrap();
    assert_eq!(pool.read(whole).bytes().len(), 65536);
    pool.free(whole);
    assert_empty_when_compacted(&pool);
}

#[test]
fn configurations_out_of_range_are_refused() {
    for config in
        [Config { chain: 3, nodes: 1 }, Config { chain: 17, nodes: 1 }, Config { chain: 8, nodes: 0 }]
    {
        let error = Pool::new(&config).err().expect("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{config:?}");
    }
}

#[test]
fn a_batch_that_fails_at_any_object_leaves_nothing() {
    let pool = pool();
    let mut random = Random::new(1);
    // Once with zspages of the classes present, once without.
    for kept in [0, 2000] {
        let kept: Vec<Handle> = (0..kept).map(|_| pool.malloc(900, 0).unwrap()).collect();
        let before = (pool.stats().objects, pool.stats().payload_bytes);
        for fail_after in 0..24 {
            let sizes: Vec<u32> = (0..24).map(|n| if n % 3 == 0 { 900 } else { random.size() }).collect();
            let mut handles = [Handle::DANGLING; 24];
            pool.fail_object_after(Some(fail_after));
            assert_eq!(pool.malloc_bulk(&sizes, 0, &mut handles), Err(AllocError::NoMemory));
            assert_eq!(handles, [Handle::DANGLING; 24]);
            let stats = pool.stats();
            assert_eq!((stats.objects, stats.payload_bytes), before, "failed after {fail_after}");
            // The fault was for one object: the next batch works.
            pool.malloc_bulk(&sizes, 0, &mut handles).unwrap();
            pool.free_bulk(&handles);
        }
        pool.free_bulk(&kept);
        assert_empty_when_compacted(&pool);
    }
}

#[test]
fn memory_that_ends_at_any_frame_leaves_nothing() {
    for frames in 0..12 {
        let pool = pool();
        let mut random = Random::new(u64::from(frames));
        pool.fail_frames_after(Some(frames));
        let mut held = Vec::new();
        loop {
            let sizes: Vec<u32> = (0..8).map(|_| random.size()).collect();
            let mut handles = [Handle::DANGLING; 8];
            let before = (pool.stats().objects, pool.stats().payload_bytes);
            match pool.malloc_bulk(&sizes, 0, &mut handles) {
                Ok(()) => held.extend(handles),
                Err(AllocError::NoMemory) => {
                    assert_eq!((pool.stats().objects, pool.stats().payload_bytes), before);
                    break;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(pool.bytes() <= frames as usize * 65536);
        assert!(frames < 2 || pool.stats().payload_bytes > u64::from(frames - 1) * 60_000, "gave up early");
        // Freed memory is reusable without another frame.
        let sizes: Vec<u32> = held.iter().map(|&handle| pool.len_of(handle) as u32).collect();
        pool.free_bulk(&held);
        pool.fail_frames_after(None);
        assert_empty_when_compacted(&pool);
        for size in sizes {
            pool.malloc(size, 0).unwrap();
        }
    }
}

#[test]
fn compaction_without_memory_keeps_every_object() {
    let pool = pool();
    let mut random = Random::new(3);
    let mut objects = Vec::new();
    for stamp in 0..6000 {
        let size = random.size();
        let handle = pool.malloc(size, 0).unwrap();
        let bytes = content(stamp, size as usize);
        pool.write(handle, &bytes);
        objects.push((handle, bytes));
    }
    let mut kept = Vec::new();
    for (handle, bytes) in objects {
        if random.below(2) == 0 {
            pool.free(handle);
        } else {
            kept.push((handle, bytes));
        }
    }
    for frames in [0, 1, 2, 5, 1000] {
        pool.fail_frames_after(Some(frames));
        pool.compact();
        pool.fail_frames_after(None);
        for (handle, bytes) in &kept {
            assert_eq!(pool.read(*handle).bytes(), &bytes[..]);
        }
    }
    assert!(pool.stats().waste_bytes() * 100 < pool.stats().payload_bytes, "the last one had all it needed");
    for (handle, _) in kept {
        pool.free(handle);
    }
    assert_empty_when_compacted(&pool);
}

#[test]
fn misuse_is_a_panic_that_names_the_error() {
    type Misuse = fn(&Pool, Handle);
    let cases: [(&str, Misuse); 5] = [
        ("freed handle", |pool, handle| {
            pool.free(handle);
            pool.read(handle);
        }),
        ("freed handle", |pool, handle| pool.free_bulk(&[handle, handle])),
        ("a handle of this pool", |pool, _| drop(pool.read(Handle::DANGLING))),
        ("being read", |pool, handle| {
            let _guard = pool.read(handle);
            pool.write(handle, &[1]);
        }),
        ("into an object of 100", |pool, handle| pool.write(handle, &[0; 101])),
    ];
    for (reason, misuse) in cases {
        let pool = pool();
        let handle = pool.malloc(100, 0).unwrap();
        let panic = catch_unwind(AssertUnwindSafe(|| misuse(&pool, handle))).unwrap_err();
        let formatted = panic.downcast_ref::<String>().map(String::as_str);
        let said = formatted.or(panic.downcast_ref::<&str>().copied()).unwrap();
        assert!(said.contains(reason), "{said}");
    }
}
