//! Whether the kernel would take a seccomp filter: paging ends for those of all threads, before the
//! call, and not for those that the kernel refuses.
//!
//! The kernel judges the flags first, then the filter and the caller's rights, and then looks for a
//! descriptor if a listener is asked for. So a trial asks for one without the means to have it, in
//! a process that shares this one's memory and has a descriptor limit of its own: EMFILE means that
//! all but the descriptor is right. No filter comes into force.
//!
//! After unshare(CLONE_NEWPID) a thread's next child is the first process of a namespace, which
//! ends with it. That must be the program's, so there is no trial then.

use core::ffi::c_long;
use core::mem::size_of_val;

use doorway::thread;

use crate::calls::raw_syscall;
use crate::{signals, spawn};

/// `SECCOMP_SET_MODE_FILTER` and flags of the kernel's seccomp.h.
pub const SET_MODE_FILTER: usize = 1;
pub const FLAG_TSYNC: usize = 1 << 0;
const FLAG_NEW_LISTENER: usize = 1 << 3;

struct Trial {
    program: usize,
    answer: c_long,
}

/// Whether the kernel would take this filter. If that cannot be tried out, it would.
pub fn would_be_taken(flags: usize, program: usize) -> bool {
    // SAFETY: no filter is at this address, so none is set.
    let answer = unsafe { raw_syscall(libc::SYS_seccomp, [SET_MODE_FILTER, flags, 0, 0, 0, 0]) };
    if answer != -c_long::from(libc::EFAULT) {
        return false;
    }
    if !spawn::may_have_children() {
        return true;
    }
    let mut trial = Trial { program, answer: 0 };
    signals::blocked(|| {
        // SAFETY: the structure lives until the process has ended, which this waits for.
        let process = unsafe { start(&mut trial) };
        if process > 0 {
            // SAFETY: asks for no status. No signal tells of this process's end.
            unsafe { raw_syscall(libc::SYS_wait4, [process as usize, 0, libc::__WALL as usize, 0, 0, 0]) };
        }
    });
    trial.answer >= 0 || trial.answer == -c_long::from(libc::EMFILE)
}

extern "C" fn try_out(trial: &mut Trial) {
    let none = [0u64; 2];
    debug_assert_eq!(size_of_val(&none), size_of::<libc::rlimit>());
    let limit = [0, libc::RLIMIT_NOFILE as usize, none.as_ptr().addr(), 0, 0, 0];
    // SAFETY: the structure is whole; the kernel refuses unreadable filters.
    trial.answer = unsafe {
        raw_syscall(libc::SYS_prlimit64, limit);
        raw_syscall(libc::SYS_seccomp, [SET_MODE_FILTER, FLAG_NEW_LISTENER, trial.program, 0, 0, 0])
    };
}

/// The process's stack. At its top are an argument and a function, as [`thread::begin`] takes them.
#[repr(align(16))]
struct Stack([usize; 512]);

/// Runs [`try_out`] in a process that shares this one's memory, while this thread waits. Returns
/// the process's number, or a negative error number.
///
/// # Safety
/// All signals are blocked: no handler may run in the process.
unsafe fn start(trial: &mut Trial) -> isize {
    let flags =
        libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_UNTRACED;
    let mut stack = Stack([0; 512]);
    let top = stack.0.len() - 2;
    stack.0[top] = core::ptr::from_mut(trial).expose_provenance();
    stack.0[top + 1] = try_out as *const () as usize;
    // SAFETY: by CLONE_VFORK this frame, and the stack in it, outlive the process.
    unsafe { thread::begin(flags as usize, stack.0[top..].as_mut_ptr().expose_provenance(), 0) }
}
