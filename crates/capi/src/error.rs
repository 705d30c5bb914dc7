//! Why the last call of a thread failed.

use std::cell::RefCell;
use std::ffi::{c_char, CStr, CString};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Why the last call of this thread that failed did so, in English. Valid until the next one fails; never null.
#[no_mangle]
pub extern "C" fn uzswap_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// Keeps a reason; answers what stands for failure.
pub(crate) fn failed<T>(reason: impl std::fmt::Display, answer: T) -> T {
    let text = CString::new(reason.to_string().replace('\0', " ")).expect("no zeroes are left");
    LAST.with(|last| *last.borrow_mut() = text);
    answer
}

/// A name from C; `None` when it is null.
///
/// # Safety
/// Null or a terminated string.
pub(crate) unsafe fn name<'a>(name: *const c_char) -> Option<std::borrow::Cow<'a, str>> {
    // SAFETY: the caller's promise.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy())
}
