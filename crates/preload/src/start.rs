//! Runs when the dynamic loader has mapped this object into a program.

use core::ffi::{c_char, c_int, CStr};
use core::ops::Range;

use crate::control_page;
use crate::{
    cleared, credentials, environment, exec, fork, limits, loader, memory_limit, parent, sanitizer, sharing,
    system, threads, valgrind,
};

const VARIABLES_MAX: usize = 8;

extern "C" {
    /// The first byte of this object, defined by the linker.
    static __ehdr_start: u8;
    static _end: u8;
}

extern "C" fn constructor(_argc: c_int, _argv: *const *const c_char, _envp: *const *const c_char) {
    // SAFETY: no other thread changes the environment while constructors run.
    let variable = |name| unsafe { system::variable(name) };
    // Without a supervisor's socket, or with an empty name, this object does nothing.
    let socket = variable(c"UZSWAP_SOCKET").filter(|name| !name.is_empty());
    let (Some(socket), Some(agent)) = (socket, variable(c"UZSWAP_AGENT")) else { return };
    if valgrind::runs_this() {
        return;
    }
    // SAFETY: this is the constructor.
    unsafe { environment::remember() };
    exec::prepare();
    credentials::prepare();
    sharing::prepare();
    sanitizer::prepare();
    memory_limit::prepare();
    limits::prepare();
    parent::prepare();
    threads::prepare();
    fork::install();
    control_page::note_process();
    cleared::prepare();
    let mut entries: [&[u8]; VARIABLES_MAX] = [b""; VARIABLES_MAX];
    // SAFETY: as above.
    let all =
        unsafe { environment::entries(environment::own()).map(|entry| CStr::from_ptr(entry).to_bytes()) };
    let wanted = all.filter(|entry| entry.starts_with(b"UZSWAP_") && !entry.starts_with(b"UZSWAP_SOCKET="));
    let count = wanted.zip(&mut entries).map(|(from, to)| *to = from).count();
    loader::start(agent, socket, own_range(), &entries[..count]);
    limits::await_arena();
}

fn own_range() -> Range<usize> {
    (&raw const __ehdr_start).addr()..(&raw const _end).addr()
}

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = constructor;
