//! Frames: 64 KiB of address space each, one zspage in each.
//!
//! A zspage uses the first pages of its frame. Pages of a frame become resident when first written,
//! so a short chain costs address space and no memory, a partly filled zspage costs the pages it
//! has reached, and an object is always one contiguous piece across all page borders.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU8, AtomicUsize, Ordering};

use sys::PAGE_SIZE;

use crate::blocks;
use crate::entry::{Place, FRAME_LIMIT};
use crate::table::{Table, Zero};

/// Pages of a frame.
pub(crate) const FRAME_PAGES: usize = 16;
/// Bytes of a frame.
pub(crate) const FRAME_BYTES: usize = FRAME_PAGES * PAGE_SIZE;
/// Frames taken from the arena at once: 1 MiB.
pub(crate) const CHUNK_FRAMES: u32 = 16;

/// What a frame is used for, as kept in [`Frame::kind`].
pub(crate) mod kind {
    /// Free: holds no zspage.
    pub(crate) const FREE: u16 = 0;
    /// A zspage of objects of any size, back to back.
    pub(crate) const MIXED: u16 = 1;
    /// `CLASS + c`: a zspage of class `c`.
    pub(crate) const CLASS: u16 = 2;
}

/// The descriptor of a frame. Its fields belong to the lock of the list that the frame is on: the
/// class's for a zspage of a class, the shard's for an open mixed zspage, the supply's for a free
/// frame. They are atomics because statistics and compaction look at them without a lock; `live` of
/// a mixed zspage is counted down without one.
#[repr(C)]
pub(crate) struct Frame {
    /// Address of the first byte; 0 in a descriptor that was never used. Set once.
    base: AtomicUsize,
    /// Class zspage: objects in it. Mixed zspage: see [`crate::live`].
    pub(crate) live: AtomicU32,
    /// Class zspage: slots ever used, the ones behind are untouched. Mixed zspage: bytes ever used,
    /// once it is closed.
    pub(crate) used: AtomicU32,
    /// Links of the list that the frame is on, as frame number + 1; 0 ends the list.
    pub(crate) prev: AtomicU32,
    pub(crate) next: AtomicU32,
    /// See [`kind`].
    pub(crate) kind: AtomicU16,
    /// Class zspage: first freed slot + 1, 0 when there is none.
    pub(crate) freed: AtomicU16,
    /// Class zspage: the fullness group whose list it is on, or why it is on none.
    pub(crate) group: AtomicU8,
    /// Pages from the start that may be resident.
    pub(crate) resident: AtomicU8,
    /// Node that the zspage's objects belong to.
    pub(crate) node: AtomicU8,
    /// Node whose supply the frame goes back to.
    pub(crate) home: AtomicU8,
}

const _: () = assert!(size_of::<Frame>() == 32, "a page holds the descriptors of 8 MiB");

// SAFETY: all fields are atomic integers.
unsafe impl Zero for Frame {}

/// A short name for the relaxed loads and stores that the owner of a descriptor does.
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

/// All frames of a pool.
pub(crate) struct Frames {
    table: Table<Frame, 7>,
    /// Frames that exist: whole chunks.
    count: AtomicU32,
}

impl Frames {
    pub(crate) fn new() -> Self {
        Frames { table: Table::new(), count: AtomicU32::new(0) }
    }

    /// Frames that exist.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// The descriptor of a frame that exists.
    #[inline]
    pub(crate) fn get(&self, frame: u32) -> &Frame {
        self.table.get(frame).expect("a frame that exists")
    }

    /// Address of a place in a frame that exists.
    #[inline]
    pub(crate) fn address(&self, place: Place) -> *mut u8 {
        let base = self.get(place.frame).base.load(Ordering::Relaxed);
        debug_assert_ne!(base, 0);
        (base + usize::from(place.offset)) as *mut u8
    }

    /// Adds a chunk and returns its first frame; the others follow.
    ///
    /// # Errors
    /// ENOMEM when the arena is full or the pool has as many frames as words can name.
    pub(crate) fn add_chunk(&self, home: u8) -> io::Result<u32> {
        let at = blocks::take(CHUNK_FRAMES as usize * FRAME_BYTES)?;
        let give_back = || {
            // SAFETY: taken just now and not shared yet.
            unsafe { blocks::give_back(at, CHUNK_FRAMES as usize * FRAME_BYTES) };
        };
        // The number is taken only when descriptors for it exist, so a failure here leaves no gap.
        let mut first = self.count.load(Ordering::Acquire);
        loop {
            if first + CHUNK_FRAMES > FRAME_LIMIT {
                give_back();
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            // Chunks are aligned in the table, so a chunk's descriptors lie in one block.
            if let Err(error) = self.table.reach(first) {
                give_back();
                return Err(error);
            }
            let next = first + CHUNK_FRAMES;
            match self.count.compare_exchange(first, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => first = now,
            }
        }
        for index in 0..CHUNK_FRAMES {
            let frame = self.get(first + index);
            frame.home.set(home);
            frame.base.set(at.as_ptr() as usize + index as usize * FRAME_BYTES);
        }
        Ok(first)
    }

    /// Makes room for the descriptors of `count` frames.
    ///
    /// # Errors
    /// ENOMEM when there is none.
    pub(crate) fn reserve(&self, count: u32) -> io::Result<()> {
        self.table.reach_all(count.min(FRAME_LIMIT - 1))
    }

    /// Start of a frame's memory.
    pub(crate) fn base(&self, frame: u32) -> NonNull<u8> {
        let base = self.get(frame).base.load(Ordering::Relaxed);
        NonNull::new(base as *mut u8).expect("a frame that exists")
    }

    /// Bytes of descriptors.
    pub(crate) fn bytes(&self) -> usize {
        Table::<Frame, 7>::bytes_for(self.count())
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        for first in (0..self.count()).step_by(CHUNK_FRAMES as usize) {
            let base = self.base(first);
            // SAFETY: the chunk was taken in `add_chunk` with this length; the pool is gone, and
            // with it all borrows.
            unsafe { blocks::give_back(base, CHUNK_FRAMES as usize * FRAME_BYTES) };
        }
    }
}
