//! A region: memory that is there whether or not it is resident.

use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use bytemuck::Pod;
use pager::BLOCK_BYTES;
use sys::memory;

use super::space::{Space, SpaceError};
use crate::PAGE_SIZE;

/// Bytes copied at a time when a region has to move to grow.
const COPY_BYTES: usize = 1 << 20;

/// What is going to happen to a part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// It will be read soon, in order: brought in now, by the calling thread. For parts much
    /// smaller than the budget.
    WillNeed,
}

/// Zeroed memory of the requested size, independent of the budget. Use it as a slice of bytes, as a
/// slice of numbers, or by its pointer. Dropping it gives the memory back.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    /// Bytes of address space, whole blocks.
    room: usize,
    space: Space,
}

// SAFETY: a region is memory of its own, like a vector of bytes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

fn room_for(len: usize) -> Option<usize> {
    len.max(1).checked_next_multiple_of(BLOCK_BYTES)
}

impl Region {
    pub(super) fn new(space: Space, len: usize) -> Result<Self, SpaceError> {
        let room = room_for(len).ok_or(SpaceError::Full(len))?;
        let start = space.inner.take(room, None)?;
        space.inner.counters.region_bytes.fetch_add(len, Ordering::Relaxed);
        if space.inner.counters.regions.fetch_add(1, Ordering::Relaxed) == 0 {
            // The control thread sleeps long while there is no region.
            space.inner.mailbox.ring();
        }
        Ok(Region { start, len, room, space })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins: a multiple of 64 KiB.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Where it begins, for writing; threads see to it themselves that they do not write where
    /// others read.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The region as numbers, or as other plain data; what is left behind the last whole one is
    /// left out.
    ///
    /// # Panics
    /// When `T` has no size, or must be aligned to more than 64 KiB.
    pub fn as_slice_of<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self[..self.len / size_of::<T>() * size_of::<T>()])
    }

    /// The same, for writing.
    ///
    /// # Panics
    /// As [`Region::as_slice_of`].
    pub fn as_mut_slice_of<T: Pod>(&mut self) -> &mut [T] {
        let whole = self.len / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice_mut(&mut self[..whole])
    }

    fn bytes_of(&self, range: impl RangeBounds<usize>) -> (usize, usize) {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        assert!(start <= end && end <= self.len, "{start}..{end} of a region of {} bytes", self.len);
        (start, end)
    }

    /// Makes a part zeroes. Its whole pages take no memory any more, resident or compressed.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn discard(&mut self, range: impl RangeBounds<usize>) {
        let (start, end) = self.bytes_of(range);
        let (first, last) = (start.next_multiple_of(PAGE_SIZE), end & !(PAGE_SIZE - 1));
        if first >= last {
            self[start..end].fill(0);
            return;
        }
        self[start..first].fill(0);
        self[last..end].fill(0);
        // SAFETY: whole pages of this region, which is borrowed for writing.
        unsafe { memory::discard(self.start.add(first), last - first) };
    }

    /// Says what is going to happen to a part of the region. Changes no byte.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn advise(&self, range: impl RangeBounds<usize>, advice: Advice) {
        let (start, end) = self.bytes_of(range);
        let first = self.start.as_ptr() as usize + (start & !(PAGE_SIZE - 1));
        let end = (self.start.as_ptr() as usize + end).next_multiple_of(PAGE_SIZE);
        match advice {
            Advice::WillNeed if start < end => memory::fetch(first, end - first),
            Advice::WillNeed => {}
        }
    }

    /// Makes the region longer, by zeroes, or shorter. It stays where it is if it can; else it
    /// moves, which takes as long as copying it, and old pointers to it are not valid any more.
    ///
    /// # Errors
    /// As [`Space::region`]; the region is as it was then.
    pub fn resize(&mut self, len: usize) -> Result<(), SpaceError> {
        let room = room_for(len).ok_or(SpaceError::Full(len))?;
        if len < self.len {
            // What is beyond the end is always zeroes.
            self.discard(len..);
        }
        if room < self.room {
            // SAFETY: the blocks behind the new end, which cannot be reached from now on.
            unsafe { self.space.inner.give(self.start.add(room), self.room - room) };
            self.room = room;
        } else if room > self.room {
            let end = self.start.as_ptr() as usize + self.room;
            match self.space.inner.take(room - self.room, Some(end)) {
                Ok(_) => self.room = room,
                Err(SpaceError::Full(_)) => return self.move_to(len),
                Err(error) => return Err(error),
            }
        }
        self.set_len(len);
        Ok(())
    }

    fn set_len(&mut self, len: usize) {
        let total = &self.space.inner.counters.region_bytes;
        total.fetch_add(len.wrapping_sub(self.len), Ordering::Relaxed);
        self.len = len;
    }

    /// Moves to where there is room for `len`, more than before. What is copied is discarded, so
    /// that there are never two of it.
    fn move_to(&mut self, len: usize) -> Result<(), SpaceError> {
        let mut target = self.space.region(len)?;
        let mut at = 0;
        while at < self.len {
            let end = (at + COPY_BYTES).min(self.len);
            target[at..end].copy_from_slice(&self[at..end]);
            self.discard(at..end);
            at = end;
        }
        *self = target;
        Ok(())
    }

    /// Gives the memory out of the hands of Rust: its address and the bytes of room it has.
    /// [`Region::from_raw`] takes it back.
    pub fn into_raw(self) -> (NonNull<u8>, usize) {
        let parts = (self.start, self.len);
        std::mem::forget(self);
        parts
    }

    /// A region that was given out of hand.
    ///
    /// # Safety
    /// `start` and `len` are from [`Region::into_raw`] of a region of `space`, in this process, and
    /// the memory is not used otherwise.
    pub unsafe fn from_raw(space: Space, start: NonNull<u8>, len: usize) -> Self {
        Region { start, len, room: room_for(len).expect("a region's length"), space }
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes of memory that is this region's alone, zeroes at first; pages come
        // and go behind them, bytes do not.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.set_len(0);
        self.space.inner.counters.regions.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the region's own room.
        unsafe { self.space.inner.give(self.start, self.room) };
    }
}
