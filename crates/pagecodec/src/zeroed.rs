//! Zero memory that stays untouched on creation, so that unused working memory takes none.

use std::alloc::{alloc_zeroed, handle_alloc_error, Layout};
use std::mem::MaybeUninit;

/// Returns a box of zero bytes. The caller must know whether these are a valid `T`.
pub(crate) fn zeroed<T>() -> Box<MaybeUninit<T>> {
    const { assert!(size_of::<T>() > 0) };
    let layout = Layout::new::<T>();
    // SAFETY: the layout has a size; a box frees with the same one; any content is allowed.
    unsafe {
        let memory = alloc_zeroed(layout);
        if memory.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(memory.cast())
    }
}
