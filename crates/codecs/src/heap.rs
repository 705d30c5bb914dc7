//! Working memory for C libraries from Rust's global allocator, which is the arena inside a paged
//! program. The C library's malloc belongs to the program.

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::ffi::c_void;

const ALIGN: usize = 64;
/// A cache-line-aligned working area for a library's state.
pub(crate) struct Workspace {
    at: std::ptr::NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory.
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
