//! Threads of the agent, made by clone(2) alone: the C library must not know them.

/// Flags of a thread with a file table and a working directory of its own: CLONE_VM, SIGHAND,
/// THREAD, SYSVSEM and SETTLS.
pub const OWN_FILES: usize = 0x100 | 0x800 | 0x1_0000 | 0x4_0000 | 0x8_0000;

/// Starts a thread with the caller's signal mask, on a stack that holds, upwards, an argument and a
/// function. Returns its number, or an error's number, negative.
///
/// # Safety
/// `flags` are [`OWN_FILES`], or these and CLONE_FILES; or CLONE_VM and CLONE_VFORK, without
/// CLONE_SETTLS, for a process that ends before this returns. Stack and thread pointer belong to
/// the thread, or the process, from now on.
#[cfg(target_arch = "x86_64")]
pub unsafe fn begin(flags: usize, stack: usize, thread_pointer: usize) -> isize {
    let answer: isize;
    // SAFETY: the parent only gets the result; the child leaves this frame at once, for good.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rdi",
            "pop rax",
            "call rax",
            "mov eax, 60", // exit, of this thread alone
            "xor edi, edi",
            "syscall",
            "ud2",
            "2:",
            inlateout("rax") 56isize => answer, // clone
            in("rdi") flags,
            in("rsi") stack,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") thread_pointer,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// As above; aarch64 takes the thread pointer as the fourth argument.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
pub unsafe fn begin(flags: usize, stack: usize, thread_pointer: usize) -> isize {
    let answer: isize;
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "ldp x0, x9, [sp], #16",
            "blr x9",
            "mov x8, #93",
            "mov x0, xzr",
            "svc 0",
            "brk #1",
            "2:",
            inlateout("x0") flags => answer,
            in("x1") stack,
            in("x2") 0usize,
            in("x3") thread_pointer,
            in("x4") 0usize,
            in("x8") 220usize, // clone
            lateout("x9") _,
        );
    }
    answer
}
