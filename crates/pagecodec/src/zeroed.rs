//! Memory of zero bytes that is not touched when it is made: large working memory that may never be
//! needed then takes none.

use std::alloc::{alloc_zeroed, handle_alloc_error, Layout};
use std::mem::MaybeUninit;

/// A box of zero bytes. Whether these are a value of `T` is for the caller to know.
pub(crate) fn zeroed<T>() -> Box<MaybeUninit<T>> {
    const { assert!(size_of::<T>() > 0) };
    let layout = Layout::new::<T>();
    // SAFETY: the layout has a size; a box frees with the same layout, and its content may be
    // anything.
    unsafe {
        let memory = alloc_zeroed(layout);
        if memory.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(memory.cast())
    }
}
