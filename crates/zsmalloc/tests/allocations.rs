//! A pool with reserved room allocates no memory beside its arena: a device used for swap could
//! wait for itself.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::Random;
use zsmalloc::{Config, Pool};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does the work; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations while other sizes replace 20,000 objects, which makes the pool tidy.
fn allocations(has_room: bool) -> u64 {
    let pool = Pool::new(&Config::default()).expect("memory");
    if has_room {
        pool.make_room(40_000, 64 << 20).expect("memory");
    }
    let mut random = Random::new(7);
    let mut live: Vec<_> =
        (0..20_000).map(|_| pool.malloc(900 + random.below(300) as u32, 0).expect("memory")).collect();
    let before = COUNT.get();
    for _ in 0..40_000 {
        let which = random.below(live.len());
        let handle = pool.malloc(300 + random.below(300) as u32, 0).expect("memory");
        pool.free(std::mem::replace(&mut live[which], handle));
    }
    let count = COUNT.get() - before;
    let stats = pool.stats();
    let waste = stats.waste_bytes() * 100 / stats.payload_bytes;
    assert!(waste < 30, "tidied: {waste} % waste");
    count
}

#[test]
fn tidying_asks_for_nothing_where_room_was_made() {
    assert_eq!(allocations(true), 0);
    assert!(allocations(false) > 0, "without room, tidying allocates");
}
