//! The Rust heap of the preload object, inside the reserved arena.
//!
//! The agent cannot use the program's heap: that heap is paged out, threads that wait for this
//! pager hold its locks, and fork() resets it at its own times. The agent allocates little, and
//! only during setup, so the design is the plainest that works: power-of-two classes with free
//! lists, larger blocks as runs of pages.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::AtomicU32;

use sys::{arena, futex, PAGE_SIZE};

use crate::broken;

const CLASS_MIN: usize = 16;
const CLASSES: usize = 12; // 16 B to 32 KiB
const CLASS_MAX: usize = CLASS_MIN << (CLASSES - 1);
const CHUNK: usize = 256 * 1024;
const LARGE_MAX: usize = 64;

struct State {
    free: [*mut u8; CLASSES],
    chunk: usize,
    chunk_end: usize,
    /// Freed large blocks, reused for requests of the same size.
    large: [(usize, usize); LARGE_MAX],
}

pub struct Arena {
    lock: AtomicU32,
    state: UnsafeCell<State>,
}

// SAFETY: the state is accessed only under the lock.
unsafe impl Sync for Arena {}

impl Arena {
    pub const fn new() -> Self {
        let state = State { free: [null_mut(); CLASSES], chunk: 0, chunk_end: 0, large: [(0, 0); LARGE_MAX] };
        Arena { lock: AtomicU32::new(0), state: UnsafeCell::new(state) }
    }

    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        futex::lock_bits(&self.lock);
        // SAFETY: the lock is held.
        let result = act(unsafe { &mut *self.state.get() });
        futex::unlock_bits(&self.lock);
        result
    }

    /// A block, and whether it is zeroed.
    fn take(&self, layout: Layout) -> (*mut u8, bool) {
        let (at, is_zero) = match class_of(layout) {
            Some(class) => self.with(|state| state.small(class)),
            None => (self.with(|state| state.big(layout)), true),
        };
        if at.is_null() {
            broken::note_refused(layout.size());
        }
        (at, is_zero)
    }
}

fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(CLASS_MIN).next_power_of_two();
    (size <= CLASS_MAX).then(|| (size / CLASS_MIN).trailing_zeros() as usize)
}

impl State {
    /// A block of a class, and whether it is unused and therefore zeroed.
    fn small(&mut self, class: usize) -> (*mut u8, bool) {
        let head = self.free[class];
        if !head.is_null() {
            // SAFETY: a free block's first word links to the next.
            self.free[class] = unsafe { head.cast::<*mut u8>().read() };
            return (head, false);
        }
        let size = CLASS_MIN << class;
        let at = self.chunk.next_multiple_of(size);
        if at + size > self.chunk_end {
            let Ok(chunk) = arena::take(CHUNK, PAGE_SIZE) else { return (null_mut(), false) };
            self.chunk = chunk.as_ptr() as usize;
            self.chunk_end = self.chunk + CHUNK;
            return self.small(class);
        }
        self.chunk = at + size;
        (at as *mut u8, true)
    }

    fn big(&mut self, layout: Layout) -> *mut u8 {
        let len = layout.size().next_multiple_of(PAGE_SIZE);
        let fits = |block: &&mut (usize, usize)| block.1 == len && block.0.is_multiple_of(layout.align());
        if let Some(block) = self.large.iter_mut().find(fits) {
            let at = block.0;
            *block = (0, 0);
            return at as *mut u8;
        }
        arena::take(len, layout.align()).map_or(null_mut(), NonNull::as_ptr)
    }
}

// SAFETY: blocks are as large and as aligned as the layout, handed out once, never unmapped.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout).0
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (at, is_zero) = self.take(layout);
        // Fresh pages of the arena are zero, and large tables must stay untouched.
        if !at.is_null() && !is_zero {
            // SAFETY: just allocated, at least `layout` long.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) => self.with(|state| {
                // SAFETY: the block is free now and holds at least a word.
                unsafe { at.cast::<*mut u8>().write(state.free[class]) };
                state.free[class] = at;
            }),
            None => {
                let len = layout.size().next_multiple_of(PAGE_SIZE);
                // SAFETY: whole pages of a freed large block; they read as zeroes again.
                unsafe { sys::memory::discard(NonNull::new_unchecked(at), len) };
                self.with(|state| {
                    if let Some(block) = state.large.iter_mut().find(|block| block.1 == 0) {
                        *block = (at as usize, len);
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_distinct_and_reused() {
        let arena = Arena::new();
        let mut taken = Vec::new();
        for size in [1, 16, 17, 100, 4096, 32 * 1024, 32 * 1024 + 1, 300_000] {
            let layout = Layout::from_size_align(size, 64.min(size.next_power_of_two())).unwrap();
            // SAFETY: a valid layout; writes stay within the block, which is freed with its layout.
            unsafe {
                let at = arena.alloc_zeroed(layout);
                assert!(!at.is_null() && (at as usize).is_multiple_of(layout.align()));
                assert!((0..size).all(|index| *at.add(index) == 0), "zeroed");
                at.write_bytes(0xa5, size);
                taken.push((at, layout));
            }
        }
        for pair in &taken {
            for other in &taken {
                let (a, b) = (pair.0 as usize, other.0 as usize);
                assert!(a == b || a + pair.1.size() <= b || b + other.1.size() <= a, "blocks do not overlap");
            }
        }
        for (at, layout) in &taken {
            // SAFETY: allocated above with this layout; the next allocation may reuse the block.
            unsafe {
                arena.dealloc(*at, *layout);
                let again = arena.alloc_zeroed(*layout);
                assert_eq!(again, *at);
                assert!((0..layout.size()).all(|index| *again.add(index) == 0), "zeroed again");
            }
        }
    }
}
