//! Brings the agent into this process: maps its file, makes its initial stack and its thread.

use core::ffi::CStr;
use core::ops::Range;

use doorway::image::Layout;
use doorway::placement;
use doorway::stack::{self, auxiliary, Start, STRINGS_MAX};
use doorway::{AGENT_NAME, PAGE_SIZE, STACK_BYTES};

use crate::calls::raw_syscall;
use crate::control_page::CONTROL_PAGE;
use crate::line::Line;
use crate::youth;

/// Bytes of the file that contain all its headers.
const HEAD_BYTES: usize = 4096;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// The file argument of anonymous mappings.
const NO_FILE: usize = usize::MAX;

fn call(number: libc::c_long, arguments: [usize; 6]) -> Option<usize> {
    // SAFETY: the callers below make mappings and read into their own memory.
    let answer = unsafe { raw_syscall(number, arguments) };
    usize::try_from(answer).ok()
}

fn map(at: usize, len: usize, protection: i32, flags: i32, file: usize, offset: usize) -> Option<usize> {
    call(libc::SYS_mmap, [at, len, protection as usize, flags as usize, file, offset])
}

fn unmap(at: usize, len: usize) {
    call(libc::SYS_munmap, [at, len, 0, 0, 0, 0]);
}

/// Starts the agent in the file `path`. `object` is this object's range, `entries` the agent's
/// environment. Returns false on failure; the process is then unchanged.
pub fn start(path: &CStr, socket: &CStr, object: Range<usize>, entries: &[&[u8]]) -> bool {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let Some(file) = call(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr().addr(), flags, 0, 0, 0])
    else {
        return false;
    };
    let image = map_image(file);
    call(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
    let Some((base, layout)) = image else { return false };
    let started = start_at(base, &layout, socket, object, entries);
    if !started {
        unmap(base, layout.span() + STACK_BYTES);
    }
    started
}

/// Maps the file, and room for the initial stack behind it. Returns its address and layout.
fn map_image(file: usize) -> Option<(usize, Layout)> {
    let mut head = [0u8; HEAD_BYTES];
    let got = call(libc::SYS_pread64, [file, head.as_mut_ptr().addr(), HEAD_BYTES, 0, 0, 0])?;
    let file_bytes = call(libc::SYS_lseek, [file, 0, libc::SEEK_END as usize, 0, 0, 0])?;
    let layout = Layout::of(&head[..got], file_bytes)?;
    let len = layout.span() + STACK_BYTES;
    let reserve = |len| map(0, len, libc::PROT_NONE, PRIVATE, NO_FILE, 0).ok_or(());
    let base = placement::reserve(len, reserve, unmap).ok()?;
    for segment in layout.segments() {
        let (at, from_file) = (base + segment.start, segment.filled.next_multiple_of(PAGE_SIZE));
        let (end, rest) = (at + from_file, segment.len - from_file);
        let map = |at, len, flags, file, offset| {
            map(at, len, segment.protection, flags | libc::MAP_FIXED, file, offset).is_some()
        };
        if !map(at, from_file, libc::MAP_PRIVATE, file, segment.offset)
            || rest > 0 && !map(end, rest, PRIVATE, NO_FILE, 0)
        {
            unmap(base, len);
            return None;
        }
        if segment.protection & libc::PROT_WRITE != 0 {
            // SAFETY: the rest of the last page from the file, mapped above for the agent alone.
            unsafe { ((at + segment.filled) as *mut u8).write_bytes(0, from_file - segment.filled) };
        }
    }
    Some((base, layout))
}

fn start_at(base: usize, layout: &Layout, socket: &CStr, object: Range<usize>, entries: &[&[u8]]) -> bool {
    let stack_at = base + layout.span();
    if map(stack_at, STACK_BYTES, READ_WRITE, PRIVATE | libc::MAP_FIXED, NO_FILE, 0).is_none() {
        return false;
    }
    let top = stack_at + STACK_BYTES;
    let stack = Line::new(format_args!("{stack_at:x}-{top:x}"));
    let control_page = Line::new(format_args!("{:x}", (&raw const CONTROL_PAGE).addr()));
    let object = Line::new(format_args!("{:x}-{:x}", object.start, object.end));
    let arguments =
        [AGENT_NAME.to_bytes(), socket.to_bytes(), stack.bytes(), control_page.bytes(), object.bytes()];
    // SAFETY: returns numbers.
    let own = |kind| unsafe { libc::getauxval(kind) };
    let random = own(auxiliary::RANDOM) as *const [u8; 16];
    let start = Start {
        arguments: &arguments,
        environment: &entries[..entries.len().min(STRINGS_MAX - arguments.len())],
        shared: stack::SHARED.map(own),
        vdso: own(auxiliary::SYSINFO_EHDR) as usize,
        headers: base + layout.headers,
        header_count: layout.header_count,
        entry: base + layout.entry,
        // SAFETY: the kernel gives every program 16 bytes.
        random: unsafe { random.as_ref() }.copied().unwrap_or_default(),
    };
    // SAFETY: the upper end of the stack, mapped above.
    let bytes = unsafe { core::slice::from_raw_parts_mut((top - stack::BYTES) as *mut u8, stack::BYTES) };
    // SAFETY: the stack is complete, and the thread's own.
    start.write(top, bytes).is_some_and(|pointer| unsafe { youth::begin(Some(start.entry), pointer, 0) })
}
