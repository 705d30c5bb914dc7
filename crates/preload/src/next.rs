//! The C library's own definitions of what this object interposes.

use core::ffi::{c_void, CStr};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a function, which is the C library's.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// Not looked up yet.
    pub const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// Looks it up, unless that was done; null in a C library that lacks it.
    pub fn find(&self) -> *mut c_void {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: a terminated name.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        found
    }

    /// Whether it was looked up.
    pub fn is_found(&self) -> bool {
        !self.found.load(Ordering::Relaxed).is_null()
    }

    /// The function, `None` in a C library that lacks it.
    ///
    /// # Safety
    /// `F` is the type of a pointer to this function.
    pub unsafe fn function<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let found = self.find();
        // SAFETY: not null, and of the type that the caller vouches for.
        (!found.is_null()).then(|| unsafe { core::mem::transmute_copy(&found) })
    }
}
