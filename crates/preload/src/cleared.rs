//! Words that the kernel clears when a thread ends: their pages stay in memory (see the pager's
//! `kept`).
//!
//! This module notes the words of threads that the C library makes ([`crate::threads`]), which lie
//! in the threads' control blocks, and those that a program passes to clone(2) or to a system call
//! by number. It does not see a program's own system call instructions.

use core::ffi::{c_int, c_long};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::calls::raw_syscall;
use crate::control_page::CONTROL_PAGE;
use crate::{fork, system, threads};

/// Distance from the word to the list of robust mutexes in glibc's control blocks of all
/// architectures (struct pthread: `tid`, `robust_head`).
const LIST_BEHIND_BYTES: usize = 16;

/// Distance from the first thread's pointer to its word. glibc's other threads have the same;
/// musl's share one word, which is elsewhere.
static BEHIND_POINTER: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Notes the first thread's word. The object's constructor calls this.
pub fn prepare() {
    let word = of_this_thread();
    BEHIND_POINTER.store(word.wrapping_sub(threads::pointer()), Ordering::Relaxed);
    CONTROL_PAGE.cleared.note(word);
}

/// The calling thread's word; 0 if the kernel does not report it.
pub fn of_this_thread() -> usize {
    let mut address = 0usize;
    let arguments = [libc::PR_GET_TID_ADDRESS as usize, (&raw mut address).addr(), 0, 0, 0, 0];
    // SAFETY: the kernel writes an address to the variable.
    unsafe { raw_syscall(libc::SYS_prctl, arguments) };
    address
}

/// Notes the calling thread's word, and its list of robust mutexes, which the C library keeps next
/// to it, sometimes on the next page.
pub fn note_this_thread() {
    // A filter might end the thread for the call.
    let word = match (fork::expects_filter(), BEHIND_POINTER.load(Ordering::Relaxed)) {
        (false, _) => of_this_thread(),
        (true, behind @ ..doorway::PAGE_SIZE) => threads::pointer() + behind,
        (true, _) => return,
    };
    CONTROL_PAGE.cleared.note(word);
    let list = word + LIST_BEHIND_BYTES;
    if word != 0 && list / doorway::PAGE_SIZE != word / doorway::PAGE_SIZE {
        CONTROL_PAGE.cleared.note(list);
    }
}

/// Notes the word in a system call made by number.
pub fn note_call(number: c_long, arguments: &[usize; 6]) {
    let [a, b, _, d, e, _] = *arguments;
    match number {
        libc::SYS_set_tid_address => CONTROL_PAGE.cleared.note(a),
        libc::SYS_clone => note(a as c_int, if cfg!(target_arch = "x86_64") { d } else { e }),
        // struct clone_args: flags, pidfd, child_tid.
        libc::SYS_clone3 if b >= 3 * 8 => {
            if let (Some(flags), Some(word)) = (system::read_own(a), system::read_own(a + 2 * 8)) {
                note(flags as c_int, word as usize);
            }
        }
        _ => {}
    }
}

/// Notes the word in a clone(2) with these flags, if the child shares this memory.
pub fn note(flags: c_int, word: usize) {
    if flags & libc::CLONE_VM != 0 && flags & libc::CLONE_CHILD_CLEARTID != 0 {
        CONTROL_PAGE.cleared.note(word);
    }
}
