//! Threads that the program makes by the C library: notes the word that the kernel clears at a
//! thread's end before the thread does anything.
//!
//! The pager finds that word when it lists the threads, every 20 ms or more ([`crate::cleared`]
//! says why it must stay in memory). For a thread with a shorter life it was moved out in the
//! meantime, and pthread_join() waited for ever: in 4 of 16 runs with up to 3,200 threads that
//! slept for 3 to 15 ms on new stacks and ended by exit(2), in less memory than even the pool
//! needed; in 0 of 34 since threads begin here. Only the thread itself can ask the kernel for its
//! word. It then jumps to the program's function: pthread_exit() and cancellation unwind the stack,
//! and find no frame of this object.
//!
//! The C library's own threads do not begin here. They are not joined.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::next::{library, Onward};
use crate::{cleared, control_page, system};

library! {
    /// Looks up the creating functions. The object's constructor calls this.
    pub fn prepare();
    CREATE: pthread_create(*mut c_void, *const c_void, *const c_void, *mut c_void) -> c_int;
    CREATE_C11: thrd_create(*mut c_void, *const c_void, *mut c_void) -> c_int;
}

/// Most threads between their creation and their first step.
const PLACES: usize = 64;
/// Attempts to find a place before a thread is made that does not begin here.
const LOOKS_MAX: usize = 100;

const FREE: usize = 0;
/// The creating thread is done, and the new one has not begun.
const GIVEN: usize = 1;

/// A thread's function. It belongs to the creating thread, then to the new thread, which frees it.
struct Handover {
    /// [`FREE`], [`GIVEN`], or the creating thread's pthread_self(), which a fork preserves.
    owner: AtomicUsize,
    routine: UnsafeCell<(*const c_void, *mut c_void)>,
}

// SAFETY: the owner writes `routine`, then makes the thread, which reads it and frees the place.
unsafe impl Sync for Handover {}

impl Handover {
    const fn new() -> Self {
        Handover { owner: AtomicUsize::new(FREE), routine: UnsafeCell::new((null(), null_mut())) }
    }

