//! The two instructions that store 64 bytes to a portal at once.
//!
//! Encodings: MOVDIR64B is `66 0F 38 F8 /r`, ENQCMD is `F2 0F 38 F8 /r`; the register operand holds
//! the destination's address, the memory operand is the 64 bytes. They are written as bytes, for
//! assemblers that do not know them; a test compares the bytes with an assembler's output.

use crate::Descriptor;

/// `movdir64b rax, [rdx]`
#[cfg(target_arch = "x86_64")]
const MOVDIR64B: [u8; 5] = [0x66, 0x0f, 0x38, 0xf8, 0x02];
/// `enqcmd rax, [rdx]`
#[cfg(target_arch = "x86_64")]
const ENQCMD: [u8; 5] = [0xf2, 0x0f, 0x38, 0xf8, 0x02];

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
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn movdir64b(portal: *mut u8, descriptor: &Descriptor) {
    debug_assert!((portal as usize).is_multiple_of(64));
    // SAFETY: the caller's promise. SFENCE: the instruction is ordered with nothing else.
    unsafe {
        std::arch::asm!(
            "sfence",
            ".byte {0}, {1}, {2}, {3}, {4}",
            const MOVDIR64B[0],
            const MOVDIR64B[1],
            const MOVDIR64B[2],
            const MOVDIR64B[3],
            const MOVDIR64B[4],
            in("rax") portal,
            in("rdx") descriptor,
            options(nostack, preserves_flags)
        );
    }
}

/// Offers a descriptor to a shared queue, after all earlier stores of this thread. Returns whether
/// the queue took it.
///
/// # Safety
/// The processor has ENQCMD and this process has a PASID, as it does while a queue is open;
/// `portal` is aligned to 64 and writable.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn enqcmd(portal: *mut u8, descriptor: &Descriptor) -> bool {
    debug_assert!((portal as usize).is_multiple_of(64) && descriptor.pasid == 0);
    let refused: u8;
    // SAFETY: the caller's promise. The zero flag says "retry".
    unsafe {
        std::arch::asm!(
            "sfence",
            ".byte {0}, {1}, {2}, {3}, {4}",
            "setz {refused}",
            const ENQCMD[0],
            const ENQCMD[1],
            const ENQCMD[2],
            const ENQCMD[3],
            const ENQCMD[4],
            refused = out(reg_byte) refused,
            in("rax") portal,
            in("rdx") descriptor,
            options(nostack)
        );
    }
    refused == 0
}

/// Devices exist only beside x86-64 processors.
///
/// # Safety
/// Never called: [`Instructions::detect`] finds none.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn movdir64b(_portal: *mut u8, _descriptor: &Descriptor) {
    unreachable!("this processor has no MOVDIR64B");
}

/// Devices exist only beside x86-64 processors.
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

    // The assembler knows both by name; its output lies between the labels and never runs.
    #[cfg(target_arch = "x86_64")]
    std::arch::global_asm!(
        ".pushsection .rodata",
        ".globl uzswap_test_encodings",
        ".globl uzswap_test_encodings_end",
        "uzswap_test_encodings:",
        "movdir64b rax, [rdx]",
        "enqcmd rax, [rdx]",
        "uzswap_test_encodings_end:",
        ".popsection",
    );

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_bytes_are_those_an_assembler_makes() {
        unsafe extern "C" {
            static uzswap_test_encodings: u8;
            static uzswap_test_encodings_end: u8;
        }
        let (start, end) = (&raw const uzswap_test_encodings, &raw const uzswap_test_encodings_end);
        assert_eq!(end as usize - start as usize, 10);
        // SAFETY: the ten bytes between the labels above, in read-only data.
        let made = unsafe { std::slice::from_raw_parts(start, 10) };
        assert_eq!(made, [MOVDIR64B, ENQCMD].concat());
    }

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
