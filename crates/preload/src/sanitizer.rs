//! LeakSanitizer, which reads all memory while every thread of the process is stopped, the pager's
//! included.
//!
//! Its tracer, a process that shares the memory, stops all threads and then reads: an evicted page
//! would never arrive. All its versions do this from within dl_iterate_phdr(), which they call by
//! name. So while a sanitizer runtime's function is called from there, everything is in and nothing
//! is paged. A runtime also calls it to list libraries for a report.

use core::ffi::{c_int, c_void};
use core::ptr::null;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::fork;
use crate::next::library;

type Callback = unsafe extern "C" fn(*mut c_void, usize, *mut c_void) -> c_int;

library! {
    ITERATE: dl_iterate_phdr(Option<Callback>, *mut c_void) -> c_int;
}

/// First byte of the object that contains a runtime, null for none.
static RUNTIME: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// First byte of the object that contains an address, null for none.
fn object_of(address: *const c_void) -> *mut c_void {
    // SAFETY: plain pointers, filled by dladdr, which takes any address.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        libc::dladdr(address, &mut info);
        info.dli_fbase
    }
}

/// Looks for a runtime. The object's constructor calls this.
pub fn prepare() {
    ITERATE.find();
    // SAFETY: terminated names; returns numbers.
    let (checks, makes_threads, entry) = unsafe {
        let find = |name: &core::ffi::CStr| libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).cast_const();
        (
            find(c"__lsan_do_leak_check"),
            find(c"pthread_create"),
            libc::getauxval(libc::AT_ENTRY) as *const c_void,
        )
    };
    let runtime = match checks.is_null() {
        false => object_of(checks),
        // A runtime linked into a program may hide its own names, but exports those that it
        // interposes.
        true if object_of(makes_threads) == object_of(entry) => object_of(entry),
        true => null::<c_void>().cast_mut(),
    };
    RUNTIME.store(runtime, Ordering::Relaxed);
}

#[no_mangle]
pub unsafe extern "C" fn dl_iterate_phdr(callback: Option<Callback>, data: *mut c_void) -> c_int {
    let Some(iterate) = ITERATE.function() else { return 0 };
    // SAFETY: the caller's arguments.
    let call = || unsafe { iterate(callback, data) };
    let runtime = RUNTIME.load(Ordering::Relaxed);
    let called = callback.map_or(null(), |callback| callback as *const c_void);
    match !runtime.is_null() && object_of(called) == runtime {
        true => fork::while_halted(call),
        false => call(),
    }
}
