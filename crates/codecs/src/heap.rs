//! Memory for C libraries from Rust's global allocator: inside a paged program that is the arena,
//! and the C library's own malloc is the program's.

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::ffi::c_void;

const ALIGN: usize = 64;
/// A block's length stands in front of it; a whole line, to keep the alignment.
const HEADER: usize = ALIGN;

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEADER)?, ALIGN).ok()
}

/// malloc.
pub(crate) unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    let Some(layout) = layout(size) else { return std::ptr::null_mut() };
    // SAFETY: the layout is not empty.
    let at = unsafe { alloc(layout) };
    if at.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: at least a header long, and aligned.
    unsafe { at.cast::<usize>().write(size) };
    // SAFETY: within the block.
    unsafe { at.add(HEADER).cast() }
}

/// free of a block from [`malloc`], or of null.
pub(crate) unsafe extern "C" fn free(at: *mut c_void) {
    if at.is_null() {
        return;
    }
    // SAFETY: the caller got the block from `malloc`, which left the length in front of it.
    let (start, size) = unsafe {
        let start = at.cast::<u8>().sub(HEADER);
        (start, start.cast::<usize>().read())
    };
    // SAFETY: allocated with this layout.
    unsafe { dealloc(start, layout(size).expect("it was valid")) };
}

/// zlib's shape of malloc.
pub(crate) extern "C" fn zalloc(_: *mut c_void, items: u32, size: u32) -> *mut c_void {
    // SAFETY: `malloc` has no precondition.
    unsafe { malloc(items as usize * size as usize) }
}

/// zlib's shape of free.
pub(crate) extern "C" fn zfree(_: *mut c_void, at: *mut c_void) {
    // SAFETY: zlib gives back what `zalloc` gave.
    unsafe { free(at) }
}

/// A fixed working area for a library that lays its state out in one, aligned to a cache line.
pub(crate) struct Workspace {
    at: std::ptr::NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is memory, owned; the owner of the workspace owns what lies in it.
unsafe impl Send for Workspace {}
// SAFETY: shared references give no access to the bytes.
unsafe impl Sync for Workspace {}

impl Workspace {
    pub(crate) fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), ALIGN).expect("a sane length");
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc(layout) };
        let Some(at) = std::ptr::NonNull::new(at) else { handle_alloc_error(layout) };
        Workspace { at, layout }
    }

    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.at.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}
