//! What happens when the dynamic loader has mapped this object into a program.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use ledger::wire::Kind;
use pager::FixedText;
use sys::thread::{self, Files};
use sys::{arena, PAGE_SIZE};

use crate::{accounts, broken, control, environment, exec, fork, tls};

/// Most shared objects that a program is started with, as far as they matter here.
const OBJECTS_MAX: usize = 256;

/// Most bytes of thread-local storage that a program is started with.
const STATIC_TLS_MAX: usize = 16 << 20;

/// Where the shared objects that were there from the start are mapped, their bss included: this one, the C library and
/// whatever else pager threads may touch without knowing (the C library's system call wrappers look at a flag in its
/// bss). The program itself, whose bss may be large, is not among them.
static OBJECTS: [[AtomicUsize; 2]; OBJECTS_MAX] =
    [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; OBJECTS_MAX];
static OBJECT_COUNT: AtomicUsize = AtomicUsize::new(0);
static TLS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn constructor(_argc: c_int, _argv: *const *const c_char, _envp: *const *const c_char) {
    // Without a supervisor's socket this object does nothing.
    // SAFETY: a terminated name; the environment is not changed by others while constructors run.
    let socket = unsafe { libc::getenv(c"UZSWAP_SOCKET".as_ptr()) };
    if socket.is_null() || !open_arena() {
        return;
    }
    // SAFETY: the callback fits the signature and is called before the function returns.
    unsafe { libc::dl_iterate_phdr(Some(note_object), std::ptr::null_mut()) };
    TLS.store(thread::own_thread_pointer(), Ordering::Relaxed);
    // SAFETY: getenv answers a terminated string.
    control::remember_socket(unsafe { std::ffi::CStr::from_ptr(socket) });
    // SAFETY: as for the socket; iaa's variable is named here because constructors read the environment with getenv.
    let emulate = unsafe { libc::getenv(c"UZSWAP_IAA_EMULATE".as_ptr()) };
    if !emulate.is_null() {
        // SAFETY: getenv answers a terminated string.
        control::remember_emulation(unsafe { std::ffi::CStr::from_ptr(emulate) });
    }
    tls::prepare();
    broken::install();
    broken::choose_point();
    // SAFETY: this is the constructor.
    unsafe { environment::remember() };
    exec::prepare();
    fork::install();
    start_control();
}

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = constructor;

/// Starts the control thread on memory of the arena.
pub fn start_control() {
    control::set_alive(true);
    // SAFETY: the memory is the thread's for ever; the control thread keeps to the rules for such threads.
    let started = arena::take(thread::thread_bytes().next_multiple_of(PAGE_SIZE), PAGE_SIZE)
        .and_then(|memory| unsafe { thread::spawn(memory, Files::Own, control::run, 0) });
    if let Err(error) = started {
        control::set_alive(false);
        let text = FixedText::new(format_args!("no thread: {error}"));
        let _ = accounts::tell(Kind::Unmanaged, text.as_str());
    }
}

/// Starts the control thread of a forked child, which takes over what the parent left. `connection` is copied into its file
/// table. False when there is no memory for it, or no more threads.
pub fn start_inheriting(connection: i32) -> bool {
    let Ok(memory) = arena::take(thread::thread_bytes().next_multiple_of(PAGE_SIZE), PAGE_SIZE) else {
        return false;
    };
    // SAFETY: as above.
    unsafe { thread::spawn(memory, Files::Own, control::inherit, connection as usize) }.is_ok()
}

/// Reserves the arena: generous where address space costs nothing, modest under RLIMIT_AS.
fn open_arena() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    let mut bytes: usize = 256 << 30;
    if limit.rlim_cur != libc::RLIM_INFINITY {
        bytes = (limit.rlim_cur as usize / 2).next_power_of_two() / 2;
        // What the arena takes is added to the limit, so that the program has what it had.
        let raised = libc::rlimit { rlim_cur: limit.rlim_cur + bytes as u64, ..limit };
        let raised = libc::rlimit { rlim_max: limit.rlim_max.max(raised.rlim_cur), ..raised };
        // SAFETY: as above. Without the right to raise it the arena shares the limit with the program.
        if unsafe { libc::setrlimit(libc::RLIMIT_AS, &raised) } != 0 {
            bytes /= 4;
        }
    }
    while bytes >= 16 << 20 {
        if arena::open(bytes & !(PAGE_SIZE - 1)).is_ok() {
            return true;
        }
        bytes /= 2;
    }
    false
}

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
    let index = OBJECT_COUNT.load(Ordering::Relaxed);
    if !is_program && span.start < span.end && index < OBJECTS_MAX {
        OBJECTS[index][0].store(span.start & !(PAGE_SIZE - 1), Ordering::Relaxed);
        OBJECTS[index][1].store(span.end.next_multiple_of(PAGE_SIZE), Ordering::Relaxed);
        OBJECT_COUNT.store(index + 1, Ordering::Relaxed);
    }
    0
}

/// Ranges that must never be paged, in address order: the arena and the shared objects of the start.
pub fn own_ranges() -> Vec<Range<usize>> {
    let objects = &OBJECTS[..OBJECT_COUNT.load(Ordering::Relaxed)];
    let bounds =
        |object: &[AtomicUsize; 2]| object[0].load(Ordering::Relaxed)..object[1].load(Ordering::Relaxed);
    let mut ranges: Vec<_> = objects.iter().map(bounds).collect();
    ranges.push(arena::range());
    // The first thread's TLS block: a pager thread that panics looks at it.
    let pointer = TLS.load(Ordering::Relaxed);
    let around = thread::static_tls() + 2 * PAGE_SIZE;
    ranges.push((pointer & !(PAGE_SIZE - 1)) - around..(pointer & !(PAGE_SIZE - 1)) + around);
    ranges.sort_by_key(|range| range.start);
    ranges
}
