//! Waiting for a completion record without burning a core, with instructions of the processor.

use crate::Completion;

/// Longest single wait in cycles of the time-stamp counter: about 10 us. The caller checks its
/// deadline in between.
#[cfg(target_arch = "x86_64")]
const CYCLES: u32 = 25_000;

/// The processor's way to wait for a store to a line of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiter {
    /// UMONITOR and UMWAIT (Intel since Tremont and Alder Lake; every processor with IAA has them).
    Umwait,
    /// MONITORX and MWAITX (AMD since Excavator).
    Mwaitx,
    /// A few PAUSE instructions, or the architecture's equivalent.
    Pause,
}

impl Waiter {
    /// The processor's best way.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            let leaves = __cpuid(0).eax;
            let extended_leaves = __cpuid(0x8000_0000).eax;
            // Leaf 7, ECX bit 5: WAITPKG. Leaf 8000_0001, ECX bit 29: MONITORX.
            if leaves >= 7 && __cpuid_count(7, 0).ecx >> 5 & 1 != 0 {
                return Self::Umwait;
            }
            if extended_leaves >= 0x8000_0001 && __cpuid(0x8000_0001).ecx >> 29 & 1 != 0 {
                return Self::Mwaitx;
            }
        }
        Self::Pause
    }

    /// Waits for a write to `completion`, or a few microseconds. May return early for no reason.
    pub fn wait(self, completion: &Completion) {
        // Only x86-64 can watch memory.
        #[cfg(not(target_arch = "x86_64"))]
        let _ = completion;
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Umwait => umwait(completion),
            #[cfg(target_arch = "x86_64")]
            Self::Mwaitx => mwaitx(completion),
            _ => {
                for _ in 0..16 {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn umwait(completion: &Completion) {
    // SAFETY: the processor has the instructions (`Waiter::detect`); they only watch a line that
    // exists.
    unsafe {
        std::arch::asm!("umonitor {}", in(reg) completion.status_address(), options(nostack, preserves_flags));
        // A later write is seen by the monitor.
        if !completion.is_done() {
            let until = std::arch::x86_64::_rdtsc() + u64::from(CYCLES);
            // Control 1: the lighter state, C0.1.
            std::arch::asm!(
                "umwait {control:e}",
                control = in(reg) 1u32,
                in("eax") until as u32,
                in("edx") (until >> 32) as u32,
                options(nostack, nomem)
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn mwaitx(completion: &Completion) {
    // SAFETY: as in `umwait`. RBX, which the compiler reserves, is restored.
    unsafe {
        std::arch::asm!(
            "monitorx",
            in("rax") completion.status_address(),
            in("ecx") 0,
            in("edx") 0,
            options(nostack, preserves_flags)
        );
        if !completion.is_done() {
            // ECX bit 1: EBX bounds the wait. EAX f0: stay in C0.
            std::arch::asm!(
                "xchg {limit}, rbx",
                "mwaitx",
                "xchg {limit}, rbx",
                limit = inout(reg) u64::from(CYCLES) => _,
                in("eax") 0xf0,
                in("ecx") 2,
                options(nostack, nomem)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Record, Status};

    #[test]
    fn waiting_ends_with_and_without_an_answer() {
        let completion = Completion::new();
        let waiter = Waiter::detect();
        println!("this processor: {waiter:?}");
        waiter.wait(&completion);
        assert!(!completion.is_done());
        completion.complete(&Record::of(Status::SUCCESS));
        waiter.wait(&completion);
        Waiter::Pause.wait(&completion);
        assert!(completion.is_done());
    }
}
