//! Transfer buffers: aligned as disks require, from the global allocator, reused.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Mutex;

use crate::place::BLOCK_BYTES;
use crate::sync::lock;

/// Bytes whose address is a multiple of 4096.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory.
unsafe impl Send for Buffer {}
// SAFETY: shared references only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of zeroes.
    ///
    /// # Panics
    /// If the length is 0 or not a multiple of 4096.
    pub fn new(len: usize) -> Self {
        let layout = Buffer::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Buffer { start, len }
    }

    fn layout(len: usize) -> Layout {
        assert!(len > 0 && len.is_multiple_of(BLOCK_BYTES));
        Layout::from_size_align(len, BLOCK_BYTES).expect("a length that fits into memory")
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes were allocated and zeroed, and this buffer owns them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), Buffer::layout(self.len)) };
    }
}

/// Sizes that are kept, and how many of each. Most reads take a block or a leaf's objects; a pack
/// is the largest, and this many are in flight and being filled. A new buffer of that size costs as
/// much as writing it: its memory comes page by page from the system.
const KEPT: [(usize, usize); 3] = [(16 << 10, 16), (80 << 10, 8), (256 << 10, 10)];

#[derive(Default)]
pub(crate) struct Buffers {
    kept: [Mutex<Vec<Buffer>>; KEPT.len()],
}

impl Buffers {
    /// A buffer of at least `len` bytes of any content.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        match KEPT.iter().position(|(size, _)| len <= *size) {
            None => Buffer::new(len.next_multiple_of(BLOCK_BYTES)),
            Some(class) => lock(&self.kept[class]).pop().unwrap_or_else(|| Buffer::new(KEPT[class].0)),
        }
    }

    pub(crate) fn give(&self, buffer: Buffer) {
        let Some(class) = KEPT.iter().position(|(size, _)| buffer.len() == *size) else { return };
        let mut kept = lock(&self.kept[class]);
        if kept.len() < KEPT[class].1 {
            kept.push(buffer);
        }
    }

    pub(crate) fn fill(&self) {
        for (kept, (size, count)) in self.kept.iter().zip(KEPT) {
            let mut kept = lock(kept);
            let missing = count.saturating_sub(kept.len());
            kept.reserve_exact(missing);
            for _ in 0..missing {
                // Written, so that its pages are resident.
                let mut buffer = Buffer::new(size);
                buffer.iter_mut().step_by(BLOCK_BYTES).for_each(|byte| *byte = 1);
                std::hint::black_box(&buffer[..]);
                kept.push(buffer);
            }
        }
    }

    pub(crate) fn bytes_max() -> usize {
        KEPT.iter().map(|(size, count)| size * count).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.kept.iter().zip(KEPT).map(|(kept, (size, _))| lock(kept).len() * size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_used_again() {
        let buffers = Buffers::default();
        for len in [1, 4096, 16 << 10, 50_000, 256 << 10, 600_001] {
            let mut buffer = buffers.take(len);
            assert!(buffer.len() >= len && buffer.as_ptr().addr().is_multiple_of(4096));
            buffer.fill(1);
            buffers.give(buffer);
        }
        assert_eq!(buffers.bytes(), (16 << 10) + (80 << 10) + (256 << 10));
        buffers.fill();
        assert_eq!(buffers.bytes(), Buffers::bytes_max());
    }
}
