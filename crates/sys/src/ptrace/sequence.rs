//! Restartable sequences (rseq(2)) of a stopped thread.

use super::memory::Memory;
use super::registers::{program_counter, Registers};
use super::request;

/// ptrace(2) with PTRACE_GET_RSEQ_CONFIGURATION (Linux 5.13).
const GET_RSEQ_CONFIGURATION: u32 = 0x420f;

/// A thread that was stopped inside a restartable sequence must not continue there after others
/// ran. The kernel would have sent it to the abort handler, but checks only the address at which
/// the thread returns to user mode, which is now elsewhere.
pub(super) fn leave_restartable_sequence(thread: i32, registers: &mut Registers) {
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
        let whole = Memory::of(thread).read(address as usize, &mut bytes).is_ok_and(|len| len == 8);
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
