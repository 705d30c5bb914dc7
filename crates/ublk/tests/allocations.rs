//! A server that is swapped on must not ask for memory: batches are served without an allocation.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use device::{Config, Device, Error};
use support::{Queue, REQUEST_BYTES};
use ublk::{Batch, Operation, Request};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does all of it; counting allocates nothing.
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

#[test]
fn batches_are_served_without_an_allocation() {
    const DEPTH: u16 = 32;
    let config = Config {
        size_bytes: 8 << 20,
        ram_bytes: Some(24 << 20),
        compressor: "lz4".into(),
        queues: 1,
        is_locked: true,
        ..Config::default()
    };
    let device = match Device::new(config) {
        Ok(device) => device,
        Err(error @ Error::Lock { .. }) => {
            return testkit::skip!("mlock", "{error}");
        }
        Err(error) => panic!("{error}"),
    };
    let mut batch = Batch::new(DEPTH, REQUEST_BYTES, true).unwrap();
    let mut queue = Queue::filled(DEPTH.into());
    // The pool makes its one group at the first write: mkswap's, or mkfs's.
    device.write(0, &[1; 4096]).unwrap();
    let before = COUNT.get();
    for turn in 0..64u64 {
        queue.results.fill(None);
        queue.ended.clear();
        queue.told.clear();
        let kinds = [
            Operation::Write { is_durable: true },
            Operation::Read,
            Operation::Discard,
            Operation::WriteZeroes,
        ];
        for tag in 0..DEPTH {
            let at = (turn * 64 + u64::from(tag) * 3) % 2000 * 4096;
            let operation = kinds[usize::from(tag) / 4 % (1 + turn as usize % 4)];
            batch.push(Request { tag, operation, at, len: 4096 });
        }
        batch.serve(&device, &mut queue);
        assert!(queue.results.iter().all(|result| result.is_some_and(|result| result >= 0)));
    }
    assert_eq!(COUNT.get(), before);
}
