//! How a traced thread is stopped, and waiting until it is.

use std::mem::MaybeUninit;

use super::{request, TraceError};
use crate::thread;

/// What PTRACE_EVENT_STOP is in a wait status.
const EVENT_STOP: i32 = 128;
const EVENT_CLONE: i32 = libc::PTRACE_EVENT_CLONE;
/// Without word of a stop for so long the thread itself is asked: other threads of this process
/// that wait for any child take that word away.
const UNHEARD_NS: u64 = 2_000_000;

/// How a stop came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Interrupt,
    Call,
    Cloned,
    Signal(i32),
    /// With all other threads, by a signal.
    Group,
    /// At the begin of another program.
    Executed,
}

/// A stop by its event, which is 0 for a signal's and a system call's, and its signal.
fn stop_by(event: i32, signal: i32) -> Stop {
    match (event, signal) {
        (EVENT_STOP, libc::SIGTRAP) => Stop::Interrupt,
        (EVENT_STOP, _) => Stop::Group,
        (EVENT_CLONE, _) => Stop::Cloned,
        (libc::PTRACE_EVENT_EXEC, _) => Stop::Executed,
        (_, signal) if signal == libc::SIGTRAP | 0x80 => Stop::Call,
        (_, signal) => Stop::Signal(signal),
    }
}

/// Waits until a thread stops, at most for so long. A thread of which others took the word of its
/// stop is found stopped all the same.
pub(super) fn wait_for(thread: i32, patience_ns: u64) -> Result<Stop, TraceError> {
    let begin = crate::now_ns();
    let mut pause_ns = 1_000;
    loop {
        let mut status = 0;
        // Of this thread's own tracees alone: a thread that is not traced any more is none of
        // those, though its process may be a child of this one.
        let how = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
        // SAFETY: the status is writable.
        match unsafe { libc::waitpid(thread, &mut status, how) } {
            0 => {}
            found if found == thread && libc::WIFSTOPPED(status) => {
                return Ok(stop_by(status >> 16, libc::WSTOPSIG(status)));
            }
            _ => return Err(TraceError::Gone),
        }
        let waited_ns = crate::now_ns() - begin;
        if waited_ns > UNHEARD_NS {
            if let Some(stop) = present_stop(thread) {
                return Ok(stop);
            }
            if has_ended(thread) {
                return Err(TraceError::Gone);
            }
        }
        if waited_ns > patience_ns {
            return Err(TraceError::Busy);
        }
        thread::sleep_ns(pause_ns);
        pause_ns = (pause_ns * 2).min(200_000);
    }
}

/// Waits for a stop that is sure to come, be it late: the thread needs a CPU, or the end of a
/// system call of ours. To give up would leave it with registers that are not its own.
pub(super) fn wait(thread: i32) -> Result<Stop, TraceError> {
    wait_for(thread, u64::MAX)
}

/// Whether a traced thread has ended. There is no word of a process's first thread before its
/// others have ended, one that begins a program among them, which in turn waits until the end of
/// all that are traced has been heard of.
fn has_ended(thread: i32) -> bool {
    let stat = std::fs::read(format!("/proc/{thread}/stat")).unwrap_or_default();
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    matches!(state, None | Some(b'Z' | b'X'))
}

/// How a traced thread is stopped at present, if it is.
fn present_stop(thread: i32) -> Option<Stop> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    request(libc::PTRACE_GETSIGINFO, thread, 0, info.as_mut_ptr().addr()).ok()?;
    // SAFETY: plain numbers, filled by the kernel.
    let info = unsafe { info.assume_init() };
    // A stop that is no signal's has its code in the place of one that the kernel alone gives.
    Some(match (info.si_signo, info.si_code & 0xff) {
        (libc::SIGTRAP, code) if code == libc::SIGTRAP | 0x80 => Stop::Call,
        _ => stop_by(info.si_code >> 8, info.si_signo),
    })
}
