//! Briefly stops threads of other processes and makes them do system calls.
//!
//! A thread makes the calls at a system call instruction that the process already has (in the
//! vDSO), so that no byte of the process changes. Afterwards the thread is as before:
//!
//! * its registers are restored, and it stops once more before it continues: at such a stop the
//!   kernel decides whether an interrupted system call restarts, also if a signal arrived in
//!   between;
//! * its signals are blocked during the calls, so that none of its handlers runs;
//! * a thread inside a restartable sequence continues at its abort handler, as after a preemption.
//!
//! On aarch64 the kernel has already rewound the thread before the first stop, as if the
//! interruption had come before the system call. So a sleep by duration restarts, unlike one until
//! a time. A system call there also discards the upper parts of the wide vector registers (SVE),
//! which are restored.

mod memory;
mod registers;
mod sequence;
mod stop;
#[cfg(test)]
mod tests;
mod vectors;

use std::io;

pub use self::memory::Memory;
use self::registers::{registers, returned, set_call, set_registers, set_start};
pub use self::registers::{Registers, CALL_INSTRUCTION};
use self::sequence::leave_restartable_sequence;
use self::stop::{wait, wait_for, Stop};
use self::vectors::Vectors;

const GETSIGMASK: u32 = 0x420a;
const SETSIGMASK: u32 = 0x420b;
/// Options of a traced thread. They do not cover threads that it makes itself.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
/// Attempts at a system call that signals interrupt before it begins.
const TRIES: u32 = 5;
const ERESTARTNOINTR: i64 = 513;

/// Why a thread could not be stopped, or is no longer.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It has ended.
    #[error("it has ended")]
    Gone,
    /// Not permitted, or another process traces it already.
    #[error("it may not be traced")]
    NotPermitted,
    /// A signal stopped it during a call; it is left alone.
    #[error("it is stopped")]
    Stopped,
    /// It did not stop in time: it is in an uninterruptible wait.
    #[error("it cannot be interrupted at present")]
    Busy,
    /// It has executed another program; it is left alone.
    #[error("it has begun another program")]
    Executed,
    /// The kernel refused a call that it was made to do.
    #[error("{0}")]
    Refused(&'static str, #[source] io::Error),
}

/// The thread's state after its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// It continues where it was.
    GoesOn,
    /// We made it for one purpose: it ends.
    Ends,
    /// It runs elsewhere for good.
    Diverted,
}

/// A thread traced by this thread. On drop it continues as before, or with the registers set.
#[derive(Debug)]
pub struct Tracee {
    thread: i32,
    saved: Registers,
    vectors: Vectors,
    mask: u64,
    /// Address of a system call instruction.
    call_at: usize,
    after: After,
    is_stopped: bool,
}

fn request(request: u32, thread: i32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: callers pass the arguments of the request.
    let returned = unsafe { libc::ptrace(request as _, thread, address, data) };
    if returned == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(returned)
}

fn error_of(error: io::Error) -> TraceError {
    match error.raw_os_error() {
        Some(libc::EPERM) => TraceError::NotPermitted,
        _ => TraceError::Gone,
    }
}

/// A traced, unchanged thread. On drop it continues.
#[derive(Debug)]
struct Unchanged(i32);

impl Drop for Unchanged {
    fn drop(&mut self) {
        let _ = request(libc::PTRACE_DETACH, self.0, 0, 0);
    }
}

/// A stopped, unchanged thread. On drop it continues.
#[derive(Debug)]
pub struct Held {
    thread: Unchanged,
    registers: Registers,
}

impl Held {
    /// Stops a thread of another process, wherever it is, within `patience_ns`. A thread of a
    /// stopped process is taken, too: the kernel stops it again when it is released.
    ///
    /// # Errors
    /// [`TraceError::NotPermitted`] also for a thread that is already traced. After
    /// [`TraceError::Busy`] it stays traced until the calling thread ends.
    pub fn seize(thread: i32, patience_ns: u64) -> Result<Self, TraceError> {
        request(libc::PTRACE_SEIZE, thread, 0, OPTIONS as usize).map_err(error_of)?;
        request(libc::PTRACE_INTERRUPT, thread, 0, 0).map_err(error_of)?;
        Self::await_interrupt(thread, patience_ns)
    }

