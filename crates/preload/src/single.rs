//! Calls that need a single-threaded process, which the agent's threads would prevent.

use core::ffi::{c_char, c_int, c_long, CStr};
use core::sync::atomic::Ordering;

use crate::calls::{raw_syscall, set_errno};
use crate::control_page::{is_alive, CONTROL_PAGE};
use crate::next::also_named;
use crate::{fork, system};

/// Makes a call of this number, unshare(2) or setns(2), and repeats it without the agent if the
/// kernel requires a single thread.
pub fn unless_alone(number: c_long, a: usize, b: usize) -> c_long {
    // SAFETY: touches no memory.
    let call = || unsafe { raw_syscall(number, [a, b, 0, 0, 0, 0]) };
    match call() {
        answer if answer == -c_long::from(libc::EINVAL) && needs_one_thread(number, a, b) => {
            fork::alone(call).unwrap_or(answer)
        }
        answer => answer,
    }
}

/// Whether a call that was refused may succeed with one thread.
fn needs_one_thread(number: c_long, a: usize, b: usize) -> bool {
    const NEEDED: c_int = libc::CLONE_NEWUSER | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
    const OTHERS: c_int = libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SYSVSEM
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWCGROUP
        | NEW_TIME;
    /// `CLONE_NEWTIME` of the kernel's sched.h.
    const NEW_TIME: c_int = 0x80;
    /// `NS_GET_NSTYPE` of the kernel's nsfs.h.
    const KIND_REQUEST: usize = 0xb703;
    if number == libc::SYS_unshare {
        let flags = a as c_int;
        return flags & NEEDED != 0 && flags & !(NEEDED | OTHERS) == 0;
    }
    let new_user = libc::CLONE_NEWUSER as usize;
    b & new_user != 0 || system::ioctl(a as isize, KIND_REQUEST, 0) == new_user as isize
}

/// unshare(2): a new user namespace needs a single thread.
#[no_mangle]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    set_errno(unless_alone(libc::SYS_unshare, flags as usize, 0)) as c_int
}

/// setns(2): as does another user namespace.
#[no_mangle]
pub unsafe extern "C" fn setns(file: c_int, kind: c_int) -> c_int {
    set_errno(unless_alone(libc::SYS_setns, file as usize, kind as usize)) as c_int
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
    fn only_calls_about_threads_are_repeated() {
        let unshare = |flags: c_int| needs_one_thread(libc::SYS_unshare, flags as usize, 0);
        assert!(unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) && unshare(libc::CLONE_VM));
        assert!(!unshare(1) && !unshare(libc::CLONE_NEWUSER | 1) && !unshare(libc::CLONE_NEWNS));
        assert!(!needs_one_thread(libc::SYS_setns, usize::MAX, libc::CLONE_NEWNET as usize));
        assert!(needs_one_thread(libc::SYS_setns, usize::MAX, libc::CLONE_NEWUSER as usize));
    }

    #[test]
    fn the_path_of_tasks_is_known() {
        // SAFETY: terminated names.
        let is = |path: &CStr| unsafe { is_tasks(path.as_ptr()) };
        assert!(is(c"self/task/") && is(c"self/task") && is(c"/proc/self/task"));
        assert!(!is(c"") && !is(c"/") && !is(c"task") && !is(c"self/task/1") && !is(c"myself/task"));
    }
}
