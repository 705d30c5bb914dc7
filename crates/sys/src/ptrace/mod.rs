//! Threads of other processes, stopped for a moment and made to do system calls.
//!
//! The system calls are made where the process has a system call instruction already (the kernel's
//! own vDSO has one), so that no byte of it is changed. Afterwards the thread is as it was:
//!
//! * its registers are put back, and it is stopped once more before it continues: at such a stop
//!   the kernel itself decides whether a system call that was interrupted begins again, also when a
//!   signal came in between;
//! * all signals are blocked while it works for us, so that none of its handlers runs;
//! * one that was inside a restartable sequence goes to that sequence's abort handler, as after a
//!   preemption.
//!
//! On aarch64 the kernel has decided before the first stop: the thread is before the instruction
//! again, as if the interruption had come before it. So a sleep of so long, not until a time,
//! begins again. And a system call there takes away what is in the wide vector registers (SVE),
//! which is put back.

mod memory;
mod registers;
mod sequence;
mod stop;
#[cfg(test)]
mod tests;
mod vectors;

use std::io;

pub use self::memory::Memory;
use self::registers::{answer, registers, set_call, set_registers, set_start};
pub use self::registers::{Registers, CALL_INSTRUCTION};
use self::sequence::leave_restartable_sequence;
use self::stop::{wait, wait_for, Stop};
use self::vectors::Vectors;

const GETSIGMASK: u32 = 0x420a;
const SETSIGMASK: u32 = 0x420b;
/// Options of a thread that is traced. Threads that it makes are its own until it is made to make
/// one of ours.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
/// Times a system call is tried again that a signal interrupted before it began.
const TRIES: u32 = 5;
const ERESTARTNOINTR: i64 = 513;

/// Why a thread was not stopped, or is not any more.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It has ended.
    #[error("it has ended")]
    Gone,
    /// Not permitted, or another process traces it already.
    #[error("it may not be traced")]
    NotPermitted,
    /// Signals have stopped it; it is let alone.
    #[error("it is stopped")]
    Stopped,
    /// It did not stop in time: it waits for something that cannot be interrupted.
    #[error("it cannot be interrupted at present")]
    Busy,
    /// It has begun another program; it is let alone.
    #[error("it has begun another program")]
    Executed,
    /// The kernel refused what it was made to do.
    #[error("{0}")]
    Refused(&'static str, #[source] io::Error),
}

/// What becomes of a thread that is let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// It continues where it was.
    GoesOn,
    /// It was made by us and has nothing to do: it ends.
    Ends,
    /// It runs somewhere else for good.
    Diverted,
}

/// A thread that this thread traces. Dropped, it continues as it was, or as its registers were set.
#[derive(Debug)]
pub struct Tracee {
    thread: i32,
    saved: Registers,
    vectors: Vectors,
    mask: u64,
    /// Where there is a system call instruction.
    gate: usize,
    after: After,
    is_stopped: bool,
}

fn request(request: u32, thread: i32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: callers pass what the request takes.
    let answer = unsafe { libc::ptrace(request as _, thread, address, data) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer)
}

fn error_of(error: io::Error) -> TraceError {
    match error.raw_os_error() {
        Some(libc::EPERM) => TraceError::NotPermitted,
        _ => TraceError::Gone,
    }
}

/// A thread of which nothing has been changed. Dropped, it continues.
#[derive(Debug)]
struct Unchanged(i32);

impl Drop for Unchanged {
    fn drop(&mut self) {
        let _ = request(libc::PTRACE_DETACH, self.0, 0, 0);
    }
}

/// A thread that is stopped, of which nothing has been changed. Dropped, it continues.
#[derive(Debug)]
pub struct Held {
    thread: Unchanged,
    registers: Registers,
}

impl Held {
    /// Stops a thread of another process, wherever it is, within so many nanoseconds.
    ///
    /// # Errors
    /// [`TraceError::NotPermitted`] also for a thread that is traced already. A thread that is
    /// [`TraceError::Busy`] stays traced: it is let go when the calling thread ends.
    pub fn seize(thread: i32, patience_ns: u64) -> Result<Self, TraceError> {
        request(libc::PTRACE_SEIZE, thread, 0, OPTIONS as usize).map_err(error_of)?;
        request(libc::PTRACE_INTERRUPT, thread, 0, 0).map_err(error_of)?;
        Self::await_interrupt(thread, patience_ns)
    }

