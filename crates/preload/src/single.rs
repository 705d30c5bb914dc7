//! Calls that need a single-threaded process, which the agent's threads would prevent.

use core::ffi::{c_char, c_int, c_long, CStr};
use core::sync::atomic::Ordering;

use crate::calls::{raw_syscall, set_errno};
use crate::control_page::{is_alive, CONTROL_PAGE};
use crate::fork;
use crate::next::also_named;

/// Makes a call, and repeats it without the agent if the kernel requires a single thread.
pub fn unless_alone(call: impl Fn() -> c_long) -> c_long {
    match call() {
        answer if answer == -c_long::from(libc::EINVAL) => fork::alone(&call).unwrap_or(answer),
        answer => answer,
    }
}

/// unshare(2): a new user namespace needs a single thread.
#[no_mangle]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: no memory is touched.
    set_errno(unless_alone(|| unsafe { raw_syscall(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0]) }))
        as c_int
}

/// setns(2): as does another user namespace.
#[no_mangle]
pub unsafe extern "C" fn setns(file: c_int, kind: c_int) -> c_int {
    let arguments = [file as usize, kind as usize, 0, 0, 0, 0];
    // SAFETY: touches no memory.
    set_errno(unless_alone(|| unsafe { raw_syscall(libc::SYS_setns, arguments) })) as c_int
}

/// fstatat(2): a program that counts its threads by the links of /proc/self/task sees only its own.
/// (Chromium's zygote exits if it has several.)
#[no_mangle]
pub unsafe extern "C" fn fstatat(
    directory: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    let arguments = [directory as usize, path as usize, to as usize, flags as usize, 0, 0];
    // SAFETY: the caller's arguments.
    let answer = unsafe { raw_syscall(libc::SYS_newfstatat, arguments) };
    // SAFETY: the kernel has read the path, and filled the structure.
    if answer == 0 && unsafe { is_tasks(path) } {
        let agents = if is_alive() { CONTROL_PAGE.threads.load(Ordering::Acquire).max(1) } else { 0 };
        // SAFETY: as above.
        let links = unsafe { &mut (*to).st_nlink };
        // The directory's own two, and the caller's.
        *links = links.saturating_sub(agents.into()).max(3);
    }
    set_errno(answer) as c_int
}

also_named!(
    fstatat64,
    fstatat(directory: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int
);

/// Whether a path is the directory of this process's threads.
///
/// # Safety
/// Null or terminated.
unsafe fn is_tasks(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path == b"self/task" || path == b"/proc/self/task"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_tasks_is_known() {
        // SAFETY: terminated names.
        let is = |path: &CStr| unsafe { is_tasks(path.as_ptr()) };
        assert!(is(c"self/task/") && is(c"self/task") && is(c"/proc/self/task"));
        assert!(!is(c"") && !is(c"/") && !is(c"task") && !is(c"self/task/1") && !is(c"myself/task"));
    }
}
