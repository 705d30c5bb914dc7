//! fork(): the pager stands still around it, and parent and child both have one afterwards.
//!
//! ```text
//! RUNNING --prepare--> ASKED --warden brings everything in--> HALTED --parent--> RUNNING
//!                                                                    \--child--> RUNNING, with a new warden
//! ```
//!
//! The handlers are the C library's (pthread_atfork), so every fork that goes through it is covered: fork(), daemon(),
//! forkpty(). vfork() and posix_spawn() share the parent's memory until exec and need nothing. A fork by bare system
//! call is noticed by the pager itself, see `Pager::foster`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sys::{futex, thread};

use crate::{announce, start, warden};

const RUNNING: u32 = 0;
const ASKED: u32 = 1;
const HALTED: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(RUNNING);
/// Held from prepare to parent or child: one fork at a time.
static ONE: AtomicU32 = AtomicU32::new(0);
/// Paging has ended for good.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// A seccomp filter may be in force in forked children.
static FILTERED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> libc::c_int;
}

/// Registers the handlers.
pub fn install() {
    // SAFETY: the functions live as long as the process: the object is never unloaded.
    unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// Whether this process has forked or was forked: some of its pages may be shared.
pub fn has_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Ends paging in this process: everything is brought in, and its pager stands still from now on.
pub fn stop_for_good(why: &'static str) {
    if warden::is_alive() && !STOPPED.swap(true, Ordering::AcqRel) {
        warden::remember_end(why);
        halt_and_wait();
        // The lock is kept: nobody lets the pager go on. Forks find it stopped.
        futex::unlock_bits(&ONE);
    }
}

/// A filter is about to bind the calling thread and its children: what they fork runs unmanaged.
pub fn expect_filter() {
    FILTERED.store(true, Ordering::Release);
}

/// Whether a filter may bind the calling thread.
pub fn expects_filter() -> bool {
    FILTERED.load(Ordering::Acquire)
}

/// Called by the warden between its looks: answers a halt that was asked for, and returns when it is over.
pub fn answer_halt() {
    if STATE.load(Ordering::Acquire) != ASKED {
        return;
    }
    let pager = warden::pager();
    if let Some(pager) = pager {
        pager.halt();
    }
    STATE.store(HALTED, Ordering::Release);
    futex::wake(&STATE, i32::MAX);
    while STATE.load(Ordering::Acquire) == HALTED {
        futex::wait(&STATE, HALTED, Some(100_000_000));
    }
    if let Some(pager) = pager {
        pager.go_on();
    }
}

/// Has the warden halt the pager and waits until it has.
pub fn halt_and_wait() {
    futex::lock_bits(&ONE);
    STATE.store(ASKED, Ordering::Release);
    while warden::is_alive() {
        warden::nudge();
        if STATE.load(Ordering::Acquire) == ASKED {
            futex::wait(&STATE, ASKED, Some(10_000_000));
        }
        if STATE.load(Ordering::Acquire) == HALTED {
            return;
        }
        thread::yield_now();
    }
}

unsafe extern "C" fn prepare() {
    if STOPPED.load(Ordering::Acquire) {
        futex::lock_bits(&ONE);
        return;
    }
    halt_and_wait();
}

unsafe extern "C" fn parent() {
    FORKED.store(true, Ordering::Relaxed);
    release();
}

fn release() {
    if STOPPED.load(Ordering::Acquire) {
        futex::unlock_bits(&ONE);
        return;
    }
    STATE.store(RUNNING, Ordering::Release);
    futex::wake(&STATE, i32::MAX);
    futex::unlock_bits(&ONE);
}

unsafe extern "C" fn child() {
    FORKED.store(true, Ordering::Relaxed);
    // The warden and its kind exist in the parent only. Their tables are dead weight here and hold no page.
    warden::forget();
    announce::forget();
    STATE.store(RUNNING, Ordering::Release);
    ONE.store(0, Ordering::Release);
    if !STOPPED.load(Ordering::Acquire) && !FILTERED.load(Ordering::Acquire) {
        start::start_warden();
    }
}
