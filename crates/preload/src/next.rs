//! The C library's definitions of interposed functions.

use core::ffi::{c_void, CStr};
use core::marker::PhantomData;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a function, which is the C library's, by a pointer of type `F`.
pub struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// The function with this name, which ends in a zero byte.
    ///
    /// # Safety
    /// `F` is the type of a pointer to this function.
    pub const unsafe fn new(name: &'static str) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { panic!("one zero, at the end") };
        Next { name, found: AtomicPtr::new(null_mut()), kind: PhantomData }
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
    pub fn function(&self) -> Option<F> {
        let found = self.find();
        // SAFETY: not null, and of the type that `new`'s caller promised.
        (!found.is_null()).then(|| unsafe { core::mem::transmute_copy(&found) })
    }
}

/// Declares the C library's definitions of functions, and a function that looks them all up in
/// advance, if one is named.
macro_rules! library {
    ($($next:ident: $name:ident($($kind:ty),*) -> $answer:ty;)*) => {
        $(
            static $next: $crate::next::Next<unsafe extern "C" fn($($kind),*) -> $answer> =
                // SAFETY: the C library's function of this name has this type.
                unsafe { $crate::next::Next::new(concat!(stringify!($name), "\0")) };
        )*
    };
    (
        $(#[$doc:meta])* $visibility:vis fn $prepare:ident();
        $($next:ident: $name:ident($($kind:ty),*) -> $answer:ty;)*
    ) => {
        $crate::next::library! { $($next: $name($($kind),*) -> $answer;)* }

        $(#[$doc])*
        $visibility fn $prepare() {
            $($next.find();)*
        }
    };
}
pub(crate) use library;

/// Defines another name of a function for files over 2 GiB: their types are the same on 64-bit
/// machines.
macro_rules! also_named {
    ($also:ident, $name:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        #[no_mangle]
        pub unsafe extern "C" fn $also($($argument: $kind),*) -> $answer {
            // SAFETY: the caller's arguments, unchanged.
            unsafe { $name($($argument),*) }
        }
    };
}
pub(crate) use also_named;

/// The continuation of a call: the C library's function, or a result.
#[repr(C)]
pub struct Onward {
    /// The function for the caller's arguments; null if there is a result.
    pub function: *const c_void,
    pub answer: isize,
}

/// Functions of up to four arguments that determine their continuation, and jump there with their
/// arguments: they have no frame on the stack when the thread is cancelled in the C library, which
/// unwinds.
macro_rules! interposed {
    ($($name:ident = $onward:ident($($argument:ident: $kind:ty),*) $body:expr;)*) => {$(
        unsafe extern "C" fn $onward($($argument: $kind),*) -> $crate::next::Onward {
            // SAFETY: the caller's arguments.
            unsafe { $body }
        }

        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "sub rsp, 40",
                ".cfi_adjust_cfa_offset 40",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "call {onward}",
                "mov r11, rax",
                "mov rax, rdx",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
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
    )*};
}
pub(crate) use interposed;
