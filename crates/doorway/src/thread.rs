//! Threads and processes of the agent, made by clone(2) alone: the C library must not know them.

use core::sync::atomic::AtomicU32;

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
    let result: isize;
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
            inlateout("rax") 56isize => result, // clone
            in("rdi") flags,
            in("rsi") stack,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") thread_pointer,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// As above; aarch64 takes the thread pointer as the fourth argument.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
pub unsafe fn begin(flags: usize, stack: usize, thread_pointer: usize) -> isize {
    let result: isize;
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
            inlateout("x0") flags => result,
            in("x1") stack,
            in("x2") 0usize,
            in("x3") thread_pointer,
            in("x4") 0usize,
            in("x8") 220usize, // clone
            lateout("x9") _,
        );
    }
    result
}

/// Where a process begins whose stack holds, upwards, an argument and a function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn call_of_stack() {
    core::arch::naked_asm!(
        "pop rdi",
        "pop rax",
        "call rax",
        "mov eax, 60", // exit
        "xor edi, edi",
        "syscall",
        "ud2"
    )
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn call_of_stack() {
    core::arch::naked_asm!("ldp x0, x9, [sp], #16", "blr x9", "mov x8, #93", "mov x0, xzr", "svc 0", "brk #1")
}

/// CLONE_VM and CLONE_UNTRACED: tracers of the program do not get the agent's processes.
const PROCESS: usize = 0x100 | 0x80_0000;
const VFORK: usize = 0x4000;
const PARENT_SETTID: usize = 0x10_0000;
const CHILD_CLEARTID: usize = 0x20_0000;
const SETTLS: usize = 0x8_0000;

/// Words that the kernel writes for a new process.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a> {
    /// Becomes its number before it runs.
    pub number: &'a AtomicU32,
    /// Becomes 0 when it has ended in any way, and is woken.
    pub alive: &'a AtomicU32,
}

/// The clone flags and the first instruction of a process that [`begin_orphan`] makes.
fn orphan(thread_pointer: usize) -> (usize, usize) {
    let pointer = if thread_pointer == 0 { 0 } else { SETTLS };
    let flags = PROCESS | PARENT_SETTID | CHILD_CLEARTID | pointer;
    (flags, call_of_stack as *const () as usize)
}

/// Starts a process that shares the memory and nothing else, on a stack that holds, upwards, an
/// argument and a function; and with its own thread pointer unless that is 0. Another process makes
/// it and ends at once, so that the new one is an orphan, for which the caller never waits. Returns
/// the number of that other process, which has the exit status 0 if it made one, and of which no
/// signal tells.
///
/// # Safety
/// All signals are blocked. Stack and thread pointer belong to the process from now on.
#[cfg(target_arch = "x86_64")]
pub unsafe fn begin_orphan(stack: usize, thread_pointer: usize, words: Words) -> isize {
    let result: isize;
    let (flags, entry) = orphan(thread_pointer);
    // SAFETY: the caller only gets the result. The process between has its stack until then, and
    // writes no memory. The new one leaves this frame at once, for good.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov eax, 56", // clone
            "mov rdi, r14",
            "mov rsi, r12",
            "mov r8, r15",
            "mov r10, r9",
            "syscall",
            "test rax, rax",
            "jnz 3f",
            "xor ebp, ebp",
            "jmp r13",
            "3:",
            "xor edi, edi",
            "test rax, rax",
            "sets dil",
            "mov eax, 60", // exit
            "syscall",
            "ud2",
            "2:",
            inlateout("rax") 56isize => result, // clone
            in("rdi") PROCESS | VFORK,
            in("rsi") 0usize,
            in("rdx") words.number.as_ptr(),
            in("r10") 0usize,
            in("r8") 0usize,
            in("r9") words.alive.as_ptr(),
            in("r12") stack,
            in("r13") entry,
            in("r14") flags,
            in("r15") thread_pointer,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// As above; aarch64 takes the thread pointer as the fourth argument.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
pub unsafe fn begin_orphan(stack: usize, thread_pointer: usize, words: Words) -> isize {
    let result: isize;
    let (flags, entry) = orphan(thread_pointer);
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x0, x20",
            "mov x1, x21",
            "mov x3, x23",
            "mov x4, x24",
            "svc 0",
            "cbnz x0, 3f",
            "mov x29, xzr",
            "br x22",
            "3:",
            "lsr x0, x0, #63",
            "mov x8, #93", // exit
            "svc 0",
            "brk #1",
            "2:",
            inlateout("x0") PROCESS | VFORK => result,
            in("x1") 0usize,
            in("x2") words.number.as_ptr(),
            in("x3") 0usize,
            inlateout("x4") 0usize => _,
            in("x8") 220usize, // clone
            in("x20") flags,
            in("x21") stack,
            in("x22") entry,
            in("x23") thread_pointer,
            in("x24") words.alive.as_ptr(),
        );
    }
    result
}

/// Leaves the caller's stack for this one: for a program's `entry`, whose initial stack it is, or
/// for the function on it, as a process of [`begin_orphan`] does.
///
/// # Safety
/// The stack belongs to the process.
pub unsafe fn enter(entry: Option<usize>, stack: usize) -> ! {
    let entry = entry.unwrap_or(call_of_stack as *const () as usize);
    // SAFETY: nothing returns to the caller's frames.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "mov rsp, rcx",
            "xor ebp, ebp",
            "xor edx, edx", // nothing to be called at the end
            "jmp rsi",
            in("rcx") stack,
            in("rsi") entry,
            options(noreturn),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "mov sp, x9",
            "mov x29, xzr",
            "mov x0, xzr", // as above
            "br x10",
            in("x9") stack,
            in("x10") entry,
            options(noreturn),
        );
    }
}