    fn change(&self, from: usize, to: usize) -> bool {
        self.owner.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn free(&self) {
        self.owner.store(FREE, Ordering::Release);
    }
}

static ALL: [Handover; PLACES] = [const { Handover::new() }; PLACES];

/// The calling thread's pointer. Never [`FREE`] or [`GIVEN`]: it is an address.
pub fn pointer() -> usize {
    // SAFETY: reads the thread pointer.
    unsafe { libc::pthread_self() as usize }
}

fn take(places: &'static [Handover]) -> Option<&'static Handover> {
    let takes =
        |place: &&Handover| place.owner.load(Ordering::Relaxed) == FREE && place.change(FREE, pointer());
    for _ in 0..LOOKS_MAX {
        if let Some(place) = places.iter().find(takes) {
            return Some(place);
        }
        system::yield_now();
    }
    None
}

/// In a forked child, which has only this thread. A handler may have forked during a creation.
pub fn forget() {
    forget_others(&ALL);
}

fn forget_others(places: &[Handover]) {
    places.iter().filter(|place| place.owner.load(Ordering::Relaxed) != pointer()).for_each(Handover::free);
}

/// The new thread's first step. Returns its function.
unsafe extern "C" fn begin(place: *const c_void) -> Onward {
    // SAFETY: `create` passed it, and no other thread uses it until this one frees it.
    let place = unsafe { &*place.cast::<Handover>() };
    // SAFETY: as above.
    let (function, argument) = unsafe { *place.routine.get() };
    place.free();
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

/// Makes a thread by `make`, which gets the function and argument that it begins with, and returns
/// 0 if there is a thread; otherwise the thread never begins.
fn create(
    places: &'static [Handover],
    routine: *const c_void,
    argument: *mut c_void,
    make: impl Fn(*const c_void, *mut c_void) -> c_int,
) -> c_int {
    // A process that shares this one's memory may end at any time, with a place taken.
    let place = if control_page::is_own_process() { take(places) } else { None };
    let Some(place) = place else { return make(routine, argument) };
    // SAFETY: this thread's since take().
    unsafe { *place.routine.get() = (routine, argument) };
    let answer = make(trampoline as *const c_void, (&raw const *place).cast_mut().cast());
    match answer {
        // Unless the thread has begun and freed it: it may be another's.
        0 => _ = place.change(pointer(), GIVEN),
        _ => place.free(),
    }
    answer
}

#[no_mangle]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    routine: *const c_void,
    argument: *mut c_void,
) -> c_int {
    let Some(next) = CREATE.function() else { return libc::ENOSYS };
    // SAFETY: the caller's arguments; a function that does the same as the caller's.
    create(&ALL, routine, argument, |routine, argument| unsafe {
        next(thread, attributes, routine, argument)
    })
}

/// thrd_create(3), whose functions return numbers: the trampoline returns nothing itself.
#[no_mangle]
pub unsafe extern "C" fn thrd_create(
    thread: *mut c_void,
    routine: *const c_void,
    argument: *mut c_void,
) -> c_int {
    /// `thrd_error` of glibc's and musl's threads.h.
    const ERROR: c_int = 2;
    let Some(next) = CREATE_C11.function() else { return ERROR };
    // SAFETY: as pthread_create.
    create(&ALL, routine, argument, |routine, argument| unsafe { next(thread, routine, argument) })
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

    /// As many threads as there are places, which no other test uses.
    #[test]
    fn threads_begin_with_their_own_arguments_and_are_noted() {
        static OWN: [Handover; PLACES] = [const { Handover::new() }; PLACES];
        control_page::note_process();
        let next = CREATE.function().expect("the C library makes threads");
        let make = |number: usize| {
            let mut thread: libc::pthread_t = 0;
            let out = (&raw mut thread).cast();
            let answer = create(&OWN, double as *const c_void, number as *mut c_void, |routine, argument| {
                // SAFETY: an out variable, no attributes, a function of the right type.
                unsafe { next(out, null(), routine, argument) }
            });
            assert_eq!(answer, 0);
            thread
        };
        let threads: Vec<libc::pthread_t> = (1..=PLACES).map(make).collect();
        for (number, thread) in (1..).zip(threads) {
            let mut result = null_mut();
            // SAFETY: made above, and joined once.
            assert_eq!(unsafe { libc::pthread_join(thread, &mut result) }, 0);
            assert_eq!(result.addr(), 2 * number);
        }
        assert!(OWN.iter().all(|place| place.owner.load(Ordering::Relaxed) == FREE));
    }

    #[test]
    fn a_thread_that_is_not_made_gives_its_place_back() {
        static OWN: [Handover; 2] = [const { Handover::new() }; 2];
        control_page::note_process();
        for _ in 0..5 {
            let answer = create(&OWN, null(), null_mut(), |routine, _| {
                assert_eq!(routine, trampoline as *const c_void, "there was a place");
                libc::EAGAIN
            });
            assert_eq!(answer, libc::EAGAIN);
        }
    }

    /// Regression: a signal handler forked during pthread_create(), and the child's next thread got
    /// the place of the one that had not begun.
    #[test]
    fn a_forked_child_keeps_the_place_that_its_thread_uses_and_no_other() {
        static OWN: [Handover; 4] = [const { Handover::new() }; 4];
        control_page::note_process();
        // A thread that was not forked, and one of this thread that had not begun.
        OWN[0].owner.store(pointer() + 8, Ordering::Relaxed);
        assert_eq!(create(&OWN, null(), null_mut(), |_, _| 0), 0);
        let owners = || [0, 1, 2, 3].map(|index| OWN[index].owner.load(Ordering::Relaxed));
        assert_eq!(owners(), [pointer() + 8, GIVEN, FREE, FREE]);
        create(&OWN, null(), null_mut(), |_, place| {
            assert_eq!(place.cast_const().cast(), &raw const OWN[2]);
            forget_others(&OWN);
            assert_eq!(owners(), [FREE, FREE, pointer(), FREE]);
            0
        });
        assert_eq!(owners(), [FREE, FREE, GIVEN, FREE]);
    }
}
