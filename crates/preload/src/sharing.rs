//! Other processes that share this one's memory: children of vfork() before their exec, and those
//! of clone() with CLONE_VM and without CLONE_THREAD. They run this object's code with this one's
//! variables, so [`crate::control_page::is_own_process`] must know when there may be one.
//!
//! A call that returns when its child no longer shares the memory is counted while it runs; any
//! other only sets a flag. System call instructions are not seen.

use core::ffi::{c_int, c_long};
use core::sync::atomic::Ordering;

use doorway::control_page::{ControlPage, Sharing};

use crate::calls::set_errno;
use crate::control_page::{is_set, set, CONTROL_PAGE};
use crate::next::library;
use crate::{cleared, system};

library! {
    /// Looks the function up in advance.
    pub fn prepare();
    CLONE: clone(usize, usize, c_int, usize, usize, usize, usize) -> c_int;
}

pub fn is_possible() -> bool {
    let sharing = &CONTROL_PAGE.sharing;
    is_set(&sharing.calls) || is_set(&sharing.uncounted)
}

/// In a forked child, which has its own memory.
pub fn forget() {
    let sharing = &CONTROL_PAGE.sharing;
    sharing.calls.store(0, Ordering::Release);
    sharing.uncounted.store(0, Ordering::Release);
}

/// Calls a function like posix_spawn(), whose child shares this memory until its exec.
pub fn while_shared<T>(start: impl FnOnce() -> T) -> T {
    let calls = &CONTROL_PAGE.sharing.calls;
    calls.fetch_add(1, Ordering::AcqRel);
    let result = start();
    calls.fetch_sub(1, Ordering::AcqRel);
    result
}

/// Notes a system call by number.
pub fn note_call(number: c_long, arguments: &[usize; 6]) {
    let flags = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => libc::CLONE_VM as u64,
        libc::SYS_clone => arguments[0] as u64,
        libc::SYS_clone3 => system::read_own(arguments[0]).unwrap_or(0),
        _ => return,
    };
    if shares(flags) {
        set(&CONTROL_PAGE.sharing.uncounted);
    }
}

/// Whether clone(2) with these flags makes a process that shares memory.
fn shares(flags: u64) -> bool {
    flags & (libc::CLONE_VM | libc::CLONE_THREAD) as u64 == libc::CLONE_VM as u64
}

/// clone(2) of the C library. Arguments that the caller did not pass are readable, and passed on.
#[no_mangle]
pub unsafe extern "C" fn clone(
    function: usize,
    stack: usize,
    flags: c_int,
    argument: usize,
    parents: usize,
    pointer: usize,
    cleared: usize,
) -> c_int {
    let Some(next) = CLONE.function() else {
        return set_errno(-c_long::from(libc::ENOSYS)) as c_int;
    };
    cleared::note(flags, cleared);
    // SAFETY: the caller's arguments. The child begins on the caller's stack, with the caller's
    // function.
    let call = || unsafe { next(function, stack, flags, argument, parents, pointer, cleared) };
    if !shares(flags as u64) {
        return call();
    }
    if flags & libc::CLONE_VFORK != 0 {
        return while_shared(call);
    }
    set(&CONTROL_PAGE.sharing.uncounted);
    call()
}

/// Offset at which [`vfork`] finds the number of running calls.
const CALLS: usize = core::mem::offset_of!(ControlPage, sharing) + core::mem::offset_of!(Sharing, calls);

extern "C" fn refused(answer: c_long) -> c_int {
    set_errno(answer) as c_int
}

/// vfork(2). It returns twice on the same stack, so it keeps its return address in a register, as
/// the C library's does. Only the parent's return counts down: the child's memory is the parent's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn vfork() -> c_int {
    core::arch::naked_asm!(
        "endbr64",
        "pop rdi",
        "lock inc dword ptr [rip + {page} + {calls}]",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "test rax, rax",
        "jz 2f",
        "lock dec dword ptr [rip + {page} + {calls}]",
        "test rax, rax",
        "js 3f",
        "2:",
        "ret",
        "3:",
        "mov rdi, rax",
        "jmp {refused}",
        page = sym CONTROL_PAGE,
        calls = const CALLS,
        number = const libc::SYS_vfork,
        refused = sym refused,
    )
}

/// vfork(2), as above; the return address is already in a register.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn vfork() -> c_int {
    core::arch::naked_asm!(
        "adrp x9, {page}",
        "add x9, x9, :lo12:{page}",
        "mov x10, {calls}",
        "add x9, x9, x10",
        "1:",
        "ldaxr w10, [x9]",
        "add w10, w10, #1",
        "stlxr w11, w10, [x9]",
        "cbnz w11, 1b",
        "mov x0, {flags}",
        "mov x1, #0",
        "mov x8, {number}",
        "svc #0",
        "cbz x0, 3f",
        "2:",
        "ldaxr w10, [x9]",
        "sub w10, w10, #1",
        "stlxr w11, w10, [x9]",
        "cbnz w11, 2b",
        "tbnz x0, #63, 4f",
        "3:",
        "ret",
        "4:",
        "b {refused}",
        page = sym CONTROL_PAGE,
        calls = const CALLS,
        flags = const libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
        number = const libc::SYS_clone,
        refused = sym refused,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    static ONE: Mutex<()> = Mutex::new(());

    #[test]
    fn calls_that_share_memory_are_known() {
        let _one = ONE.lock().unwrap();
        let is_noted = |number, first: usize| {
            forget();
            note_call(number, &[first, 0, 0, 0, 0, 0]);
            is_possible()
        };
        let shares = libc::CLONE_VM as usize;
        assert!(is_noted(libc::SYS_clone, shares) && !is_noted(libc::SYS_clone, libc::SIGCHLD as usize));
        assert!(!is_noted(libc::SYS_clone, shares | libc::CLONE_THREAD as usize), "a thread");
        assert!(!is_noted(libc::SYS_getpid, shares));
        let words = [libc::CLONE_VM as u64, 0];
        assert!(is_noted(libc::SYS_clone3, words.as_ptr().addr()));
        forget();
        assert!(while_shared(is_possible) && !is_possible());
    }

    /// A later call is not taken for one of a process with this memory.
    #[test]
    fn a_child_of_vfork_counts_while_it_shares_the_memory() {
        let _one = ONE.lock().unwrap();
        forget();
        // SAFETY: the child ends at once, by its own call.
        let child = unsafe {
            let child = vfork();
            if child == 0 {
                crate::calls::raw_syscall(libc::SYS_exit, [usize::from(!is_possible()), 0, 0, 0, 0, 0]);
            }
            child
        };
        let mut status = -1;
        // SAFETY: a child of this test.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, libc::__WALL) }, child);
        assert_eq!((status, is_possible()), (0, false));
    }
}
