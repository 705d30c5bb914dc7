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
use crate::next::Next;
use crate::{fork, sharing, system};

static QUICK_EXIT: Next = Next::new(c"quick_exit");
/// glibc's at_quick_exit(), which dlsym cannot find; musl's.
static AT_QUICK_EXIT_OF: Next = Next::new(c"__cxa_at_quick_exit");
static AT_QUICK_EXIT: Next = Next::new(c"at_quick_exit");
/// Whether quick_exit() calls [`before`] by itself.
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// Looks up functions. Call before the program can register handlers: the last one runs first.
pub fn prepare() {
    type OfObject = unsafe extern "C" fn(extern "C" fn(), *mut c_void) -> c_int;
    type Function = unsafe extern "C" fn(extern "C" fn()) -> c_int;
    QUICK_EXIT.find();
    // SAFETY: the C library's types. glibc passes the handler an argument, which it ignores.
    let answer = unsafe {
        let of_object =
            AT_QUICK_EXIT_OF.function::<OfObject>().map(|register| register(destructor, null_mut()));
        of_object.or_else(|| AT_QUICK_EXIT.function::<Function>().map(|register| register(destructor)))
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
    type Function = unsafe extern "C" fn(c_int) -> *mut c_void;
    if !IS_REGISTERED.load(Ordering::Relaxed) {
        before();
    }
    // SAFETY: the function's type is the C library's, except that it does not return.
    unsafe {
        QUICK_EXIT.function::<Function>().map(|next| next(status));
    }
    system::exit_process(status)
}

extern "C" fn destructor() {
    before();
}

#[used]
#[link_section = ".fini_array"]
static DESTRUCTOR: extern "C" fn() = destructor;
