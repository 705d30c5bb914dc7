//! The heap of the agent's C library, over the arena: for codecs written in C and the C library
//! itself, beginning with its thread-local storage.
//!
//! The break belongs to the program. The C library's start and its malloc would move it. The
//! definitions here replace both: a static link takes them first.

use std::alloc::{alloc, dealloc, Layout};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Before each block: the layout's size and alignment.
#[repr(C)]
struct Header {
    size: usize,
    align: usize,
}

const ALIGN_MIN: usize = 16;
const _: () = assert!(size_of::<Header>() == ALIGN_MIN);

fn allocate(align: usize, size: usize) -> *mut c_void {
    let align = align.max(ALIGN_MIN);
    let Some(layout) = size.checked_add(align).and_then(|all| Layout::from_size_align(all, align).ok())
    else {
        return null_mut();
    };
    // SAFETY: not empty. The block begins `align` bytes into the allocation, just after the header.
    unsafe {
        let room = alloc(layout);
        if room.is_null() {
            return null_mut();
        }
        let block = room.add(align);
        block.sub(ALIGN_MIN).cast::<Header>().write(Header { size: layout.size(), align });
        block.cast()
    }
}

/// The header of a block.
///
/// # Safety
/// [`allocate`] returned the block, and it was not freed.
unsafe fn header(block: *mut c_void) -> Header {
    // SAFETY: the caller's promise.
    unsafe { block.cast::<u8>().sub(ALIGN_MIN).cast::<Header>().read() }
}

#[no_mangle]
extern "C" fn malloc(size: usize) -> *mut c_void {
    allocate(ALIGN_MIN, size)
}

#[no_mangle]
unsafe extern "C" fn free(block: *mut c_void) {
    if !block.is_null() {
        // SAFETY: the caller's block, with its layout.
        unsafe {
            let Header { size, align } = header(block);
            let room = block.cast::<u8>().sub(align);
            dealloc(room, Layout::from_size_align_unchecked(size, align));
        }
    }
}

#[no_mangle]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return null_mut() };
    let block = allocate(ALIGN_MIN, bytes);
    if !block.is_null() {
        // SAFETY: just allocated.
        unsafe { block.cast::<u8>().write_bytes(0, bytes) };
    }
    block
}

#[no_mangle]
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let moved = allocate(ALIGN_MIN, size);
    if !block.is_null() && !moved.is_null() {
        // SAFETY: the caller's block; copies at most the smaller of the two sizes.
        unsafe {
            let Header { size: room, align } = header(block);
            moved.cast::<u8>().copy_from_nonoverlapping(block.cast(), size.min(room - align));
            free(block);
        }
    }
    moved
}

#[no_mangle]
extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    allocate(align, size)
}

#[no_mangle]
extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    allocate(align, size)
}

#[no_mangle]
unsafe extern "C" fn posix_memalign(target: *mut *mut c_void, align: usize, size: usize) -> c_int {
    let block = allocate(align, size);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's variable.
    unsafe { target.write(block) };
    0
}

#[no_mangle]
unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller's block.
    let Header { size, align } = unsafe { header(block) };
    size - align
}

/// Words on either side of the first thread pointer.
const EARLY_WORDS: usize = 512;
static EARLY: [AtomicUsize; 2 * EARLY_WORDS] = [const { AtomicUsize::new(0) }; 2 * EARLY_WORDS];

/// Gives this thread a thread pointer of its own. The one that it began with is that of a thread of
/// the program: errno of a call that fails would be written into that thread's storage.
fn leave_programs_storage() {
    let middle = &EARLY[EARLY_WORDS];
    let at = std::ptr::from_ref(middle).addr();
    middle.store(at, Ordering::Relaxed); // x86-64 reads the pointer from where it points to
    #[cfg(target_arch = "x86_64")]
    {
        const ARCH_SET_FS: usize = 0x1002;
        // SAFETY: takes an address, and does not fail for one of this process.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_FS, at) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: nothing refers to the program's storage here.
    unsafe {
        std::arch::asm!("msr tpidr_el0, {}", in(reg) at, options(nomem, nostack, preserves_flags));
    }
}

/// glibc 2.35 and later allocate the first thread's storage with this. It is the first allocation.
#[no_mangle]
extern "C" fn _dl_early_allocate(size: usize) -> *mut c_void {
    leave_programs_storage();
    if agent::start::open_arena() {
        allocate(64, size)
    } else {
        null_mut()
    }
}

/// Its name before 2.35, and the other way to move the program's break.
#[no_mangle]
extern "C" fn __sbrk(size: isize) -> *mut c_void {
    match usize::try_from(size) {
        Ok(size) if sys::arena::range().is_empty() => _dl_early_allocate(size),
        _ => usize::MAX as *mut c_void,
    }
}

#[no_mangle]
extern "C" fn sbrk(_size: isize) -> *mut c_void {
    usize::MAX as *mut c_void
}