    fn await_interrupt(thread: i32, patience_ns: u64) -> Result<Self, TraceError> {
        loop {
            let stop = wait_for(thread, patience_ns)?;
            match stop {
                Stop::Interrupt | Stop::Group => break,
                // Not ours: deliver it; the interruption follows.
                Stop::Signal(signal) => {
                    request(libc::PTRACE_CONT, thread, 0, signal as usize).map_err(error_of)?;
                }
                Stop::Executed => {
                    drop(Unchanged(thread));
                    return Err(TraceError::Executed);
                }
                Stop::Call | Stop::Cloned => {
                    request(libc::PTRACE_CONT, thread, 0, 0).map_err(error_of)?;
                }
            }
        }
        let held = Unchanged(thread);
        Ok(Held { registers: registers(thread)?, thread: held })
    }

    /// Its kernel id.
    pub fn thread(&self) -> i32 {
        self.thread.0
    }

    /// Its memory.
    pub fn memory(&self) -> Memory {
        Memory::of(self.thread.0)
    }

    /// Its registers.
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Takes the thread for system calls. `call_at` is the address of a system call instruction in
    /// it.
    ///
    /// # Errors
    /// If it has ended.
    pub fn take(self, call_at: usize) -> Result<Tracee, TraceError> {
        let Held { thread, registers: mut saved } = self;
        leave_restartable_sequence(thread.0, &mut saved);
        let tracee = Tracee::take(thread.0, saved, call_at)?;
        std::mem::forget(thread);
        Ok(tracee)
    }
}

impl Tracee {
    /// Takes a stopped thread, which will continue with the registers `saved`.
    fn take(thread: i32, saved: Registers, call_at: usize) -> Result<Self, TraceError> {
        let vectors = Vectors::of(thread);
        let mut mask = 0u64;
        request(GETSIGMASK, thread, 8, (&raw mut mask).addr()).map_err(error_of)?;
        let all = u64::MAX;
        request(SETSIGMASK, thread, 8, (&raw const all).addr()).map_err(error_of)?;
        Ok(Tracee { thread, saved, vectors, mask, call_at, after: After::GoesOn, is_stopped: true })
    }

    /// Its kernel id.
    pub fn thread(&self) -> i32 {
        self.thread
    }

    /// Its memory.
    pub fn memory(&self) -> Memory {
        Memory::of(self.thread)
    }

    /// Makes the thread do a system call. Returns the call's result, or the kernel's error.
    ///
    /// # Errors
    /// If the thread has ended, or a signal stopped it.
    pub fn call(&mut self, number: i64, arguments: [usize; 6]) -> Result<io::Result<usize>, TraceError> {
        self.call_noting(number, arguments).map(|(returned, _)| returned)
    }

    /// As [`Self::call`]; also returns the thread that the call made, stopped.
    fn call_noting(
        &mut self,
        number: i64,
        arguments: [usize; 6],
    ) -> Result<(io::Result<usize>, Option<i32>), TraceError> {
        let mut made = None;
        for _ in 0..TRIES {
            let mut registers = self.saved;
            set_call(&mut registers, self.call_at, number, arguments);
            set_registers(self.thread, &registers)?;
            // The entry, then the exit.
            let mut seen = 0;
            while seen < 2 {
                self.go_on(libc::PTRACE_SYSCALL, 0)?;
                match wait(self.thread) {
                    Ok(Stop::Call) => seen += 1,
                    Ok(Stop::Cloned) => {
                        let mut message = 0usize;
                        let at = (&raw mut message).addr();
                        request(libc::PTRACE_GETEVENTMSG, self.thread, 0, at).map_err(error_of)?;
                        made = Some(message as i32);
                    }
                    // SIGSTOP, which cannot be blocked, is delivered at the end.
                    Ok(Stop::Signal(signal)) => {
                        self.is_stopped = true;
                        self.release(signal);
                        return Err(TraceError::Stopped);
                    }
                    // Not by our call: the registers are another program's.
                    Ok(Stop::Executed) => {
                        let _ = request(libc::PTRACE_DETACH, self.thread, 0, 0);
                        return Err(TraceError::Executed);
                    }
                    Ok(Stop::Interrupt | Stop::Group) => {}
                    Err(error) => return Err(error),
                }
                self.is_stopped = true;
            }
            let returned = returned(&self::registers(self.thread)?);
            if returned != -ERESTARTNOINTR {
                let is_error = (-4095..0).contains(&returned);
                let returned = if is_error {
                    Err(io::Error::from_raw_os_error(-returned as i32))
                } else {
                    Ok(returned as usize)
                };
                return Ok((returned, made));
            }
        }
        Err(TraceError::Busy)
    }

