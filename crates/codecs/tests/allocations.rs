//! Requests allocate nothing; contexts do so in advance. Alone in its file: its allocator counts.

mod pages;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use acomp::{
    CompressRequest, DecompressRequest, Object, Page, PromoteRequest, Registry, UnitResult, MAX_BATCH,
    PAGE_SIZE,
};

struct Counting;

thread_local! {
    /// Per thread: the test runner's thread may allocate at any time.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards every call to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; `place` is the system allocator's.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Compresses and decompresses all units in the caller's buffers. Returns the allocations.
fn round(context: &mut dyn acomp::Context, pages: &[&Page], unit_size: usize, space: &mut [u8]) -> u64 {
    let units = (pages.len() * PAGE_SIZE).div_ceil(unit_size);
    assert!(units <= MAX_BATCH);
    let (made, back) = space.split_at_mut(MAX_BATCH * unit_size);
    let mut results: [UnitResult; MAX_BATCH] = [Ok(0); MAX_BATCH];
    let before = ALLOCATIONS.get();
    {
        let mut rooms = made.chunks_mut(unit_size);
        let mut outputs: [&mut [u8]; MAX_BATCH] =
            std::array::from_fn(|_| rooms.next().expect("a room a unit"));
        context.compress(&mut CompressRequest {
            pages,
            unit_size,
            outputs: &mut outputs[..units],
            results: &mut results[..units],
        });
    }
    let mut objects = [Object::default(); MAX_BATCH];
    let mut outputs: [&mut [u8]; MAX_BATCH] = std::array::from_fn(|_| &mut [][..]);
    let mut rooms = back.chunks_mut(unit_size);
    let mut count = 0;
    for (object, result) in made.chunks(unit_size).zip(&results[..units]) {
        if let Ok(len) = result {
            objects[count] = Object::whole(&object[..*len]);
            outputs[count] = rooms.next().expect("a room a unit");
            count += 1;
        }
    }
    let mut results: [UnitResult; MAX_BATCH] = [Ok(0); MAX_BATCH];
    if count > 0 {
        context.decompress(&mut DecompressRequest {
            objects: &objects[..count],
            outputs: &mut outputs[..count],
            results: &mut results[..count],
        });
    }
    let mut promoted: [UnitResult; MAX_BATCH] = [Ok(0); MAX_BATCH];
    if count > 0 && unit_size == PAGE_SIZE {
        context.promote(&mut PromoteRequest {
            objects: &objects[..count],
            outputs: &mut outputs[..count],
            results: &mut promoted[..count],
        });
    }
    let allocated = ALLOCATIONS.get() - before;
    assert!(results[..count].iter().all(|result| *result == Ok(unit_size)));
    allocated
}

#[test]
fn requests_allocate_nothing() {
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    let names = ["lz4", "lz4:4", "zstd:1", "zstd:-3", "deflate", "none", "t16", "auto", "t16h", "auto-t16h"];
    let mut space = vec![0; 2 * MAX_BATCH * 4 * PAGE_SIZE];
    for name in names {
        for unit_pages in [1, 4] {
            let unit_size = unit_pages * PAGE_SIZE;
            let mut context =
                registry.find(name).expect(name).context_for(unit_size).expect("memory for a context");
            for class in pages::CLASSES {
                let pages = pages::make(class, MAX_BATCH * unit_pages);
                let refs: Vec<&Page> = pages.iter().collect();
                let allocated = round(context.as_mut(), &refs, unit_size, &mut space);
                assert_eq!(allocated, 0, "{name}, units of {unit_pages} pages, {}", class.0);
            }
        }
    }
}
