//! Blocks signals while a thread of the program is inside this object and must not re-enter it, or
//! leave by a jump out of a handler. A thread inside does not wait for anything that a handler
//! would bring about.

use crate::calls::raw_syscall;

const SET_BYTES: usize = 8;

fn change(set: u64) -> u64 {
    let mut before = 0u64;
    let arguments =
        [libc::SIG_SETMASK as usize, (&raw const set).addr(), (&raw mut before).addr(), SET_BYTES, 0, 0];
    // SAFETY: both sets have SET_BYTES.
    unsafe { raw_syscall(libc::SYS_rt_sigprocmask, arguments) };
    before
}

/// Blocks all signals of the calling thread. Returns the previously blocked set.
pub fn block() -> u64 {
    change(!0)
}

/// Blocks this set alone.
pub fn restore(set: u64) {
    change(set);
}

pub fn blocked<T>(act: impl FnOnce() -> T) -> T {
    let before = block();
    let answer = act();
    restore(before);
    answer
}
