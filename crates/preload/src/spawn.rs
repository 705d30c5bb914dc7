//! Makes threads of the agent from a thread of the program: by clone(2) itself, since the C library
//! must not know them. They inherit that all signals are blocked.

use doorway::thread;

use crate::signals::blocked;

/// Makes a thread with its own thread pointer, whose stack holds, upwards, an argument and a
/// function. Returns false if no more threads are possible.
///
/// # Safety
/// Stack and thread pointer belong to the thread from now on.
pub unsafe fn spare(stack: usize, thread_pointer: usize) -> bool {
    // SAFETY: the caller's promise.
    blocked(|| unsafe { thread::begin(thread::OWN_FILES, stack, thread_pointer) } > 0)
}

/// Makes a thread that begins at `entry` as a program does. Returns false if no more threads are
/// possible.
///
/// # Safety
/// The stack is a program's initial stack, and belongs to the thread from now on.
pub unsafe fn program(entry: usize, stack: usize) -> bool {
    blocked(|| {
        let answer: isize;
        // SAFETY: the parent only gets the result; the child leaves this frame at once. Its thread
        // pointer is this thread's until it sets its own, and is not used before.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "xor ebp, ebp",
                "xor edx, edx", // nothing to be called at the end
                "jmp r9",
                "2:",
                inlateout("rax") libc::SYS_clone as isize => answer,
                in("rdi") thread::OWN_FILES & !(libc::CLONE_SETTLS as usize),
                in("rsi") stack,
                in("rdx") 0usize,
                in("r10") 0usize,
                in("r8") 0usize,
                in("r9") entry,
                lateout("rcx") _,
                lateout("r11") _,
            );
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            core::arch::asm!(
                "svc 0",
                "cbnz x0, 2f",
                "mov x29, xzr",
                "br x9",
                "2:",
                inlateout("x0") thread::OWN_FILES & !(libc::CLONE_SETTLS as usize) => answer,
                in("x1") stack,
                in("x2") 0usize,
                in("x3") 0usize,
                in("x4") 0usize,
                in("x8") libc::SYS_clone,
                in("x9") entry,
            );
        }
        answer > 0
    })
}
