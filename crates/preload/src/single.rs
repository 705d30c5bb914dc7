//! Calls that the kernel permits only to a process that shares its memory with no other, as the
//! agent's does.

use core::ffi::{c_int, c_long};

use crate::calls::{raw_syscall, set_errno};
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
        answer => {
            if answer == 0 && enters_user_namespace(number, a, b) {
                fork::share_restrictions();
            }
            answer
        }
    }
}

/// Whether the caller is in another user namespace after the call: so must the agent be.
fn enters_user_namespace(number: c_long, a: usize, b: usize) -> bool {
    /// `NS_GET_NSTYPE` of the kernel's nsfs.h.
    const KIND_REQUEST: usize = 0xb703;
    let new_user = libc::CLONE_NEWUSER as usize;
    match number {
        libc::SYS_unshare => a & new_user != 0,
        _ => b & new_user != 0 || system::ioctl(a as isize, KIND_REQUEST, 0) == new_user as isize,
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
    if number == libc::SYS_unshare {
        let flags = a as c_int;
        return flags & NEEDED != 0 && flags & !(NEEDED | OTHERS) == 0;
    }
    enters_user_namespace(number, a, b)
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
}
