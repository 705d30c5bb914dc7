//! malloc and free for C libraries, from Rust's global allocator for the reason in `heap`.

use std::alloc::{alloc, dealloc, Layout};
use std::ffi::c_void;

const ALIGN: usize = 64;
/// Each block has its length in front; a whole line, to keep the alignment.
const HEADER: usize = ALIGN;

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEADER)?, ALIGN).ok()
}

pub(crate) unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    let Some(layout) = layout(size) else { return std::ptr::null_mut() };
    // SAFETY: the layout is not empty.
    let at = unsafe { alloc(layout) };
    if at.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the block is aligned and at least a header long.
    unsafe { at.cast::<usize>().write(size) };
    // SAFETY: within the block.
    unsafe { at.add(HEADER).cast() }
}

/// free of a block from [`malloc`], or of null.
pub(crate) unsafe extern "C" fn free(at: *mut c_void) {
    if at.is_null() {
        return;
    }
    // SAFETY: the block came from `malloc`, which put the length in front of it.
    let (start, size) = unsafe {
        let start = at.cast::<u8>().sub(HEADER);
        (start, start.cast::<usize>().read())
    };
    // SAFETY: `malloc` allocated it with this layout.
    unsafe { dealloc(start, layout(size).expect("it was valid")) };
}
