//! Big blocks of address space. The arena never takes address space back, so this module keeps the
//! blocks of dropped pools for the next pool: a program that keeps changing its compressor needs no
//! more room than one that does not.

use std::io;
use std::ptr::NonNull;

use sys::{arena, memory, PAGE_SIZE};

use crate::lock::Lock;

struct Block {
    at: usize,
    len: usize,
}

static SPARE: Lock<Vec<Block>> = Lock::new(Vec::new());

/// Takes a block of zeroes, whole pages long and not resident.
pub(crate) fn take(len: usize) -> io::Result<NonNull<u8>> {
    let mut spare = SPARE.lock();
    if let Some(found) = spare.iter().position(|block| block.len == len) {
        let block = spare.swap_remove(found);
        return Ok(NonNull::new(block.at as *mut u8).expect("a block that was in use"));
    }
    drop(spare);
    let at = arena::take(len, PAGE_SIZE)?;
    // SAFETY: taken just now.
    unsafe { memory::keep_small_pages(at, len) };
    Ok(at)
}

/// Gives a block back, and its pages to the system.
///
/// # Safety
/// `at` and `len` are from one [`take`], and the block is no longer used.
pub(crate) unsafe fn give_back(at: NonNull<u8>, len: usize) {
    // SAFETY: the caller owns the block and needs nothing in it.
    unsafe { memory::discard(at, len) };
    SPARE.lock().push(Block { at: at.as_ptr() as usize, len });
}
