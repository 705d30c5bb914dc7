//! The two instructions that store 64 bytes to a portal at once.

use crate::Descriptor;

/// The processor's submission instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instructions {
    /// For dedicated queues.
    pub movdir64b: bool,
    /// For shared queues.
    pub enqcmd: bool,
}

impl Instructions {
    /// Asks the processor: leaf 7, ECX bits 28 and 29.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            if __cpuid(0).eax >= 7 {
                let bits = __cpuid_count(7, 0).ecx;
                return Instructions { movdir64b: bits >> 28 & 1 != 0, enqcmd: bits >> 29 & 1 != 0 };
            }
        }
        Instructions { movdir64b: false, enqcmd: false }
    }
}

/// Posts a descriptor to a dedicated queue, after all earlier stores of this thread.
///
/// # Safety
/// The processor has MOVDIR64B; `portal` is aligned to 64 and writable.
#[inline]
pub unsafe fn movdir64b(portal: *mut u8, descriptor: &Descriptor) {
    debug_assert!((portal as usize).is_multiple_of(64));
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise. SFENCE: the instruction is ordered with nothing else.
    unsafe {
        std::arch::asm!(
            "sfence",
            "movdir64b {portal}, [{descriptor}]",
            portal = in(reg) portal,
            descriptor = in(reg) descriptor,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("this processor has no MOVDIR64B for {descriptor:?}");
}

/// Offers a descriptor to a shared queue, after all earlier stores of this thread. Returns whether
/// the queue took it.
///
/// # Safety
/// The processor has ENQCMD and this process has a PASID, as it does while a queue is open;
/// `portal` is aligned to 64 and writable.
#[inline]
pub unsafe fn enqcmd(portal: *mut u8, descriptor: &Descriptor) -> bool {
    debug_assert!((portal as usize).is_multiple_of(64) && descriptor.pasid == 0);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise. The zero flag says "retry".
    unsafe {
        let refused: u8;
        std::arch::asm!(
            "sfence",
            "enqcmd {portal}, [{descriptor}]",
            "setz {refused}",
            portal = in(reg) portal,
            descriptor = in(reg) descriptor,
            refused = out(reg_byte) refused,
            options(nostack)
        );
        refused == 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("this processor has no ENQCMD");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Completion;

    /// MOVDIR64B works on ordinary memory too.
    #[test]
    fn sixty_four_bytes_arrive() {
        if !Instructions::detect().movdir64b {
            testkit::skip!("cpu", "this processor has no MOVDIR64B");
            return;
        }
        #[repr(align(64))]
        struct Line([u8; 192]);
        let mut memory = Line([0xee; 192]);
        let record = Completion::new();
        let descriptor = Descriptor { elements: 0x1234_5678, ..Descriptor::noop(&record) };
        // SAFETY: 64 writable bytes at an aligned address.
        unsafe { movdir64b(memory.0.as_mut_ptr().add(64), &descriptor) };
        assert_eq!(memory.0[64..128], descriptor.to_bytes());
        assert!(memory.0[..64].iter().chain(&memory.0[128..]).all(|byte| *byte == 0xee));
    }
}
