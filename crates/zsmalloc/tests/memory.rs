//! Memory returns to the system. Alone in its file because it reads the process's resident size.

mod common;

use common::Random;
use zsmalloc::{Config, Handle, Pool};

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn freed_memory_goes_back_and_counted_memory_is_resident() {
    const SLACK: usize = 2 << 20;
    let pool = Pool::new(&Config::default()).unwrap();
    let before = resident();
    let mut random = Random::new(5);
    let bytes = vec![0x5a; 4096];
    let mut handles: Vec<Handle> = Vec::new();
    for _ in 0..80_000 {
        let size = random.size();
        let handle = pool.malloc(size, 0).unwrap();
        pool.write(handle, &bytes[..size as usize]);
        handles.push(handle);
    }
    let counted = pool.bytes() + pool.metadata_bytes();
    let grown = resident() - before;
    assert!(counted > 80 << 20);
    assert!(grown.abs_diff(counted) < SLACK, "{counted} bytes counted, {grown} resident");

    // Half of the objects: compaction gives back half of the memory.
    for index in 0..handles.len() / 2 {
        let other = index + random.below(handles.len() - index);
        handles.swap(index, other);
    }
    let rest = handles.split_off(handles.len() / 2);
    pool.free_bulk(&handles);
    let pages = pool.compact();
    let counted = pool.bytes() + pool.metadata_bytes();
    let grown = resident() - before;
    assert!(pages * 4096 > 40 << 20);
    assert!(grown.abs_diff(counted) < SLACK, "{counted} bytes counted, {grown} resident");
    assert!(pool.stats().waste_bytes() * 100 < pool.stats().payload_bytes);

    // All objects: all but the cache returns at once, the cache on request.
    pool.free_bulk(&rest);
    assert!(pool.bytes() <= 10 << 20, "{} bytes kept", pool.bytes());
    pool.set_cached_bytes_max(1 << 20);
    pool.compact();
    assert_eq!(pool.bytes(), 0);
    assert!(resident().abs_diff(before + pool.metadata_bytes()) < SLACK);

    // The bound holds for later frees.
    let handles: Vec<Handle> = (0..20_000).map(|_| pool.malloc(1000, 0).unwrap()).collect();
    pool.free_bulk(&handles);
    assert!(pool.stats().cached_bytes <= 1 << 20);
}
