//! Frames: 64 KiB of address space each, one zspage in each.
//!
//! A zspage uses the first pages of its frame. Pages become resident when first written, so a short
//! chain costs address space but no memory, a partly filled zspage costs the pages it has reached,
//! and an object is always contiguous across page borders.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU8, AtomicUsize, Ordering};

use sys::{memory, PAGE_SIZE};

use crate::blocks::Block;
use crate::entry::{FrameOffset, FRAME_LIMIT};
use crate::table::{Table, Zero};

pub(crate) const FRAME_PAGES: usize = 16;
pub(crate) const FRAME_BYTES: usize = FRAME_PAGES * PAGE_SIZE;
/// Frames taken from the arena at once: 1 MiB.
pub(crate) const CHUNK_FRAMES: u32 = 16;
pub(crate) const CHUNK_BYTES: usize = CHUNK_FRAMES as usize * FRAME_BYTES;

/// Values of [`Frame::kind`].
pub(crate) mod kind {
    pub(crate) const FREE: u16 = 0;
    /// A zspage of objects of any size, back to back.
    pub(crate) const MIXED: u16 = 1;
    /// A part of a segment, or a frame kept for one.
    pub(crate) const SEGMENT: u16 = 2;
    /// `CLASS + c`: a zspage of class `c`.
    pub(crate) const CLASS: u16 = 3;
}

/// The descriptor of a frame. The lock of the frame's list guards its fields: the class's for a
/// zspage of a class, the shard's for an open mixed zspage, the supply's for a free frame. The
/// fields are atomics because statistics and compaction read them without a lock, and frees count
/// down `live` of a mixed zspage without one.
#[repr(C)]
pub(crate) struct Frame {
    /// Address of the first byte; 0 in a descriptor that was never used. Set once.
    base: AtomicUsize,
    /// Class zspage: objects in it. Mixed zspage: see [`crate::live`]. Segment: bytes of this
    /// pool's objects that begin in the frame.
    pub(crate) live: AtomicU32,
    /// Class zspage: slots ever used; later ones are untouched. Closed mixed zspage: bytes ever
    /// used. Segment: its rank.
    pub(crate) used: AtomicU32,
    /// Links of the frame's list, as frame number + 1; 0 ends the list.
    pub(crate) prev: AtomicU32,
    pub(crate) next: AtomicU32,
    pub(crate) kind: AtomicU16,
    /// Class zspage: first freed slot + 1, 0 when there is none.
    pub(crate) freed: AtomicU16,
    /// Class zspage: its fullness group, or why it is on no list. Mixed zspage: 0, or inherited.
    pub(crate) group: AtomicU8,
    /// Pages from the start that may be resident.
    pub(crate) resident: AtomicU8,
    /// Node of the zspage's objects.
    pub(crate) node: AtomicU8,
    /// Node whose supply owns the frame.
    pub(crate) home: AtomicU8,
}

const _: () = assert!(size_of::<Frame>() == 32, "a page holds the descriptors of 8 MiB");

// SAFETY: all fields are atomic integers.
unsafe impl Zero for Frame {}

/// Short names for the relaxed loads and stores by the owner of a descriptor.
pub(crate) trait Field {
    type Value;
    fn get(&self) -> Self::Value;
    fn set(&self, value: Self::Value);
}

macro_rules! field {
    ($atomic:ty, $value:ty) => {
        impl Field for $atomic {
            type Value = $value;
            #[inline]
            fn get(&self) -> $value {
                self.load(Ordering::Relaxed)
            }
            #[inline]
            fn set(&self, value: $value) {
                self.store(value, Ordering::Relaxed);
            }
        }
    };
}
field!(AtomicU8, u8);
field!(AtomicU16, u16);
field!(AtomicU32, u32);
field!(AtomicUsize, usize);

pub(crate) struct Frames {
    table: Table<Frame, 7>,
    /// Existing frames: whole chunks.
    count: AtomicU32,
}

impl Frames {
    pub(crate) fn new() -> Self {
        Frames { table: Table::new(), count: AtomicU32::new(0) }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn get(&self, frame: u32) -> &Frame {
        self.table.get(frame).expect("a frame that exists")
    }

    #[inline]
    pub(crate) fn address(&self, place: FrameOffset) -> *mut u8 {
        let base = self.get(place.frame).base.load(Ordering::Relaxed);
        debug_assert_ne!(base, 0);
        (base + usize::from(place.offset)) as *mut u8
    }

    /// Adds a chunk and returns its first frame; the others follow. Fails with ENOMEM if the arena
    /// is full or the pool has as many frames as an entry can name.
    pub(crate) fn add_chunk(&self, home: u8) -> io::Result<u32> {
        let chunk = Block::take(CHUNK_BYTES)?;
        // Descriptors come first, so that a failure leaves no gap in the numbers.
        let mut first = self.count.load(Ordering::Acquire);
        loop {
            if first + CHUNK_FRAMES > FRAME_LIMIT {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            // Chunks are aligned in the table, so a chunk's descriptors lie in one block.
            self.table.reach(first)?;
            let next = first + CHUNK_FRAMES;
            match self.count.compare_exchange(first, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => first = now,
            }
        }
        for index in 0..CHUNK_FRAMES {
            let frame = self.get(first + index);
            frame.home.set(home);
            frame.base.set(chunk.at().as_ptr() as usize + index as usize * FRAME_BYTES);
        }
        chunk.leave();
        Ok(first)
    }

    /// Makes room for the descriptors of `count` frames, or fails with ENOMEM.
    pub(crate) fn reserve(&self, count: u32) -> io::Result<()> {
        self.table.reach_all(count.min(FRAME_LIMIT - 1))
    }

    pub(crate) fn base(&self, frame: u32) -> NonNull<u8> {
        let base = self.get(frame).base.load(Ordering::Relaxed);
        NonNull::new(base as *mut u8).expect("a frame that exists")
    }

    pub(crate) fn bytes(&self) -> usize {
        Table::<Frame, 7>::bytes_for(self.count())
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        for first in (0..self.count()).step_by(CHUNK_FRAMES as usize) {
            let base = self.base(first);
            if self.get(first).kind.get() == kind::SEGMENT {
                // SAFETY: no object is left in the chunk, which the pool owns.
                let emptied = unsafe { memory::empty_again(base, CHUNK_BYTES) };
                if emptied.is_err() {
                    // The address space stays with the segment.
                    continue;
                }
            }
            // SAFETY: `add_chunk` took the chunk with this length; no borrow outlives the pool.
            drop(unsafe { Block::of(base, CHUNK_BYTES) });
        }
    }
}
