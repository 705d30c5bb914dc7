//! This object's thread-local storage, in threads that the C library does not know.
//!
//! The standard library counts panics in thread-local storage, and looks there before it calls any hook. An object that
//! is not the program itself finds its storage with `__tls_get_addr`, by way of a table of the C library's: in a pager's
//! thread the table is that of the thread that made it, may be in memory that is paged out, and is grown on the
//! program's heap after a dlopen(). A handler that panics would wait there for a page that only itself could bring.
//!
//! But an object that is there from the start has its storage at the same distance from every thread's pointer, and
//! `sys::thread` gives its threads a copy of what is around it. So this object has a `__tls_get_addr` of its own, which
//! subtracts. (On aarch64 the loader does the same by itself, with TLS descriptors.)

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sys::thread::{own_thread_pointer, static_tls};

    /// What the loader filled in for an access.
    #[repr(C)]
    pub struct Index {
        module: usize,
        offset: usize,
    }

    /// From the start of this object's storage up to the thread pointer; 0 while unknown.
    static DISTANCE: AtomicUsize = AtomicUsize::new(0);

    thread_local! {
        static SOME: Cell<u8> = const { Cell::new(0) };
    }

    extern "C" fn address(index: &Index) -> usize {
        match DISTANCE.load(Ordering::Relaxed) {
            0 => ask_loader(index),
            distance => own_thread_pointer() - distance + index.offset,
        }
    }

    #[cold]
    fn ask_loader(index: &Index) -> usize {
        // SAFETY: a terminated name; this object's own definition is not among those that are looked through.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tls_get_addr".as_ptr()) };
        assert!(!found.is_null(), "the loader knows thread-local storage");
        // SAFETY: the loader's function has this type.
        let function: extern "C" fn(&Index) -> usize = unsafe { std::mem::transmute(found) };
        let at = function(index);
        let distance = own_thread_pointer().wrapping_sub(at - index.offset);
        if distance <= static_tls() {
            DISTANCE.store(distance, Ordering::Relaxed);
        }
        at
    }

    pub fn prepare() {
        SOME.with(|some| some.set(std::hint::black_box(some.get())));
    }

    // Hidden, hence for this object alone.
    std::arch::global_asm!(
        ".globl __tls_get_addr",
        ".hidden __tls_get_addr",
        "__tls_get_addr:",
        "jmp {to}",
        to = sym address,
    );
}

/// Learns where the storage is. To be called by the object's constructor, before other threads.
pub fn prepare() {
    #[cfg(target_arch = "x86_64")]
    x86::prepare();
}
