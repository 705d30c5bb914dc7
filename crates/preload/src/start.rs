//! What happens when the dynamic loader has mapped this object into a program.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;

use agent::{broken, control, start};
use sys::{thread, PAGE_SIZE};

use crate::{environment, exec, fork, tls};

/// Most bytes of thread-local storage that a program is started with.
const STATIC_TLS_MAX: usize = 16 << 20;

extern "C" fn constructor(_argc: c_int, _argv: *const *const c_char, _envp: *const *const c_char) {
    // Without a supervisor's socket this object does nothing.
    // SAFETY: a terminated name; the environment is not changed by others while constructors run.
    let socket = unsafe { libc::getenv(c"UZSWAP_SOCKET".as_ptr()) };
    if socket.is_null() || !start::open_house() {
        return;
    }
    // SAFETY: the callback fits the signature and is called before the function returns.
    unsafe { libc::dl_iterate_phdr(Some(note_object), std::ptr::null_mut()) };
    // The first thread's TLS block: a pager thread that panics looks at it.
    let pointer = thread::own_thread_pointer() & !(PAGE_SIZE - 1);
    let around = thread::static_tls() + 2 * PAGE_SIZE;
    start::add_own_range(pointer - around..pointer + around);
    // SAFETY: getenv answers a terminated string.
    control::remember_socket(unsafe { std::ffi::CStr::from_ptr(socket) });
    // SAFETY: as for the socket; iaa's variable is named here because constructors read the environment with getenv.
    let emulate = unsafe { libc::getenv(c"UZSWAP_IAA_EMULATE".as_ptr()) };
    if !emulate.is_null() {
        // SAFETY: getenv answers a terminated string.
        control::remember_emulation(&unsafe { std::ffi::CStr::from_ptr(emulate) }.to_string_lossy());
    }
    tls::prepare();
    broken::install();
    broken::choose_point();
    // SAFETY: this is the constructor.
    unsafe { environment::remember() };
    exec::prepare();
    fork::install();
    start::start_control();
}

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = constructor;

unsafe extern "C" fn note_object(info: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid structure with `dlpi_phnum` headers.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr as usize, std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize))
    };
    let loads = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let span = loads.fold(Range { start: usize::MAX, end: 0 }, |span: Range<usize>, header| {
        let start = base + header.p_vaddr as usize;
        span.start.min(start)..span.end.max(start + header.p_memsz as usize)
    });
    // SAFETY: as above; the field is null where the object has no thread-local storage, or none yet.
    let storage = unsafe { (*info).dlpi_tls_data as usize };
    let distance = thread::own_thread_pointer().abs_diff(storage);
    let len =
        headers.iter().filter(|header| header.p_type == libc::PT_TLS).map(|header| header.p_memsz as usize);
    let reach = if cfg!(target_arch = "x86_64") { distance } else { distance + len.max().unwrap_or(0) };
    // What is further away was not there from the start, but made for this thread alone.
    if storage != 0 && reach <= STATIC_TLS_MAX {
        thread::set_static_tls(reach);
    }
    // SAFETY: the loader's names are terminated; the program's own is empty.
    let is_program = unsafe { (*info).dlpi_name.is_null() || *(*info).dlpi_name == 0 };
    // This object, the C library and whatever else pager threads may touch without knowing, bss included (the C library's
    // system call wrappers look at a flag there). The program itself, whose bss may be large, is not among them.
    if !is_program {
        start::add_own_range(span);
    }
    0
}
