//! Other processes that share this one's memory: children of vfork() that have not executed yet,
//! and what clone() makes with CLONE_VM and without CLONE_THREAD. They may outlive this process,
//! whose pager ends with it.
//!
//! Here it is only noted that there may be some, so that other processes end as quickly as before.
//! Such calls by system call instructions are not seen: the supervisor ends what is left of these
//! (`program`'s module `orphans`).

use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::calls::set_errno;
use crate::next::Next;
use crate::{cleared, system};

static VFORK: Next = Next::new(c"vfork");
static CLONE: Next = Next::new(c"clone");

/// There may be a process that shares this one's memory.
static SEEN: AtomicU32 = AtomicU32::new(0);
/// Calls under way that make one, and return when it shares no more.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Looks up what may not be looked up later.
pub fn prepare() {
    VFORK.find();
    CLONE.find();
}

/// Whether another process may share this one's memory.
pub fn is_possible() -> bool {
    SEEN.load(Ordering::Acquire) != 0 || WAITING.load(Ordering::Acquire) != 0
}

/// In a forked child: its memory is its own.
pub fn forget() {
    SEEN.store(0, Ordering::Release);
    WAITING.store(0, Ordering::Release);
}

/// Calls a function that starts a program, as posix_spawn() does: the new process shares this one's
/// memory until the program is executed.
pub fn while_shared<T>(start: impl FnOnce() -> T) -> T {
    WAITING.fetch_add(1, Ordering::AcqRel);
    let result = start();
    WAITING.fetch_sub(1, Ordering::AcqRel);
    result
}

/// Notes a system call by its number.
pub fn note_call(number: c_long, arguments: &[usize; 6]) {
    let flags = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => libc::CLONE_VM as u64,
        libc::SYS_clone => arguments[0] as u64,
        libc::SYS_clone3 => system::read_own(arguments[0]).unwrap_or(0),
        _ => return,
    };
    note(flags);
}

fn note(flags: u64) {
    if flags & (libc::CLONE_VM | libc::CLONE_THREAD) as u64 == libc::CLONE_VM as u64 {
        SEEN.store(1, Ordering::Release);
    }
}

/// Where vfork() continues: the C library's, or fork(), which may stand for it.
extern "C" fn next_vfork() -> *mut c_void {
    SEEN.store(1, Ordering::Release);
    let next = VFORK.find();
    if next.is_null() {
        libc::fork as *mut c_void
    } else {
        next
    }
}

/// Where clone() continues.
extern "C" fn next_clone(
    _function: usize,
    _stack: usize,
    flags: c_int,
    _argument: usize,
    _parents: usize,
    _pointer: usize,
    cleared: usize,
) -> *mut c_void {
    note(flags as u64);
    cleared::note(flags, cleared);
    let next = CLONE.find();
    if next.is_null() {
        no_clone as *mut c_void
    } else {
        next
    }
}

extern "C" fn no_clone() -> c_int {
    set_errno(-c_long::from(libc::ENOSYS)) as c_int
}

/// A function that is passed on with all its arguments, from the same place on the stack: it
/// returns twice, or has a variable number of them.
macro_rules! passed_on {
    ($(#[$doc:meta])* $name:ident, $next:path) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the C library's.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                "endbr64",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                // The seventh argument, if there is one.
                "mov rax, [rsp + 64]",
                "push rax",
                "push rax",
                "call {next}",
                "mov r11, rax",
                "add rsp, 16",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                next = sym $next,
            )
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// As the C library's.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "bl {next}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                next = sym $next,
            )
        }
    };
}

passed_on!(
    /// vfork(2).
    vfork,
    next_vfork
);
passed_on!(
    /// clone(2), the C library's.
    clone,
    next_clone
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_share_memory_are_known() {
        let is_noted = |number, first: usize| {
            forget();
            note_call(number, &[first, 0, 0, 0, 0, 0]);
            is_possible()
        };
        let shares = libc::CLONE_VM as usize;
        assert!(is_noted(libc::SYS_clone, shares) && !is_noted(libc::SYS_clone, libc::SIGCHLD as usize));
        assert!(!is_noted(libc::SYS_clone, shares | libc::CLONE_THREAD as usize), "a thread");
        assert!(!is_noted(libc::SYS_getpid, shares));
        let words = [libc::CLONE_VM as u64, 0];
        assert!(is_noted(libc::SYS_clone3, words.as_ptr().addr()));
        forget();
        assert!(while_shared(is_possible) && !is_possible());
    }
}
