//! Threads that the program makes by the C library: the word that the kernel clears when one ends
//! is noted before the thread does anything.
//!
//! The pager finds that word when it lists the threads, every 20 ms or more ([`crate::cleared`]
//! says why it must stay in memory). A thread that lived shorter had it moved out in the meantime,
//! and pthread_join() waited for ever: in 4 of 16 runs with up to 3,200 threads that slept for 3 to
//! 15 ms on new stacks and ended by exit(2), in less memory than even the pool needed; in 0 of 34
//! since threads begin here. Only the thread itself can ask the kernel where its word is. It jumps
//! to the program's function then: pthread_exit() and cancellation unwind the stack, and find no
//! frame of this object.
//!
//! The C library's own threads do not begin here. They are not joined.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr::null;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::next::{Next, Onward};
use crate::{cleared, control_page, system};

type Create = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, *mut c_void) -> c_int;
type CreateC11 = unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void) -> c_int;

static CREATE: Next = Next::new(c"pthread_create");
static CREATE_C11: Next = Next::new(c"thrd_create");

/// Threads that may be between their creation and their first step.
const PLACES: usize = 64;
/// How often a place is looked for before a thread is made that does not begin here.
const LOOKS_MAX: usize = 100;

/// What a thread is to call. It is the creating thread's, and then the new thread's, which gives it
/// back.
struct Place {
    is_taken: AtomicBool,
    /// A function and its argument.
    routine: UnsafeCell<(*const c_void, *mut c_void)>,
}

// SAFETY: `routine` is used by the thread that has taken the place, or was given it.
unsafe impl Sync for Place {}

static ALL: [Place; PLACES] = [const {
    Place { is_taken: AtomicBool::new(false), routine: UnsafeCell::new((null(), core::ptr::null_mut())) }
}; PLACES];

/// Looks up what threads are made by. To be called by the object's constructor.
pub fn prepare() {
    for next in [&CREATE, &CREATE_C11] {
        next.find();
    }
}

fn take() -> Option<&'static Place> {
    let takes = |place: &&Place| {
        !place.is_taken.load(Ordering::Relaxed)
            && place.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    for _ in 0..LOOKS_MAX {
        if let Some(place) = ALL.iter().find(takes) {
            return Some(place);
        }
        system::yield_now();
    }
    None
}

/// In a forked child, which lacks the threads that had places.
pub fn forget() {
    ALL.iter().for_each(|place| place.is_taken.store(false, Ordering::Relaxed));
}

/// The new thread's first step. Returns what it is to call.
unsafe extern "C" fn begin(place: *const c_void) -> Onward {
    // SAFETY: `create` passed it, and it is this thread's until it is given back.
    let place = unsafe { &*place.cast::<Place>() };
    // SAFETY: as above.
    let (function, argument) = unsafe { *place.routine.get() };
    place.is_taken.store(false, Ordering::Release);
    cleared::note_this_thread();
    Onward { function, answer: argument as isize }
}

/// Where threads begin.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn trampoline() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {begin}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "mov rdi, rdx",
        "jmp rax",
        ".cfi_endproc",
        begin = sym begin,
    )
}

/// Where threads begin.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn trampoline() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x30, -8",
        "bl {begin}",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa_offset 0",
        "mov x16, x0",
        "mov x0, x1",
        "br x16",
        ".cfi_endproc",
        begin = sym begin,
    )
}

/// Makes a thread by `make`, which is given the function and the argument that it begins with.
fn create(
    routine: *const c_void,
    argument: *mut c_void,
    make: impl Fn(*const c_void, *mut c_void) -> c_int,
) -> c_int {
    // A process that shares this one's memory may be ended at any time, with a place taken.
    let place = if control_page::is_own_process() { take() } else { None };
    let Some(place) = place else { return make(routine, argument) };
    // SAFETY: this thread's from take() on.
    unsafe { *place.routine.get() = (routine, argument) };
    let answer = make(trampoline as *const c_void, (&raw const *place).cast_mut().cast());
    // 0 is what both functions answer when there is a thread.
    if answer != 0 {
        place.is_taken.store(false, Ordering::Release);
    }
    answer
}

/// pthread_create(3).
///
/// # Safety
/// As pthread_create(3).
#[no_mangle]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    routine: *const c_void,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the C library's function of this name.
    let Some(next) = (unsafe { CREATE.function::<Create>() }) else { return libc::ENOSYS };
    // SAFETY: the caller's arguments; a function of the same type that does as the caller's does.
    create(routine, argument, |routine, argument| unsafe { next(thread, attributes, routine, argument) })
}

/// thrd_create(3), whose functions return numbers: the trampoline returns nothing itself.
///
/// # Safety
/// As thrd_create(3).
#[no_mangle]
pub unsafe extern "C" fn thrd_create(
    thread: *mut c_void,
    routine: *const c_void,
    argument: *mut c_void,
) -> c_int {
    /// `thrd_error` of glibc's and musl's threads.h.
    const ERROR: c_int = 2;
    // SAFETY: the C library's function of this name.
    let Some(next) = (unsafe { CREATE_C11.function::<CreateC11>() }) else { return ERROR };
    // SAFETY: as pthread_create.
    create(routine, argument, |routine, argument| unsafe { next(thread, routine, argument) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twice its argument, if the thread's word is noted.
    extern "C" fn double(argument: *mut c_void) -> *mut c_void {
        let (own, mut is_noted) = (cleared::of_this_thread(), false);
        control_page::CONTROL_PAGE.cleared.for_each(&mut |noted| is_noted |= noted == own);
        assert!(is_noted && own != 0);
        (argument.addr() * 2) as *mut c_void
    }

    /// All are alive at once, fewer than notes.
    #[test]
    fn threads_begin_with_their_own_arguments_and_are_noted() {
        control_page::note_process();
        // More at a time than there are places.
        let threads: Vec<libc::pthread_t> = (1..=2 * PLACES)
            .map(|number| {
                let mut thread = 0;
                // SAFETY: an out variable, no attributes, a function of the right type.
                let answer = unsafe {
                    pthread_create(
                        (&raw mut thread).cast(),
                        null(),
                        double as *const c_void,
                        number as *mut c_void,
                    )
                };
                assert_eq!(answer, 0);
                thread
            })
            .collect();
        for (number, thread) in (1..).zip(threads) {
            let mut result = core::ptr::null_mut();
            // SAFETY: made above, and joined once.
            assert_eq!(unsafe { libc::pthread_join(thread, &mut result) }, 0);
            assert_eq!(result.addr(), 2 * number);
        }
        assert!(ALL.iter().all(|place| !place.is_taken.load(Ordering::Relaxed)));
    }

    #[test]
    fn a_thread_that_is_not_made_gives_its_place_back() {
        control_page::note_process();
        for _ in 0..2 * PLACES {
            let answer = create(null(), core::ptr::null_mut(), |_, _| libc::EAGAIN);
            assert_eq!(answer, libc::EAGAIN);
        }
    }
}
