//! The end of the process, as far as other processes need it.
//!
//! The pager's threads end with the process. The child of a thread in fork() needs them until it
//! has taken over, and a process that shares this one's memory needs them for ever. So every
//! orderly end comes here first: exit() and the end of main() through this object's destructor,
//! quick_exit() through a handler that runs after the program's, the others through the C library's
//! functions. (When the last thread ends by itself, the control thread ends the process, and checks
//! the same.) Ends that bypass these, by signals and system call instructions, do not wait.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

use doorway::control_page::ending;

use crate::control_page::{has_pager, is_alive, is_own_process, is_set, CONTROL_PAGE};
use crate::next::library;
use crate::{fork, sharing, system};

// glibc's at_quick_exit(), which dlsym cannot find, has the second name; musl's has the third.
library! {
    QUICK_EXIT: quick_exit(c_int) -> !;
    AT_QUICK_EXIT_OF: __cxa_at_quick_exit(extern "C" fn(), *mut c_void) -> c_int;
    AT_QUICK_EXIT: at_quick_exit(extern "C" fn()) -> c_int;
}

/// Whether quick_exit() calls [`before`] by itself.
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// Looks up functions. Call before the program can register handlers: the last one runs first.
pub fn prepare() {
    QUICK_EXIT.find();
    // SAFETY: the C library's types. glibc passes the handler an argument, which it ignores.
    let answer = unsafe {
        let of_object = AT_QUICK_EXIT_OF.function().map(|register| register(destructor, null_mut()));
        of_object.or_else(|| AT_QUICK_EXIT.function().map(|register| register(destructor)))
    };
    IS_REGISTERED.store(answer == Some(0), Ordering::Relaxed);
}

/// Waits until the process may end.
pub fn before() {
    let forks = &CONTROL_PAGE.forks;
    // A child of vfork(), which shares this memory, ends this way, too.
    if !is_alive() || !is_own_process() {
        return;
    }
    fork::wait_for_children();
    if !sharing::is_possible() || !has_pager() || is_set(&forks.stopped) {
        return;
    }
    fork::with_halt(Some(&forks.ending), || {
        // Otherwise everything is in, and the pager stays halted.
        if forks.ending.load(core::sync::atomic::Ordering::Acquire) != ending::SHARED {
            fork::go_on();
        }
    });
}

#[no_mangle]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    before();
    system::exit_process(status)
}

#[no_mangle]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    before();
    system::exit_process(status)
}

#[no_mangle]
pub unsafe extern "C" fn quick_exit(status: c_int) -> ! {
    if !IS_REGISTERED.load(Ordering::Relaxed) {
        before();
    }
    match QUICK_EXIT.function() {
        // SAFETY: the caller's status.
        Some(next) => unsafe { next(status) },
        None => system::exit_process(status),
    }
}

extern "C" fn destructor() {
    before();
}

#[used]
#[link_section = ".fini_array"]
static DESTRUCTOR: extern "C" fn() = destructor;
