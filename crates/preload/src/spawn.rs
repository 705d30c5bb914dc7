//! Makes the agent's process from a thread of the program, by clone(2) itself, since the C library
//! must not know it. It shares the memory and nothing else: no tracer of the program stops it, no
//! signal to the program reaches it, and it lives on when the program has ended. It inherits that
//! all signals are blocked, and becomes a child of the supervisor.

use core::ffi::{c_int, c_long};
use core::sync::atomic::{AtomicU32, Ordering};

use doorway::thread;

use crate::calls::raw_syscall;
use crate::control_page::CONTROL_PAGE;
use crate::signals::blocked;
use crate::system;

/// Makes a process whose stack holds, upwards, an argument and a function, with its own thread
/// pointer unless that is 0, and notes whether there is one. Returns false if none is possible.
///
/// # Safety
/// Stack and thread pointer belong to the process from now on.
pub unsafe fn agent(stack: usize, thread_pointer: usize) -> bool {
    let number = AtomicU32::new(0);
    let words = thread::Words { number: &number, alive: &CONTROL_PAGE.is_alive };
    words.alive.store(1, Ordering::Release);
    let is_made = may_have_children() && {
        // SAFETY: the caller's promise, and all signals are blocked.
        let begin = || unsafe { thread::begin_orphan(stack, thread_pointer, words) };
        blocked(|| is_made(begin()))
    };
    if is_made {
        permit(number.load(Ordering::Acquire));
    } else {
        words.alive.store(0, Ordering::Release);
    }
    is_made
}

/// Whether this thread's children are in its own process namespace. If not, the first one is the
/// process without which there can be no other, and must be the program's.
pub fn may_have_children() -> bool {
    let number = |path| system::status(path).map(|file| file.st_ino);
    number(c"/proc/thread-self/ns/pid") == number(c"/proc/thread-self/ns/pid_for_children")
}

/// Lets the agent read which system call blocks a thread, also where Yama permits that to a
/// process's ancestors only.
fn permit(agent: u32) {
    // SAFETY: concerns no memory. Fails where there is no Yama.
    unsafe { raw_syscall(libc::SYS_prctl, [libc::PR_SET_PTRACER as usize, agent as usize, 0, 0, 0, 0]) };
}

/// Waits for the process between. Returns whether it made the agent.
fn is_made(between: isize) -> bool {
    let mut status: c_int = -1;
    let arguments = [between as usize, (&raw mut status).addr(), libc::__WALL as usize, 0, 0, 0];
    // SAFETY: the status is writable.
    let answer = || unsafe { raw_syscall(libc::SYS_wait4, arguments) };
    between > 0
        && match answer() {
            // A thread that waits for any child has its status.
            error if error == -c_long::from(libc::ECHILD) => true,
            _ => status == 0,
        }
}
