//! Robust mutexes, which the kernel marks for a thread that ends.
//!
//! An ending thread gets no fault service: were the mutex's page out then, nobody would hear that its owner is gone, and whoever
//! waits for it would wait for ever. So such a page is locked in memory; the kernel then lets nobody move it out.

use core::ffi::{c_int, c_void};

use doorway::PAGE_SIZE;

use crate::calls::raw_syscall;
use crate::next::Next;

type Init = unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;
type GetRobust = unsafe extern "C" fn(*const c_void, *mut c_int) -> c_int;

static INIT: Next = Next::new(c"pthread_mutex_init");
static GET_ROBUST: Next = Next::new(c"pthread_mutexattr_getrobust");

/// `PTHREAD_MUTEX_ROBUST` of glibc's and musl's pthread.h.
const ROBUST: c_int = 1;

/// pthread_mutex_init(3): a robust mutex stays in memory.
///
/// # Safety
/// As pthread_mutex_init(3).
#[no_mangle]
pub unsafe extern "C" fn pthread_mutex_init(mutex: *mut c_void, attributes: *const c_void) -> c_int {
    // SAFETY: the C library's function of this name.
    let Some(init) = (unsafe { INIT.function::<Init>() }) else { return libc::ENOSYS };
    // SAFETY: the caller's arguments.
    let answer = unsafe { init(mutex, attributes) };
    // SAFETY: the C library has taken them for attributes.
    if answer == 0 && !attributes.is_null() && unsafe { is_robust(attributes) } {
        keep(mutex as usize, size_of::<libc::pthread_mutex_t>());
    }
    answer
}

/// # Safety
/// The argument points to attributes of a mutex.
unsafe fn is_robust(attributes: *const c_void) -> bool {
    let mut robust = 0;
    // SAFETY: the C library's function of this name, and the caller's promise.
    let answer = unsafe { GET_ROBUST.function::<GetRobust>().map(|get| get(attributes, &raw mut robust)) };
    answer == Some(0) && robust == ROBUST
}

/// Locks the pages of `[at, at + len)`. Where no more may be locked it is as if nobody had asked.
fn keep(at: usize, len: usize) {
    let start = at & !(PAGE_SIZE - 1);
    let arguments = [start, (at + len).next_multiple_of(PAGE_SIZE) - start, 0, 0, 0, 0];
    // SAFETY: nothing is changed that the program can see but what is locked.
    unsafe { raw_syscall(libc::SYS_mlock, arguments) };
}