    fn go_on(&mut self, how: u32, signal: i32) -> Result<(), TraceError> {
        self.is_stopped = false;
        request(how, self.thread, 0, signal as usize).map_err(error_of).map(|_| ())
    }

    /// Makes the thread clone a thread with `flags` of clone(2), which include CLONE_VM and
    /// CLONE_THREAD. The new thread is stopped before it does anything, on the same stack.
    ///
    /// # Errors
    /// If the kernel refuses another thread.
    pub fn clone_thread(&mut self, flags: i32) -> Result<Tracee, TraceError> {
        let set_options = |options: i32| {
            request(libc::PTRACE_SETOPTIONS, self.thread, 0, options as usize).map_err(error_of)
        };
        set_options(OPTIONS | libc::PTRACE_O_TRACECLONE)?;
        let (returned, made) = self.call_noting(libc::SYS_clone, [flags as usize, 0, 0, 0, 0, 0])?;
        let made = match (returned, made) {
            (Err(error), _) => return Err(TraceError::Refused("no more threads", error)),
            (Ok(_), None) => return Err(TraceError::Gone),
            (Ok(_), Some(made)) => made,
        };
        let stop = wait(made)?;
        debug_assert!(matches!(stop, Stop::Interrupt | Stop::Group), "{stop:?}");
        let saved = registers(made)?;
        let (mask, call_at, vectors) = (u64::MAX, self.call_at, Vectors::none());
        Ok(Tracee { thread: made, saved, vectors, mask, call_at, after: After::Ends, is_stopped: true })
    }

    /// Makes the thread begin at `entry` with a stack, as a program does, when it is released.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn divert(&mut self, entry: usize, stack: usize) -> Result<(), TraceError> {
        let mut registers = self.saved;
        set_start(&mut registers, entry, stack);
        set_registers(self.thread, &registers)?;
        self.after = After::Diverted;
        Ok(())
    }

    /// Restores the thread and releases it, with a signal to deliver or 0.
    fn release(&mut self, mut signal: i32) {
        if !std::mem::take(&mut self.is_stopped) {
            return;
        }
        if self.after == After::Ends {
            let mut registers = self.saved;
            set_call(&mut registers, self.call_at, libc::SYS_exit, [0; 6]);
            let _ = set_registers(self.thread, &registers);
        }
        if self.after == After::GoesOn {
            let _ = set_registers(self.thread, &self.saved);
            self.vectors.put_back(self.thread);
            // One more stop like the first: there the kernel checks for an interrupted system call.
            // Only the thread's end can prevent it.
            let again = request(libc::PTRACE_INTERRUPT, self.thread, 0, 0)
                .and_then(|_| request(libc::PTRACE_CONT, self.thread, 0, 0));
            // SIGSTOP may arrive first.
            if let Ok(Ok(Stop::Signal(other))) = again.map(|_| wait(self.thread)) {
                signal = other;
            }
        }
        let _ = request(SETSIGMASK, self.thread, 8, (&raw const self.mask).addr());
        let _ = request(libc::PTRACE_DETACH, self.thread, 0, 0);
        if signal != 0 {
            // A stop that is not a signal's cannot deliver one. SAFETY: takes numbers.
            unsafe { libc::syscall(libc::SYS_tkill, self.thread, signal) };
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.release(0);
    }
}
