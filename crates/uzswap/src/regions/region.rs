//! A region: memory that is usable whether or not it is resident.

use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use bytemuck::Pod;
use pager::BLOCK_BYTES;
use sys::memory;

use super::space::{Space, SpaceError};
use crate::PAGE_SIZE;

/// Bytes copied at a time when a region moves to grow.
const COPY_BYTES: usize = 1 << 20;

/// The coming use of a part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// It will be read soon, in order: the calling thread brings it in now. For parts much smaller
    /// than the budget.
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
            // The control thread sleeps long while no region exists.
            space.inner.mailbox.ring();
        }
        Ok(Region { start, len, room, space })
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether its length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its start: a multiple of 64 KiB.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Its start, for writing. Threads must not write where others read.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The region as numbers, or as other plain data, without a partial last one.
    ///
    /// # Panics
    /// If `T` has no size, or must be aligned to more than 64 KiB.
    pub fn as_slice_of<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self[..self.len / size_of::<T>() * size_of::<T>()])
    }

    /// [`Region::as_slice_of`], for writing.
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

    /// Zeroes a part. Its whole pages no longer take memory, resident or compressed.
    ///
    /// # Panics
    /// If the range is not inside the region.
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

    /// Announces the use of a part of the region. Changes no byte.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn advise(&self, range: impl RangeBounds<usize>, advice: Advice) {
        let (start, end) = self.bytes_of(range);
        let first = self.start.as_ptr() as usize + (start & !(PAGE_SIZE - 1));
        let end = (self.start.as_ptr() as usize + end).next_multiple_of(PAGE_SIZE);
        match advice {
            Advice::WillNeed if start < end => memory::fetch(first, end - first),
            Advice::WillNeed => {}
        }
    }

    /// Makes the region longer, by zeroes, or shorter. It moves if it cannot stay in place, which
    /// takes as long as copying it and invalidates old pointers to it.
    ///
    /// # Errors
    /// As [`Space::region`]; the region is then unchanged.
    pub fn resize(&mut self, len: usize) -> Result<(), SpaceError> {
        let room = room_for(len).ok_or(SpaceError::Full(len))?;
        if len < self.len {
            // Bytes beyond the end are always zeroes.
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

    /// Moves to a place with room for `len`, more than before. Copied parts are discarded, so that
    /// they never exist twice.
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

    /// Releases the memory from Rust's ownership: its address and its bytes of room.
    /// [`Region::from_raw`] takes it back.
    pub fn into_raw(self) -> (NonNull<u8>, usize) {
        let parts = (self.start, self.len);
        std::mem::forget(self);
        parts
    }

    /// A region released by [`Region::into_raw`].
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
        // SAFETY: `len` bytes of memory that is this region's alone, initially zero; pages come and
        // go behind them, bytes do not.
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
