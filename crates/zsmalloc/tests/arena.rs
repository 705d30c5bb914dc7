//! In an arena of its own, as inside a paged program: all memory comes from the arena's range, the
//! range ends, and successive pools do not use it up. One test, because a process has one arena.

mod common;

use common::Random;
use zsmalloc::{AllocError, Config, Handle, Pool};

#[test]
fn a_full_house_is_no_memory_and_nothing_worse() {
    sys::arena::open(24 << 20).unwrap();
    let arena = sys::arena::range();
    let mut random = Random::new(9);
    let mut most = 0;
    for round in 0..20 {
        let pool = Pool::new(&Config::default()).unwrap();
        let mut held = Vec::new();
        let error = loop {
            let sizes: Vec<u32> = (0..8).map(|_| random.size()).collect();
            let mut handles = [Handle::DANGLING; 8];
            match pool.malloc_bulk(&sizes, 0, &mut handles) {
                Ok(()) => held.extend(handles),
                Err(error) => break error,
            }
        };
        assert_eq!(error, AllocError::NoMemory);
        let payload = pool.stats().payload_bytes as usize;
        if round == 0 {
            most = payload;
            // Short chains leave address space behind them unused.
            assert!(payload > 18 << 20, "{payload} bytes in an arena of 24 MiB");
        }
        assert!(payload > most - (1 << 20), "round {round} had {payload} bytes, the first {most}");
        for &handle in &held {
            let guard = pool.read(handle);
            let bytes = guard.bytes().as_ptr_range();
            assert!(arena.contains(&(bytes.start as usize)) && bytes.end as usize <= arena.end);
        }
        // A full pool can still free, compact and allocate.
        for &handle in held.iter().step_by(2) {
            pool.free(handle);
        }
        assert!(pool.compact() > 0);
        for _ in 0..1000 {
            pool.malloc(1000, 0).unwrap();
        }
    }
}
