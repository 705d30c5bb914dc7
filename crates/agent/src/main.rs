//! The agent as a program that runs in the memory of another.
//!
//! It is linked statically, with its own C library, and can be mapped anywhere. The injecting
//! process maps its segments, makes a process that shares the memory, with all signals blocked,
//! gives it a stack with arguments, environment and auxiliary vector, and runs it from the entry
//! point, as a kernel runs a program. From there it needs nothing of its host and leaves nothing
//! there: the C library relocates itself, sets up this thread's thread-local storage, and calls
//! [`main`] below. Effects of its start on the process are replaced: all memory comes from
//! the arena (`heap`), and Rust's own start, which sets signal handlers, is omitted.
//!
//! Arguments: a name; the supervisor's socket; the stack's range, as START-END in hex; and, when a
//! shared object injects it, the address of the control page and that object's range, in hex.

#![no_main]

#[cfg(target_env = "gnu")]
mod heap;

use std::ffi::{c_char, c_int, CStr};
use std::ops::Range;

use agent::{broken, control, control_page, paging, start};

extern "C" {
    /// The first byte of the image, defined by the linker.
    static __ehdr_start: u8;
    static _end: u8;
}

/// The C library calls this.
///
/// # Safety
/// As C's `main`.
#[no_mangle]
unsafe extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: `count` terminated strings.
    let argument = |index| unsafe { CStr::from_ptr(*arguments.add(index)) };
    // Without an earlier agent in the process, this agent's first allocation has opened an arena.
    if count < 3 || sys::arena::range().is_empty() {
        return 1;
    }
    let Some(stack) = argument(2).to_str().ok().and_then(parse_range) else { return 1 };
    start::add_own_range(stack);
    start::add_own_range((&raw const __ehdr_start).addr()..(&raw const _end).addr());
    if count == 5 {
        let text = |index| argument(index).to_str().unwrap_or("");
        let (Ok(control_page), Some(object)) = (usize::from_str_radix(text(3), 16), parse_range(text(4)))
        else {
            return 1;
        };
        start::add_own_range(object);
        // SAFETY: the object is never unloaded.
        unsafe { control_page::share(control_page) };
        control::share_arena();
    }
    control::remember_socket(argument(1));
    if let Ok(emulate) = std::env::var("UZSWAP_IAA_EMULATE") {
        paging::remember_emulation(&emulate);
    }
    let cleared = std::env::var("UZSWAP_CLEARED").ok();
    if let Some(address) = cleared.and_then(|text| usize::from_str_radix(&text, 16).ok()) {
        control_page::control_page().cleared.note(address);
    }
    if std::env::var_os("UZSWAP_ATTACHED").is_some() {
        control::note_attached();
        // Rings, pipes and sockets may refer to its pages, unseen.
        control_page::control_page().references.store(1, std::sync::atomic::Ordering::Release);
    }
    let process = std::env::var("UZSWAP_PROCESS").ok().and_then(|text| text.parse().ok());
    if let Some(process) = process {
        control_page::control_page().process.store(process, std::sync::atomic::Ordering::Release);
        control_page::control_page().lineage.store(process, std::sync::atomic::Ordering::Release);
    }
    broken::install();
    broken::choose_point();
    control::begin()
}

fn parse_range(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}
