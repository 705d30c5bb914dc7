//! Valgrind, which runs a program's instructions itself and refuses the clone() that makes an
//! agent's process.
//!
//! Its tool is a static program whose memory holds the program's. The supervisor gives that one an
//! agent once it has grown, as to any static program.

use core::arch::asm;

/// The request that asks whether the code runs on Valgrind, of its public interface.
const RUNNING_ON_VALGRIND: usize = 0x1001;

/// Whether this code runs on Valgrind. A processor executes the request without any effect.
pub fn runs_this() -> bool {
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0usize;
    // SAFETY: four rotations that add up to a whole turn, and an instruction without effect.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") request.as_ptr(), inout("rdx") answer, options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "ror x12, x12, #3", "ror x12, x12, #13", "ror x12, x12, #51", "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") request.as_ptr(), inout("x3") answer, options(nostack),
        );
    }
    answer != 0
}
