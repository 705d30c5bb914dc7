//! The agent as a program that runs as a thread of another.
//!
//! It is linked statically, with a C library of its own, and can be mapped anywhere. The process
//! that injects it maps its segments, makes a thread with all signals blocked and a file table of
//! its own, gives it a stack with arguments, environment and auxiliary vector, and has it run from
//! the entry point, as a kernel does with a program. From there on it needs nothing of its host and
//! leaves nothing there: the C library relocates itself, gives this one thread its thread-local
//! storage, and calls [`main`] below. What its start would do to the process is replaced: all
//! memory comes from the arena (`heap`), and Rust's own start, which sets signal handlers, is left
//! out.
//!
//! Arguments: a name; the supervisor's socket; where the stack lies, as START-END in hex; where a
//! shared object has brought it, the address of the control page in hex, and where that object
//! lies.

#![no_main]

#[cfg(target_env = "gnu")]
mod heap;

use std::ffi::{c_char, c_int, CStr};
use std::ops::Range;

use agent::{broken, control, control_page, paging, start};

extern "C" {
    /// The first byte of the image and the first behind it, by the linker.
    static __ehdr_start: u8;
    static _end: u8;
}

/// Called by the C library.
///
/// # Safety
/// As C's `main`.
#[no_mangle]
unsafe extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: as many terminated strings as said.
    let argument = |index| unsafe { CStr::from_ptr(*arguments.add(index)) };
    // In processes that had no agent before, this one has opened an arena when it first needed
    // memory.
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
    broken::install();
    broken::choose_point();
    control::begin();
    // Not exit(), which is the whole process's.
    sys::thread::exit()
}

fn parse_range(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}
