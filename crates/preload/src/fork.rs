//! The handlers that the C library calls around fork().
//!
//! `__register_atfork` is interposed so that no other library is before this object, and ours is the last to run before
//! the fork and the first after it.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use agent::fork::{child, parent, prepare};

type Handler = Option<unsafe extern "C" fn()>;

extern "C" {
    fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
}

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Registers the handlers.
pub fn install() {
    if !INSTALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: the functions live as long as the process: the object is never unloaded.
        unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

/// What pthread_atfork() of every object calls. Constructors of other libraries run before this object's; its handlers
/// are to be the first all the same.
///
/// # Safety
/// As the C library's.
#[no_mangle]
pub unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    object: *mut c_void,
) -> c_int {
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    install();
    let mut next = NEXT.load(Ordering::Relaxed);
    if next.is_null() {
        // SAFETY: a terminated name.
        next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__register_atfork".as_ptr()) };
        NEXT.store(next, Ordering::Relaxed);
    }
    if next.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's function has this type; the caller's arguments.
    unsafe { std::mem::transmute::<*mut c_void, Register>(next)(prepare, parent, child, object) }
}
