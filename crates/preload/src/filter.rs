//! Whether the kernel would take a seccomp filter: paging ends for those of all threads, before the
//! call, and not for those that the kernel refuses.
//!
//! The kernel judges the flags first, then the filter and the caller's rights, and then looks for a
//! descriptor if a listener is asked for. So a trial asks for one without the means to have it, in
//! a process that shares this one's memory and has a descriptor limit of its own: EMFILE means that
//! all but the descriptor is right. No filter comes into force.

use core::ffi::c_long;
use core::mem::size_of_val;

use crate::calls::raw_syscall;
use crate::{signals, system};

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

extern "C" fn try_out(trial: &mut Trial) -> ! {
    let none = [0u64; 2];
    debug_assert_eq!(size_of_val(&none), size_of::<libc::rlimit>());
    let limit = [0, libc::RLIMIT_NOFILE as usize, none.as_ptr().addr(), 0, 0, 0];
    // SAFETY: the structure is whole; the kernel refuses unreadable filters.
    trial.answer = unsafe {
        raw_syscall(libc::SYS_prlimit64, limit);
        raw_syscall(libc::SYS_seccomp, [SET_MODE_FILTER, FLAG_NEW_LISTENER, trial.program, 0, 0, 0])
    };
    system::exit_process(0)
}

/// Runs [`try_out`] in a process on this thread's stack, while this thread waits. Returns the
/// process's number, or a negative error number.
///
/// # Safety
/// All signals are blocked: no handler may run in the process.
unsafe fn start(trial: &mut Trial) -> isize {
    let flags =
        libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_UNTRACED;
    let answer: isize;
    // SAFETY: the process only calls a function that does not return, below this frame.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, r9",
            "call {try_out}",
            "2:",
            try_out = sym try_out,
            inlateout("rax") libc::SYS_clone as isize => answer,
            in("rdi") flags as usize,
            in("rsi") 0usize,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") 0usize,
            in("r9") core::ptr::from_mut(trial),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x0, x9",
            "bl {try_out}",
            "2:",
            try_out = sym try_out,
            inlateout("x0") flags as usize => answer,
            in("x1") 0usize,
            in("x2") 0usize,
            in("x3") 0usize,
            in("x4") 0usize,
            in("x8") libc::SYS_clone,
            in("x9") core::ptr::from_mut(trial),
        );
    }
    answer
}
