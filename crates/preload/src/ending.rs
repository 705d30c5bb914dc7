//! The end of the process, as far as others need it.
//!
//! The pager's threads end with the process. The child of a thread that is in fork() cannot do
//! without them, and a process that shares this one's memory never can. So every way to end in
//! order comes here first: exit() and the end of main() by this object's destructor, quick_exit()
//! by a handler that runs after the program's, the others by the C library's functions. (When the
//! last thread ends by itself, the control thread ends the process, and looks for the same.) What
//! ends the process past all of these is not waited for: signals and system call instructions.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

use doorway::control_page::ending;

use crate::control_page::{has_pager, is_alive, is_own_process, is_set, CONTROL_PAGE};
use crate::next::Next;
use crate::{fork, sharing, system};

static QUICK_EXIT: Next = Next::new(c"quick_exit");
/// glibc's at_quick_exit(), which is no function that could be looked up; musl's.
static AT_QUICK_EXIT_OF: Next = Next::new(c"__cxa_at_quick_exit");
static AT_QUICK_EXIT: Next = Next::new(c"at_quick_exit");
/// quick_exit() comes to [`before`] by itself.
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// Looks up what is needed at the end. To be called before the program can register handlers: the
/// last of them runs first.
pub fn prepare() {
    type OfObject = unsafe extern "C" fn(extern "C" fn(), *mut c_void) -> c_int;
    type Function = unsafe extern "C" fn(extern "C" fn()) -> c_int;
    QUICK_EXIT.find();
    // SAFETY: the functions' types are the C library's. glibc passes the handler an argument, which
    // it does not take.
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
    // A child of vfork() ends this way, too, and has this memory.
    if !is_alive() || !is_own_process() {
        return;
    }
    fork::wait_for_children();
    if !sharing::is_possible() || !has_pager() || is_set(&forks.stopped) {
        return;
    }
    fork::with_halt(Some(&forks.ending), || {
        // Otherwise everything is in, and the pager stands still for good.
        if forks.ending.load(core::sync::atomic::Ordering::Acquire) != ending::SHARED {
            fork::go_on();
        }
    });
}

/// _exit(2).
///
/// # Safety
/// As _exit(2).
#[no_mangle]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    before();
    system::exit_process(status)
}

/// _Exit(3), which is the same.
///
/// # Safety
/// As _exit(2).
#[no_mangle]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    before();
    system::exit_process(status)
}

/// quick_exit(3).
///
/// # Safety
/// As quick_exit(3).
#[no_mangle]
pub unsafe extern "C" fn quick_exit(status: c_int) -> ! {
    type Function = unsafe extern "C" fn(c_int) -> *mut c_void;
    if !IS_REGISTERED.load(Ordering::Relaxed) {
        before();
    }
    // SAFETY: the function's type is the C library's, but that it does not return.
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
