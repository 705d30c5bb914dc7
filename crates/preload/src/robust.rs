//! Robust mutexes, which the kernel marks for a thread that ends. It does so without fault service,
//! so their pages stay in memory (see the pager's `kept`). This module notes those that the C
//! library initializes; the pager finds others when they are held for a while.

use core::ffi::{c_int, c_void};

use crate::control_page::CONTROL_PAGE;
use crate::next::library;

library! {
    INIT: pthread_mutex_init(*mut c_void, *const c_void) -> c_int;
    GET_ROBUST: pthread_mutexattr_getrobust(*const c_void, *mut c_int) -> c_int;
}

/// `PTHREAD_MUTEX_ROBUST` of glibc's and musl's pthread.h.
const ROBUST: c_int = 1;

/// pthread_mutex_init(3): a robust mutex stays in memory.
#[no_mangle]
pub unsafe extern "C" fn pthread_mutex_init(mutex: *mut c_void, attributes: *const c_void) -> c_int {
    let Some(init) = INIT.function() else { return libc::ENOSYS };
    // SAFETY: the caller's attributes.
    if !attributes.is_null() && unsafe { is_robust(attributes) } {
        // Both ends: the kernel reads the list's entry and writes the word. Before the page is
        // touched, so that it was never a candidate for eviction.
        CONTROL_PAGE.robust.note(mutex.addr());
        let last = mutex.addr() + size_of::<libc::pthread_mutex_t>() - 1;
        if last / doorway::PAGE_SIZE != mutex.addr() / doorway::PAGE_SIZE {
            CONTROL_PAGE.robust.note(last);
        }
    }
    // SAFETY: the caller's arguments.
    unsafe { init(mutex, attributes) }
}

/// # Safety
/// The argument points to attributes of a mutex.
unsafe fn is_robust(attributes: *const c_void) -> bool {
    let mut robust = 0;
    // SAFETY: the caller's promise.
    let answer = GET_ROBUST.function().map(|get| unsafe { get(attributes, &raw mut robust) });
    answer == Some(0) && robust == ROBUST
}
