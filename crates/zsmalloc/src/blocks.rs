//! Big blocks of address space. The arena never takes address space back, so this module keeps the
//! blocks of dropped pools for the next pool: a program that keeps changing its compressor needs no
//! more room than one that does not.

use std::io;
use std::ptr::NonNull;

use sys::{arena, memory, PAGE_SIZE};

use crate::lock::Lock;

/// A block of zeroes, whole pages long and not resident at first. Dropping it gives it back, and
/// its pages to the system.
pub(crate) struct Block {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the block owns its memory, and by itself neither reads nor writes it.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

static SPARE: Lock<Vec<Block>> = Lock::new(Vec::new());

impl Block {
    pub(crate) fn take(len: usize) -> io::Result<Block> {
        let mut spare = SPARE.lock();
        if let Some(found) = spare.iter().position(|block| block.len == len) {
            return Ok(spare.swap_remove(found));
        }
        drop(spare);
        let at = arena::take(len, PAGE_SIZE)?;
        // SAFETY: taken just now.
        unsafe { memory::keep_small_pages(at, len) };
        Ok(Block { at, len })
    }

    pub(crate) fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Leaves the block to the holder of its address, until [`of`](Self::of).
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }

    /// # Safety
    /// `at` and `len` are a [left](Self::leave) block's, which is the caller's alone.
    pub(crate) unsafe fn of(at: NonNull<u8>, len: usize) -> Block {
        Block { at, len }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the block's owner needs nothing in it any more.
        unsafe { memory::discard(self.at, self.len) };
        SPARE.lock().push(Block { at: self.at, len: self.len });
    }
}
