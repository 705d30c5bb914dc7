//! The two instructions that store 64 bytes to a portal at once.
//!
//! Encodings: MOVDIR64B is `66 0F 38 F8 /r`, ENQCMD is `F2 0F 38 F8 /r`; the register operand holds the destination's
//! address, the memory operand is the 64 bytes. They are written as bytes, so that no assembler has to know them.

use crate::Descriptor;

/// Which of them this processor has.
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
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn movdir64b(portal: *mut u8, descriptor: &Descriptor) {
    debug_assert!((portal as usize).is_multiple_of(64));
    // SAFETY: the caller's promise. SFENCE: the instruction is ordered with nothing else.
    unsafe {
        std::arch::asm!(
            "sfence",
            // movdir64b rax, [rdx]
            ".byte 0x66, 0x0f, 0x38, 0xf8, 0x02",
            in("rax") portal,
            in("rdx") descriptor,
            options(nostack, preserves_flags)
        );
    }
}

/// Offers a descriptor to a shared queue, after all earlier stores of this thread. Whether it was taken.
///
/// # Safety
/// The processor has ENQCMD and this process has a PASID, as it does while a queue is open; `portal` is aligned to 64
/// and writable.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn enqcmd(portal: *mut u8, descriptor: &Descriptor) -> bool {
    debug_assert!((portal as usize).is_multiple_of(64) && descriptor.pasid == 0);
    let refused: u8;
    // SAFETY: the caller's promise. The zero flag says "retry".
    unsafe {
        std::arch::asm!(
            "sfence",
            // enqcmd rax, [rdx]
            ".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02",
            "setz {refused}",
            refused = out(reg_byte) refused,
            in("rax") portal,
            in("rdx") descriptor,
            options(nostack)
        );
    }
    refused == 0
}

/// There are no devices beside other processors.
///
/// # Safety
/// Never called: [`Instructions::detect`] finds none.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn movdir64b(_portal: *mut u8, _descriptor: &Descriptor) {
    unreachable!("this processor has no MOVDIR64B");
}

/// There are no devices beside other processors.
///
/// # Safety
/// Never called: [`Instructions::detect`] finds none.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn enqcmd(_portal: *mut u8, _descriptor: &Descriptor) -> bool {
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
            println!("skipped: this processor has no MOVDIR64B");
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
