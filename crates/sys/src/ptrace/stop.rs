//! Stops of a traced thread, and waits for them.

use std::mem::MaybeUninit;

use super::{request, TraceError};
use crate::procfs::behind_name;
use crate::thread;

/// PTRACE_EVENT_STOP in a wait status.
const EVENT_STOP: i32 = 128;
const EVENT_CLONE: i32 = libc::PTRACE_EVENT_CLONE;
/// Without news of a stop for this time the thread's state is read: other threads of this process
/// that wait for any child take the news away.
const UNHEARD_NS: u64 = 2_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Interrupt,
    Call,
    Cloned,
    Signal(i32),
    /// A group stop, by a signal.
    Group,
    /// The start of another program.
    Executed,
}

/// A stop from its event, which is 0 for signals and system calls, and its signal.
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

/// Waits until a thread stops, at most `patience_ns`, also if another thread took the stop's news.
pub(super) fn wait_for(thread: i32, patience_ns: u64) -> Result<Stop, TraceError> {
    let begin = crate::now_ns();
    let mut pause_ns = 1_000;
    loop {
        let mut status = 0;
        // Only this thread's own tracees: a thread that is no longer traced is not one of them,
        // though its process may be a child of this one.
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

/// Waits for a stop that is certain but may be late: the thread needs a CPU, or the end of our
/// system call. Giving up would leave it with foreign registers.
pub(super) fn wait(thread: i32) -> Result<Stop, TraceError> {
    wait_for(thread, u64::MAX)
}

/// Whether a traced thread has ended. The end of a process's first thread is reported only after
/// its others have ended. One of those may be executing a program, and waits until the ends of all
/// traced threads have been read.
fn has_ended(thread: i32) -> bool {
    let stat = std::fs::read(format!("/proc/{thread}/stat")).unwrap_or_default();
    let state = behind_name(&stat).and_then(|mut fields| fields.next());
    matches!(state, None | Some(b"Z" | b"X"))
}

/// The current stop of a traced thread, if it is stopped.
fn present_stop(thread: i32) -> Option<Stop> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    request(libc::PTRACE_GETSIGINFO, thread, 0, info.as_mut_ptr().addr()).ok()?;
    // SAFETY: plain numbers, filled by the kernel.
    let info = unsafe { info.assume_init() };
    // A stop without a signal has its code in the field that otherwise only the kernel sets.
    Some(match (info.si_signo, info.si_code & 0xff) {
        (libc::SIGTRAP, code) if code == libc::SIGTRAP | 0x80 => Stop::Call,
        _ => stop_by(info.si_code >> 8, info.si_signo),
    })
}
