//! Free frames of one node, and the count of resident pages.
//!
//! Free frames keep their pages for the next zspages, up to a bound. Beyond it the supply gives the
//! oldest back to the system, neighbouring frames with one system call.

use std::sync::atomic::{AtomicUsize, Ordering};

use sys::{memory, PAGE_SIZE};

use crate::entry::FrameOffset;
use crate::faults::Faults;
use crate::frame::{kind, Field, Frames, CHUNK_FRAMES, FRAME_BYTES};
use crate::lock::Lock;

/// Default of the bytes kept in free frames: as much as one thread stores in some milliseconds.
/// Faulting a page in and giving it back costs 1.5 us (Zen 5 in a virtual machine), four times the
/// cost of its objects.
const CACHED_BYTES_MAX: usize = 8 << 20;
/// A small pool keeps at most 1/32, or 64 pages: the cache was a fifth of a pool of 9 MB, memory
/// that the program could use.
const CACHED_DIVISOR: usize = 32;
const CACHED_PAGES_MIN: usize = 64;
const DISCARD_FRAMES: usize = 16;

/// Free frames: a doubly linked list of those with pages, newest first, and a stack of bare ones.
#[derive(Default)]
struct Free {
    /// Frame number + 1.
    newest: u32,
    oldest: u32,
    /// Pages in the frames from `newest` to `oldest`.
    cached_pages: usize,
    /// Frame number + 1.
    bare: u32,
    count: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taker {
    /// New objects: they leave [`RESERVE_FRAMES`] for compaction when the arena is full.
    Allocation,
    /// Compaction, which gives more back than it takes.
    Compaction,
}

/// Frames that only compaction may take. They are not resident.
const RESERVE_FRAMES: usize = 2;

pub(crate) struct Supply {
    node: u8,
    bind: bool,
    free: Lock<Free>,
    cached_pages_max: AtomicUsize,
    /// Pages resident in zspages and free frames.
    pages: AtomicUsize,
    /// [`Free::cached_pages`], readable without the lock.
    cached_pages: AtomicUsize,
}

impl Supply {
    /// The supply of `node`; `bind` requests memory of that node from the system.
    pub(crate) fn new(node: u8, bind: bool) -> Self {
        let cached_pages_max = AtomicUsize::new(CACHED_BYTES_MAX / PAGE_SIZE);
        let (pages, cached_pages) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Supply { node, bind, free: Lock::default(), cached_pages_max, pages, cached_pages }
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    pub(crate) fn cached_pages(&self) -> usize {
        self.cached_pages.load(Ordering::Relaxed)
    }

    fn cached_pages_max(&self) -> usize {
        let share = (self.pages() / CACHED_DIVISOR).max(CACHED_PAGES_MIN);
        self.cached_pages_max.load(Ordering::Relaxed).min(share)
    }

    /// Free frames that allocations may take without more address space.
    pub(crate) fn free_frames(&self) -> usize {
        self.free.lock().count.saturating_sub(RESERVE_FRAMES)
    }

    /// Takes a frame, preferably one with pages.
    pub(crate) fn take(&self, frames: &Frames, taker: Taker, faults: &Faults) -> Option<u32> {
        if faults.frame_fails() {
            return None;
        }
        let reserve = if taker == Taker::Allocation { RESERVE_FRAMES } else { 0 };
        let mut free = self.free.lock();
        if free.count <= reserve {
            self.add_chunk(frames, &mut free)?;
        }
        let number = if free.newest != 0 {
            let number = free.newest - 1;
            self.unlink(frames, &mut free, number);
            number
        } else {
            let number = free.bare - 1;
            free.count -= 1;
            free.bare = frames.get(number).next.get();
            number
        };
        drop(free);
        let frame = frames.get(number);
        debug_assert_eq!(frame.kind.get(), kind::FREE);
        frame.live.set(0);
        frame.used.set(0);
        frame.freed.set(0);
        frame.prev.set(0);
        frame.next.set(0);
        Some(number)
    }

    fn add_chunk(&self, frames: &Frames, free: &mut Free) -> Option<()> {
        let first = frames.add_chunk(self.node).ok()?;
        if self.bind {
            // SAFETY: the memory of the chunk added above.
            unsafe {
                memory::prefer_node(frames.base(first), CHUNK_FRAMES as usize * FRAME_BYTES, self.node);
            }
        }
        for number in (first..first + CHUNK_FRAMES).rev() {
            frames.get(number).next.set(free.bare);
            free.bare = number + 1;
            free.count += 1;
        }
        Some(())
    }

    /// Populates the frame's bytes up to `end`, which the caller, its owner, is about to write.
    #[inline]
    pub(crate) fn reach(&self, frames: &Frames, number: u32, end: usize) {
        let frame = frames.get(number);
        let (before, now) = (usize::from(frame.resident.get()), end.div_ceil(PAGE_SIZE));
        if now > before {
            memory::populate(
                frames.base(number).as_ptr() as usize + before * PAGE_SIZE,
                (now - before) * PAGE_SIZE,
            );
            frame.resident.set(now as u8);
            self.pages.fetch_add(now - before, Ordering::Relaxed);
        }
    }

    pub(crate) fn release(&self, frames: &Frames, number: u32) {
        let frame = frames.get(number);
        debug_assert_ne!(frame.kind.get(), kind::FREE, "frame {number} released twice");
        debug_assert_eq!(frame.home.get(), self.node);
        frame.kind.set(kind::FREE);
        let mut free = self.free.lock();
        self.put(frames, &mut free, number);
        let max = self.cached_pages_max();
        if free.cached_pages > max {
            // Trims below the limit, so that a shrinking pool makes few calls.
            drop(free);
            self.trim(frames, max - max / 8);
        }
    }

    pub(crate) fn set_cached_pages_max(&self, pages: usize) {
        self.cached_pages_max.store(pages, Ordering::Relaxed);
    }

    fn put(&self, frames: &Frames, free: &mut Free, number: u32) {
        let frame = frames.get(number);
        free.count += 1;
        if frame.resident.get() == 0 {
            frame.next.set(free.bare);
            free.bare = number + 1;
            return;
        }
        frame.prev.set(0);
        frame.next.set(free.newest);
        match free.newest {
            0 => free.oldest = number + 1,
            newest => frames.get(newest - 1).prev.set(number + 1),
        }
        free.newest = number + 1;
        free.cached_pages += usize::from(frame.resident.get());
        self.cached_pages.store(free.cached_pages, Ordering::Relaxed);
    }

    /// Gives pages of free frames back to the system, oldest first, until at most `keep` remain.
    pub(crate) fn trim(&self, frames: &Frames, keep: usize) {
        loop {
            let mut batch = [0u32; DISCARD_FRAMES];
            let mut count = 0;
            let mut free = self.free.lock();
            while count < DISCARD_FRAMES && free.cached_pages > keep {
                let number = free.oldest - 1;
                self.unlink(frames, &mut free, number);
                batch[count] = number;
                count += 1;
            }
            drop(free);
            if count == 0 {
                return;
            }
            let batch = &mut batch[..count];
            batch.sort_unstable();
            self.discard(frames, batch);
            let mut free = self.free.lock();
            for &number in &*batch {
                self.put(frames, &mut free, number);
            }
        }
    }

    /// Makes the frames of the sorted `batch` bare. This thread owns them.
    fn discard(&self, frames: &Frames, batch: &[u32]) {
        let mut pages = 0;
        let mut rest = batch;
        while let Some((&first, _)) = rest.split_first() {
            // Consecutive frames of a chunk are adjacent; untouched pages between them cost
            // nothing.
            let neighbours = rest.iter().zip(first..).take_while(|&(&number, expected)| {
                number == expected && number / CHUNK_FRAMES == first / CHUNK_FRAMES
            });
            let run = neighbours.count();
            let last = frames.get(rest[run - 1]);
            let len = (run - 1) * FRAME_BYTES + usize::from(last.resident.get()) * PAGE_SIZE;
            // SAFETY: free frames of this pool hold no objects, and no list names them now.
            unsafe { memory::discard(frames.base(first), len) };
            for &number in &rest[..run] {
                let frame = frames.get(number);
                pages += usize::from(frame.resident.get());
                frame.resident.set(0);
            }
            rest = &rest[run..];
        }
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Gives back pages behind the last used byte of a zspage in use. The caller owns the frame.
    pub(crate) fn trim_tail(&self, frames: &Frames, number: u32, used: usize) {
        let frame = frames.get(number);
        let (keep, resident) = (used.div_ceil(PAGE_SIZE), usize::from(frame.resident.get()));
        if keep < resident {
            let start = frames.address(FrameOffset { frame: number, offset: (keep * PAGE_SIZE) as u16 });
            let start = std::ptr::NonNull::new(start).expect("inside a frame");
            // SAFETY: pages of the caller's frame that hold no object.
            unsafe { memory::discard(start, (resident - keep) * PAGE_SIZE) };
            frame.resident.set(keep as u8);
            self.pages.fetch_sub(resident - keep, Ordering::Relaxed);
        }
    }

    fn unlink(&self, frames: &Frames, free: &mut Free, number: u32) {
        let frame = frames.get(number);
        let (prev, next) = (frame.prev.get(), frame.next.get());
        match prev {
            0 => free.newest = next,
            prev => frames.get(prev - 1).next.set(next),
        }
        match next {
            0 => free.oldest = prev,
            next => frames.get(next - 1).prev.set(prev),
        }
        free.cached_pages -= usize::from(frame.resident.get());
        self.cached_pages.store(free.cached_pages, Ordering::Relaxed);
        free.count -= 1;
    }
}
