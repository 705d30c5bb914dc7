//! The C library's definitions of interposed functions.

use core::ffi::{c_void, CStr};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a function, which is the C library's.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// Looks it up once. Returns null if the C library lacks it.
    pub fn find(&self) -> *mut c_void {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: a terminated name.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        found
    }

    pub fn is_found(&self) -> bool {
        !self.found.load(Ordering::Relaxed).is_null()
    }

    /// The function, or `None` if the C library lacks it.
    ///
    /// # Safety
    /// `F` is the type of a pointer to this function.
    pub unsafe fn function<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let found = self.find();
        // SAFETY: not null, and of the caller's type.
        (!found.is_null()).then(|| unsafe { core::mem::transmute_copy(&found) })
    }
}

/// The continuation of a call: the C library's function, or a result.
#[repr(C)]
pub struct Onward {
    /// The function for the caller's arguments; null if there is a result.
    pub function: *const c_void,
    /// The result.
    pub answer: isize,
}

/// A function of up to four arguments that determines its continuation, and jumps there with its
/// arguments: it has no frame on the stack when the thread is cancelled in the C library, which
/// unwinds.
macro_rules! interposed {
    ($(#[$doc:meta])* $name:ident, $onward:ident($($argument:ident: $kind:ty),*) $body:expr) => {
        unsafe extern "C" fn $onward($($argument: $kind),*) -> $crate::next::Onward {
            // SAFETY: the caller's arguments.
            unsafe { $body }
        }

        $(#[$doc])*
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "call {onward}",
                "mov r11, rax",
                "mov rax, rdx",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test r11, r11",
                "jz 2f",
                // No vector registers hold variable arguments.
                "xor eax, eax",
                "jmp r11",
                "2: ret",
                ".cfi_endproc",
                onward = sym $onward,
            )
        }

        $(#[$doc])*
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x30, -40",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "bl {onward}",
                "mov x16, x0",
                "mov x17, x1",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                "cbz x16, 2f",
                "br x16",
                "2: mov x0, x17",
                "ret",
                ".cfi_endproc",
                onward = sym $onward,
            )
        }
    };
}
pub(crate) use interposed;
