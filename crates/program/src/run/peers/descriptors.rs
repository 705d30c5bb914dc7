//! The descriptor limit: the supervisor holds several descriptors for each process of the tree.

use std::sync::OnceLock;

static BEFORE: OnceLock<libc::rlimit> = OnceLock::new();

fn current() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit
}

/// Raises the soft limit as far as permitted. [`restore`] gives the program the old one.
pub fn raise() {
    let before = *BEFORE.get_or_init(current);
    let raised = libc::rlimit { rlim_cur: before.rlim_max, ..before };
    // SAFETY: the structure is whole.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) };
}

pub fn limit() -> i32 {
    i32::try_from(current().rlim_cur).unwrap_or(i32::MAX)
}

/// Restores the old limit in the child that becomes the program. Async-signal-safe.
pub fn restore() {
    if let Some(before) = BEFORE.get() {
        // SAFETY: the structure is whole.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, before) };
    }
}
