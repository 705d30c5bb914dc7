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

use std::io;
use std::mem::MaybeUninit;

use crate::thread;

/// What PTRACE_EVENT_STOP is in a wait status.
const EVENT_STOP: i32 = 128;
const EVENT_CLONE: i32 = libc::PTRACE_EVENT_CLONE;
/// ptrace(2) with PTRACE_GET_RSEQ_CONFIGURATION (Linux 5.13).
const GET_RSEQ_CONFIGURATION: u32 = 0x420f;
const GETSIGMASK: u32 = 0x420a;
const SETSIGMASK: u32 = 0x420b;
/// Without word of a stop for so long the thread itself is asked: other threads of this process
/// that wait for any child take that word away.
const UNHEARD_NS: u64 = 2_000_000;
/// Options of a thread that is traced. Threads that it makes are its own until it is made to make
/// one of ours.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
/// Times a system call is tried again that a signal interrupted before it began.
const TRIES: u32 = 5;
const ERESTARTNOINTR: i64 = 513;

/// A thread's registers.
pub type Registers = libc::user_regs_struct;

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

/// How a stop came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Interrupt,
    Call,
    Cloned,
    Signal(i32),
    /// With all other threads, by a signal.
    Group,
    /// At the begin of another program.
    Executed,
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
fn wait_for(thread: i32, patience_ns: u64) -> Result<Stop, TraceError> {
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
fn wait(thread: i32) -> Result<Stop, TraceError> {
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

/// The memory that a thread runs in.
///
/// Of a thread that is traced, and is not the first one of its process, it is the memory of one
/// program for ever: another program of the process has no such thread, and the number is not used
/// again before the tracer has heard of its end. Others may be read, not written: the process may
/// begin another program at any time.
///
/// An access waits where the process serves the memory itself (a userfaultfd, a file system), for
/// as long as it likes, and ends when this process does. One through /proc/PID/mem would not: it
/// waits for a file system uninterruptibly.
#[derive(Debug, Clone, Copy)]
pub struct Memory(i32);

impl Memory {
    /// Of a thread, or the first one of a process.
    pub fn of(thread: i32) -> Self {
        Memory(thread)
    }

    /// Reads; how much could be read.
    ///
    /// # Errors
    /// When nothing could be read.
    pub fn read(&self, from: usize, to: &mut [u8]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: to.len() };
        // SAFETY: the local buffer is as long as said.
        let answer = unsafe { libc::process_vm_readv(self.0, &local, 1, &remote, 1, 0) };
        usize::try_from(answer).map_err(|_| io::Error::last_os_error())
    }

    /// Writes all of `from` into writable memory.
    ///
    /// # Errors
    /// When not all could be written.
    pub fn write(&self, to: usize, from: &[u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let remote = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: from.len() };
        // SAFETY: the local buffer is as long as said, and is only read.
        let answer = unsafe { libc::process_vm_writev(self.0, &local, 1, &remote, 1, 0) };
        match usize::try_from(answer) {
            Ok(len) if len == from.len() => Ok(()),
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => Err(io::Error::last_os_error()),
        }
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
        Memory(self.thread.0)
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
        Memory(self.thread)
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

const NT_PRSTATUS: usize = 1;

fn registers(thread: i32) -> Result<Registers, TraceError> {
    let mut registers = MaybeUninit::<Registers>::zeroed();
    let mut vector = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: size_of::<Registers>() };
    request(libc::PTRACE_GETREGSET, thread, NT_PRSTATUS, (&raw mut vector).addr()).map_err(error_of)?;
    // A 32-bit program has fewer.
    if vector.iov_len != size_of::<Registers>() {
        return Err(TraceError::NotPermitted);
    }
    // SAFETY: plain numbers, filled by the kernel.
    Ok(unsafe { registers.assume_init() })
}

fn set_registers(thread: i32, registers: &Registers) -> Result<(), TraceError> {
    let base = std::ptr::from_ref(registers).cast_mut().cast();
    let vector = libc::iovec { iov_base: base, iov_len: size_of::<Registers>() };
    let at = (&raw const vector).addr();
    request(libc::PTRACE_SETREGSET, thread, NT_PRSTATUS, at).map_err(error_of).map(|_| ())
}

#[cfg(target_arch = "x86_64")]
fn set_call(registers: &mut Registers, gate: usize, number: i64, arguments: [usize; 6]) {
    let [a, b, c, d, e, f] = arguments.map(|argument| argument as u64);
    (registers.rip, registers.rax) = (gate as u64, number as u64);
    // No system call is to begin again here.
    registers.orig_rax = u64::MAX;
    (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
    (registers.r10, registers.r8, registers.r9) = (d, e, f);
}

#[cfg(target_arch = "x86_64")]
fn set_start(registers: &mut Registers, entry: usize, stack: usize) {
    (registers.rip, registers.rsp) = (entry as u64, stack as u64);
    registers.orig_rax = u64::MAX;
    (registers.rax, registers.rbp, registers.rdx) = (0, 0, 0);
    (registers.fs_base, registers.gs_base) = (0, 0);
    // Interrupts are on, everything else is as at the start of a program.
    registers.eflags = 0x202;
}

#[cfg(target_arch = "x86_64")]
fn answer(registers: &Registers) -> i64 {
    registers.rax as i64
}

#[cfg(target_arch = "x86_64")]
fn program_counter(registers: &mut Registers) -> &mut u64 {
    &mut registers.rip
}

#[cfg(target_arch = "aarch64")]
fn set_call(registers: &mut Registers, gate: usize, number: i64, arguments: [usize; 6]) {
    /// The kind of branch that was taken just now (BTYPE): code that wants marks at such targets
    /// has none here.
    const BRANCH_TYPE: u64 = 3 << 10;
    registers.pc = gate as u64;
    registers.pstate &= !BRANCH_TYPE;
    registers.regs[8] = number as u64;
    for (register, argument) in registers.regs.iter_mut().zip(arguments) {
        *register = argument as u64;
    }
}

#[cfg(target_arch = "aarch64")]
fn set_start(registers: &mut Registers, entry: usize, stack: usize) {
    registers.regs = [0; 31];
    (registers.pc, registers.sp, registers.pstate) = (entry as u64, stack as u64, 0);
}

#[cfg(target_arch = "aarch64")]
fn answer(registers: &Registers) -> i64 {
    registers.regs[0] as i64
}

#[cfg(target_arch = "aarch64")]
fn program_counter(registers: &mut Registers) -> &mut u64 {
    &mut registers.pc
}

/// What a system call takes away of a thread's vector registers: nothing, on x86-64.
#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
struct Vectors;

#[cfg(target_arch = "x86_64")]
impl Vectors {
    fn none() -> Self {
        Vectors
    }

    fn of(_thread: i32) -> Self {
        Self::none()
    }

    fn put_back(&self, _thread: i32) {}
}

/// What a system call takes away of a thread's vector registers, by the kind of registers: on
/// aarch64 SVE's beyond 128 bits and its predicates, where they are in use, and SME's mode, in
/// which they have another length.
#[cfg(target_arch = "aarch64")]
#[derive(Debug)]
struct Vectors(Vec<(usize, Vec<u8>)>);

#[cfg(target_arch = "aarch64")]
impl Vectors {
    /// NT_ARM_SVE and NT_ARM_SSVE of elf.h.
    const KINDS: [usize; 2] = [0x405, 0x40b];
    /// Enough for registers of 2048 bits, the most there is.
    const BYTES: usize = 16 << 10;
    /// In `struct user_sve_header` of the kernel's ptrace.h: where the flags are, and the one that
    /// tells that registers follow.
    const FLAGS_AT: usize = 12;
    const IN_USE: u8 = 1;

    fn none() -> Self {
        Vectors(Vec::new())
    }

    fn of(thread: i32) -> Self {
        let in_use = |kind: usize| {
            let mut bytes = vec![0; Self::BYTES];
            let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            // Machines without them refuse.
            request(libc::PTRACE_GETREGSET, thread, kind, (&raw mut vector).addr()).ok()?;
            bytes.truncate(vector.iov_len);
            (bytes.get(Self::FLAGS_AT)? & Self::IN_USE != 0).then_some((kind, bytes))
        };
        Vectors(Self::KINDS.into_iter().filter_map(in_use).collect())
    }

    fn put_back(&self, thread: i32) {
        for (kind, bytes) in &self.0 {
            let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let _ = request(libc::PTRACE_SETREGSET, thread, *kind, (&raw const vector).addr());
        }
    }
}

/// The bytes of a system call instruction.
pub const CALL_INSTRUCTION: &[u8] =
    if cfg!(target_arch = "x86_64") { &[0x0f, 0x05] } else { &[0x01, 0x00, 0x00, 0xd4] };

/// A thread that was stopped inside a restartable sequence may not go on there after others ran:
/// the kernel would have sent it to the abort handler, but looks only where the thread is when it
/// goes back to its program, and that is elsewhere now.
fn leave_restartable_sequence(thread: i32, registers: &mut Registers) {
    #[repr(C)]
    #[derive(Default)]
    struct Configuration {
        area: u64,
        len: u32,
        signature: u32,
        flags: u32,
        padding: u32,
    }
    let mut configuration = Configuration::default();
    let at = (&raw mut configuration).addr();
    let asked = request(GET_RSEQ_CONFIGURATION, thread, size_of::<Configuration>(), at);
    if asked.is_err() || configuration.area == 0 {
        return;
    }
    let word = |address: u64| {
        let mut bytes = [0; 8];
        let whole = Memory(thread).read(address as usize, &mut bytes).is_ok_and(|len| len == 8);
        whole.then(|| u64::from_ne_bytes(bytes))
    };
    // struct rseq: the sequence's descriptor at 8. struct rseq_cs: start at 8, length at 16, abort
    // handler at 24.
    let Some(sequence) = word(configuration.area + 8).filter(|sequence| *sequence != 0) else { return };
    if let (Some(start), Some(len), Some(abort)) =
        (word(sequence + 8), word(sequence + 16), word(sequence + 24))
    {
        let counter = program_counter(registers);
        if counter.wrapping_sub(start) < len {
            *counter = abort;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    /// Enough for any machine.
    const PATIENCE_NS: u64 = 60_000_000_000;

    /// The address of a system call instruction in the kernel's own object.
    fn gate(pid: i32) -> usize {
        // It comes last into the address space of a new program.
        let mapping = loop {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            match maps.lines().find(|line| line.ends_with("[vdso]")) {
                Some(line) => break crate::maps::parse(line.as_bytes()).unwrap(),
                None => std::thread::yield_now(),
            }
        };
        let mut bytes = vec![0; mapping.end - mapping.start];
        Memory::of(pid).read(mapping.start, &mut bytes).unwrap();
        let found = bytes.windows(CALL_INSTRUCTION.len()).position(|bytes| bytes == CALL_INSTRUCTION);
        mapping.start + found.expect("in the vDSO")
    }

    /// A child that has begun to run its program; `None` where children may not be traced.
    fn start(command: &mut Command) -> Option<Child> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let own = std::fs::read_link("/proc/self/exe").unwrap();
        while std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == own) {
            std::thread::yield_now();
        }
        match Held::seize(pid, PATIENCE_NS) {
            Err(TraceError::NotPermitted) => {
                testkit::skip!("trace", "children may not be traced");
                child.kill().unwrap();
                child.wait().unwrap();
                None
            }
            _ => Some(child),
        }
    }

    fn seize(thread: i32, gate: usize) -> Result<Tracee, TraceError> {
        Held::seize(thread, PATIENCE_NS)?.take(gate)
    }

    #[test]
    fn a_read_that_was_interrupted_goes_on_and_threads_come_and_go() {
        let Some(mut child) = start(&mut Command::new("cat")) else { return };
        let pid = child.id() as i32;
        let gate = gate(pid);
        let flags = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;
        for round in 0..40u8 {
            let mut host = seize(pid, gate).unwrap();
            assert_eq!(host.call(libc::SYS_getpid, [0; 6]).unwrap().unwrap(), pid as usize);
            let refused = host.call(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]).unwrap().unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
            let mut made = host.clone_thread(flags).unwrap();
            drop(host);
            assert_eq!(made.call(libc::SYS_gettid, [0; 6]).unwrap().unwrap(), made.thread() as usize);
            // It echoes while one of its threads is stopped.
            child.stdin.as_mut().unwrap().write_all(&[round]).unwrap();
            let mut echo = [0];
            child.stdout.as_mut().unwrap().read_exact(&mut echo).unwrap();
            assert_eq!(echo, [round]);
        }
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_sleep_that_was_interrupted_is_slept_to_its_end() {
        let begin = crate::now_ns();
        let Some(mut child) = start(Command::new("sleep").arg("0.3")) else { return };
        let pid = child.id() as i32;
        let gate = gate(pid);
        for _ in 0..10 {
            match seize(pid, gate) {
                Ok(mut host) => drop(host.call(libc::SYS_getpid, [0; 6])),
                Err(TraceError::Gone | TraceError::NotPermitted) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(child.wait().unwrap().success());
        assert!(crate::now_ns() - begin >= 300_000_000);
    }

    #[test]
    fn the_word_of_a_stop_may_be_taken_by_others() {
        let Some(mut child) = start(&mut Command::new("cat")) else { return };
        let pid = child.id() as i32;
        let gate = gate(pid);
        request(libc::PTRACE_SEIZE, pid, 0, OPTIONS as usize).unwrap();
        request(libc::PTRACE_INTERRUPT, pid, 0, 0).unwrap();
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::__WALL) }, pid);
        let held = Held::await_interrupt(pid, PATIENCE_NS).unwrap();
        drop(held.take(gate).unwrap());
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    /// A thread's number is that thread's while it is traced, also if the process executes another
    /// program.
    #[test]
    fn another_program_is_not_taken_for_the_one_before() {
        let Some(mut child) = start(Command::new("sh").args(["-c", "read line; exec cat"])) else { return };
        let pid = child.id() as i32;
        let vdso = gate(pid);
        let flags = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;
        let made = seize(pid, vdso).unwrap().clone_thread(flags).unwrap();
        let memory = made.memory();
        let mut bytes = [0; CALL_INSTRUCTION.len()];
        assert_eq!(memory.read(vdso, &mut bytes).unwrap(), bytes.len());
        request(libc::PTRACE_SEIZE, pid, 0, OPTIONS as usize).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        // The exec waits until the end of the thread has been heard of.
        while memory.read(vdso, &mut bytes).is_ok() {
            std::thread::yield_now();
        }
        assert!(matches!(wait(made.thread()), Err(TraceError::Gone)));
        assert_eq!(wait(pid).unwrap(), Stop::Executed);
        request(libc::PTRACE_INTERRUPT, pid, 0, 0).unwrap();
        // As when the word of it was taken: it is at its exec.
        assert!(matches!(Held::await_interrupt(pid, PATIENCE_NS), Err(TraceError::Executed)));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    /// Computes with SVE's registers until it is told to end; 1 if anything in them changed.
    ///
    /// # Safety
    /// The machine must have SVE.
    #[cfg(target_arch = "aarch64")]
    unsafe fn keep_wide_vectors(end: &std::sync::atomic::AtomicU32) -> i32 {
        let changed: u64;
        // SAFETY: reads the word; the registers are named, and there are none besides that a
        // function must keep.
        unsafe {
            std::arch::asm!(
                ".arch_extension sve",
                "ptrue p0.b",
                "index z0.b, #1, #3",
                "2:",
                "ptrue p1.b",
                "index z1.b, #1, #3",
                "cmpne p2.b, p1/z, z0.b, z1.b",
                "cntp x9, p1, p2.b",
                "cntp x10, p1, p1.b",
                "cntp x11, p1, p0.b",
                "sub x10, x10, x11",
                "orr x9, x9, x10",
                "cbnz x9, 3f",
                "ldar w10, [{end}]",
                "cbz w10, 2b",
                "3:",
                end = in(reg) end.as_ptr(),
                out("x9") changed, out("x10") _, out("x11") _,
                out("v0") _, out("v1") _, out("p0") _, out("p1") _, out("p2") _,
            );
        }
        i32::from(changed != 0)
    }

    /// A system call takes them away, and here it is not the thread that makes one.
    #[cfg(target_arch = "aarch64")]
    #[test]
    fn wide_vector_registers_stay_as_they_are() {
        use std::sync::atomic::{AtomicU32, Ordering};
        if !std::arch::is_aarch64_feature_detected!("sve") {
            return testkit::skip!("cpu", "no SVE");
        }
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new page, zeroed, that is never unmapped; the child does nothing but compute.
        let (end, pid) = unsafe {
            let page = libc::mmap(std::ptr::null_mut(), crate::PAGE_SIZE, rights, kind, -1, 0);
            let end = &*page.cast::<AtomicU32>();
            match libc::fork() {
                0 => libc::_exit(keep_wide_vectors(end)),
                pid => (end, pid),
            }
        };
        let gate = gate(pid);
        for _ in 0..50 {
            match seize(pid, gate) {
                Ok(mut host) => drop(host.call(libc::SYS_getpid, [0; 6])),
                Err(TraceError::NotPermitted) => testkit::skip!("trace", "children may not be traced"),
                Err(error) => panic!("{error}"),
            }
            thread::sleep_ns(1_000_000);
        }
        end.store(1, Ordering::Release);
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "a register changed");
    }
}