    fn await_interrupt(thread: i32, patience_ns: u64) -> Result<Self, TraceError> {
        loop {
            let stop = wait_for(thread, patience_ns)?;
            match stop {
                Stop::Interrupt => break,
                // Not ours: delivered, and the interruption comes next.
                Stop::Signal(signal) => {
                    request(libc::PTRACE_CONT, thread, 0, signal as usize).map_err(error_of)?;
                }
                Stop::Group | Stop::Executed => {
                    drop(Unchanged(thread));
                    return Err(if stop == Stop::Group { TraceError::Stopped } else { TraceError::Executed });
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

    /// The memory that it runs in.
    pub fn memory(&self) -> Memory {
        Memory::of(self.thread.0)
    }

    /// Its registers.
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Takes it for work of ours. `gate` is the address of a system call instruction there.
    ///
    /// # Errors
    /// When it has ended.
    pub fn take(self, gate: usize) -> Result<Tracee, TraceError> {
        let Held { thread, registers: mut saved } = self;
        leave_restartable_sequence(thread.0, &mut saved);
        let tracee = Tracee::take(thread.0, saved, gate)?;
        std::mem::forget(thread);
        Ok(tracee)
    }
}

impl Tracee {
    /// A thread that is stopped, with the registers that it is to go on with.
    fn take(thread: i32, saved: Registers, gate: usize) -> Result<Self, TraceError> {
        let vectors = Vectors::of(thread);
        let mut mask = 0u64;
        request(GETSIGMASK, thread, 8, (&raw mut mask).addr()).map_err(error_of)?;
        let all = u64::MAX;
        request(SETSIGMASK, thread, 8, (&raw const all).addr()).map_err(error_of)?;
        Ok(Tracee { thread, saved, vectors, mask, gate, after: After::GoesOn, is_stopped: true })
    }

    /// Its kernel id.
    pub fn thread(&self) -> i32 {
        self.thread
    }

    /// The memory that it runs in.
    pub fn memory(&self) -> Memory {
        Memory::of(self.thread)
    }

    /// Has it make a system call; the answer, or the error that the kernel gave.
    ///
    /// # Errors
    /// When the thread has ended, or was stopped by a signal.
    pub fn call(&mut self, number: i64, arguments: [usize; 6]) -> Result<io::Result<usize>, TraceError> {
        self.call_noting(number, arguments).map(|(answer, _)| answer)
    }

    /// The same, and the thread that it made, which is stopped.
    fn call_noting(
        &mut self,
        number: i64,
        arguments: [usize; 6],
    ) -> Result<(io::Result<usize>, Option<i32>), TraceError> {
        let mut made = None;
        for _ in 0..TRIES {
            let mut registers = self.saved;
            set_call(&mut registers, self.gate, number, arguments);
            set_registers(self.thread, &registers)?;
            // At the entry, then at the exit.
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
                    // SIGSTOP, which cannot be blocked: it is given back at the end.
                    Ok(Stop::Signal(signal)) => {
                        self.is_stopped = true;
                        self.release(signal);
                        return Err(TraceError::Stopped);
                    }
                    // None of ours begins a program: its registers are another program's.
                    Ok(Stop::Executed) => {
                        let _ = request(libc::PTRACE_DETACH, self.thread, 0, 0);
                        return Err(TraceError::Executed);
                    }
                    Ok(Stop::Interrupt | Stop::Group) => {}
                    Err(error) => return Err(error),
                }
                self.is_stopped = true;
            }
            let answer = answer(&self::registers(self.thread)?);
            if answer != -ERESTARTNOINTR {
                let is_error = (-4095..0).contains(&answer);
                let answer = if is_error {
                    Err(io::Error::from_raw_os_error(-answer as i32))
                } else {
                    Ok(answer as usize)
                };
                return Ok((answer, made));
            }
        }
        Err(TraceError::Busy)
    }

    fn go_on(&mut self, how: u32, signal: i32) -> Result<(), TraceError> {
        self.is_stopped = false;
        request(how, self.thread, 0, signal as usize).map_err(error_of).map(|_| ())
    }

    /// Has it make a thread with `flags` of clone(2), CLONE_VM and CLONE_THREAD among them, which
    /// is stopped before it does anything, on the same stack.
    ///
    /// # Errors
    /// When the kernel refuses one more thread.
    pub fn clone_thread(&mut self, flags: i32) -> Result<Tracee, TraceError> {
        let set_options = |options: i32| {
            request(libc::PTRACE_SETOPTIONS, self.thread, 0, options as usize).map_err(error_of)
        };
        set_options(OPTIONS | libc::PTRACE_O_TRACECLONE)?;
        let (answer, made) = self.call_noting(libc::SYS_clone, [flags as usize, 0, 0, 0, 0, 0])?;
        let made = match (answer, made) {
            (Err(error), _) => return Err(TraceError::Refused("no more threads", error)),
            (Ok(_), None) => return Err(TraceError::Gone),
            (Ok(_), Some(made)) => made,
        };
        let stop = wait(made)?;
        debug_assert!(matches!(stop, Stop::Interrupt | Stop::Group), "{stop:?}");
        let saved = registers(made)?;
        let (mask, gate, vectors) = (u64::MAX, self.gate, Vectors::none());
        Ok(Tracee { thread: made, saved, vectors, mask, gate, after: After::Ends, is_stopped: true })
    }

    /// Has it begin at `entry` with a stack, as a program does, when it is let go.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn divert(&mut self, entry: usize, stack: usize) -> Result<(), TraceError> {
        let mut registers = self.saved;
        set_start(&mut registers, entry, stack);
        set_registers(self.thread, &registers)?;
        self.after = After::Diverted;
        Ok(())
    }

    /// Puts everything back and lets it go, with a signal to be delivered or 0.
    fn release(&mut self, signal: i32) {
        if !std::mem::take(&mut self.is_stopped) {
            return;
        }
        if self.after == After::Ends {
            let mut registers = self.saved;
            set_call(&mut registers, self.gate, libc::SYS_exit, [0; 6]);
            let _ = set_registers(self.thread, &registers);
        }
        if self.after == After::GoesOn {
            let _ = set_registers(self.thread, &self.saved);
            self.vectors.put_back(self.thread);
            // Once more at a stop like the first: there the kernel looks whether a system call was
            // interrupted. What is in the way is the end of the thread alone.
            let again = request(libc::PTRACE_INTERRUPT, self.thread, 0, 0)
                .and_then(|_| request(libc::PTRACE_CONT, self.thread, 0, 0));
            if again.is_ok() {
                let _ = wait(self.thread);
            }
        }
        let _ = request(SETSIGMASK, self.thread, 8, (&raw const self.mask).addr());
        let _ = request(libc::PTRACE_DETACH, self.thread, 0, 0);
        if signal != 0 {
            // A stop that is not a signal's takes none along.
            // SAFETY: takes numbers.
            unsafe { libc::syscall(libc::SYS_tkill, self.thread, signal) };
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.release(0);
    }
}
