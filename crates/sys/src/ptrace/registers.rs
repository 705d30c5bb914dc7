//! The registers of a stopped thread, by machine.

use std::mem::MaybeUninit;

use super::{error_of, request, TraceError};

/// A thread's registers.
pub type Registers = libc::user_regs_struct;

/// The bytes of a system call instruction.
pub const CALL_INSTRUCTION: &[u8] =
    if cfg!(target_arch = "x86_64") { &[0x0f, 0x05] } else { &[0x01, 0x00, 0x00, 0xd4] };

const NT_PRSTATUS: usize = 1;

pub(super) fn registers(thread: i32) -> Result<Registers, TraceError> {
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

pub(super) fn set_registers(thread: i32, registers: &Registers) -> Result<(), TraceError> {
    let base = std::ptr::from_ref(registers).cast_mut().cast();
    let vector = libc::iovec { iov_base: base, iov_len: size_of::<Registers>() };
    let at = (&raw const vector).addr();
    request(libc::PTRACE_SETREGSET, thread, NT_PRSTATUS, at).map_err(error_of).map(|_| ())
}

#[cfg(target_arch = "x86_64")]
pub(super) fn set_call(registers: &mut Registers, call_at: usize, number: i64, arguments: [usize; 6]) {
    let [a, b, c, d, e, f] = arguments.map(|argument| argument as u64);
    (registers.rip, registers.rax) = (call_at as u64, number as u64);
    // No system call may restart here.
    registers.orig_rax = u64::MAX;
    (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
    (registers.r10, registers.r8, registers.r9) = (d, e, f);
}

#[cfg(target_arch = "x86_64")]
pub(super) fn set_start(registers: &mut Registers, entry: usize, stack: usize) {
    (registers.rip, registers.rsp) = (entry as u64, stack as u64);
    registers.orig_rax = u64::MAX;
    (registers.rax, registers.rbp, registers.rdx) = (0, 0, 0);
    (registers.fs_base, registers.gs_base) = (0, 0);
    // Interrupts are enabled, the rest is as at a program's start.
    registers.eflags = 0x202;
}

#[cfg(target_arch = "x86_64")]
pub(super) fn returned(registers: &Registers) -> i64 {
    registers.rax as i64
}

#[cfg(target_arch = "x86_64")]
pub(super) fn program_counter(registers: &mut Registers) -> &mut u64 {
    &mut registers.rip
}

#[cfg(target_arch = "aarch64")]
pub(super) fn set_call(registers: &mut Registers, call_at: usize, number: i64, arguments: [usize; 6]) {
    /// The last branch's type (BTYPE): code that requires marked branch targets has no mark here.
    const BRANCH_TYPE: u64 = 3 << 10;
    registers.pc = call_at as u64;
    registers.pstate &= !BRANCH_TYPE;
    registers.regs[8] = number as u64;
    for (register, argument) in registers.regs.iter_mut().zip(arguments) {
        *register = argument as u64;
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) fn set_start(registers: &mut Registers, entry: usize, stack: usize) {
    registers.regs = [0; 31];
    (registers.pc, registers.sp, registers.pstate) = (entry as u64, stack as u64, 0);
}

#[cfg(target_arch = "aarch64")]
pub(super) fn returned(registers: &Registers) -> i64 {
    registers.regs[0] as i64
}

#[cfg(target_arch = "aarch64")]
pub(super) fn program_counter(registers: &mut Registers) -> &mut u64 {
    &mut registers.pc
}
