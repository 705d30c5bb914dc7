//! Quiescing the pager's threads: which of them may work, and which stand still.
//!
//! ```text
//!              workers   handlers             until
//!  running     work      serve and reclaim
//!  halting     stand     serve                all pages are in (`lifecycle/halt.rs`)
//!  draining    stand     serve and reclaim    the workers stand: they may wait for faults of their own
//!  stopped     stand     stand                a fork is over (`fork`)
//!  parked      their last system call, for ever
//!  ending      end       end
//! ```
//!
//! Invariants: a thread counts itself in before it looks at the state, and the state is raised
//! before the counts are looked at. So when [`Quiesce::begin`] or [`Quiesce::stop`] returns, no
//! thread that is to stand works. A thread that stands holds no lock and no slot, a handler its
//! frame cache excepted.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use sys::{futex, thread, PAGE_SIZE};

/// Everybody works.
const RUNNING: u32 = 0;
/// Workers stand still, handlers serve and do not reclaim: everything comes in.
const HALTING: u32 = 1;
/// Workers stand still, handlers serve.
const DRAINING: u32 = 2;
/// Workers and handlers stand still, everything stays where it is.
const STOPPED: u32 = 3;
/// All threads stand still for ever and make no system call any more.
const PARKED: u32 = 4;
/// All threads end.
const ENDING: u32 = 5;

/// A page that nothing refers to and whose replacement is reported.
#[derive(Debug)]
pub(crate) struct Bell(usize);

impl Bell {
    /// A bell at this address.
    ///
    /// # Safety
    /// A page is mapped there, nothing refers to it, and nothing will.
    pub unsafe fn new(at: usize) -> Self {
        Bell(at)
    }
}

/// Which threads are to stand still, and how many do not.
#[derive(Debug, Default)]
pub(crate) struct Quiesce {
    state: AtomicU32,
    /// Workers at work.
    workers: AtomicU32,
    /// Handlers that read or serve.
    handlers: AtomicU32,
    /// Threads that are in their last system call.
    parked: AtomicU32,
    /// The address of a [`Bell`], for one worker to map again when all end: the report wakes
    /// handlers that wait for messages. Zero before that and once it was rung.
    bell: AtomicUsize,
}

impl Quiesce {
    /// Whether a halt is on.
    pub(crate) fn is_on(&self) -> bool {
        self.state.load(Ordering::SeqCst) != RUNNING
    }

    /// Whether handlers may reclaim.
    pub(crate) fn allows_direct_reclaim(&self) -> bool {
        self.state.load(Ordering::SeqCst) != HALTING
    }

    /// Begins a worker's work, once workers may; [`Quiesce::worker_leaves`] ends it. Outside of it
    /// a worker holds nothing. False when the worker is to end.
    pub(crate) fn worker_enters(&self) -> bool {
        let enters = self.enter(&self.workers, RUNNING);
        if !enters {
            self.ring();
        }
        enters
    }

    pub(crate) fn worker_leaves(&self) {
        self.workers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Begins a handler's work, once handlers may; [`Quiesce::handler_leaves`] ends it. Outside of
    /// it a handler has nothing but its frame cache. False when the handler is to end.
    pub(crate) fn handler_enters(&self) -> bool {
        self.enter(&self.handlers, DRAINING)
    }

    pub(crate) fn handler_leaves(&self) {
        self.handlers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts the caller in unless the state is above `highest`; the state is looked at after
    /// counting, as it is raised before the count is looked at. False when the caller is to end.
    fn enter(&self, inside: &AtomicU32, highest: u32) -> bool {
        loop {
            inside.fetch_add(1, Ordering::SeqCst);
            let state = self.state.load(Ordering::SeqCst);
            if state <= highest {
                return true;
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            if self.is_ending() {
                return false;
            }
            self.stand_if_parked();
            futex::wait(&self.state, state, Some(10_000_000));
        }
    }

    /// Has workers stand still, and handlers serve without making room, and waits until they do.
    pub(crate) fn begin(&self) {
        self.raise(HALTING, &self.workers);
    }

    /// Has all threads stand still for ever.
    pub(crate) fn park(&self) {
        self.state.store(PARKED, Ordering::SeqCst);
        self.wake_all();
    }

    /// Threads that stand in a wait that may last for ever.
    pub(crate) fn parked(&self) -> u32 {
        self.parked.load(Ordering::SeqCst)
    }

    fn raise(&self, state: u32, inside: &AtomicU32) {
        self.state.store(state, Ordering::SeqCst);
        while inside.load(Ordering::SeqCst) > 0 {
            thread::sleep_ns(5_000);
        }
    }

    /// Has workers, then handlers stand still, and waits until they do. Workers first: they may
    /// wait for faults of their own to be served.
    pub(crate) fn stop(&self) {
        self.raise(DRAINING, &self.workers);
        self.raise(STOPPED, &self.handlers);
    }

    /// Does not return once threads are to stand still for ever.
    pub(crate) fn stand_if_parked(&self) {
        while self.state.load(Ordering::SeqCst) == PARKED {
            self.parked.fetch_add(1, Ordering::SeqCst);
            futex::wait(&self.state, PARKED, None);
            self.parked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether all threads are to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.state.load(Ordering::SeqCst) == ENDING
    }

    /// Has all threads end. `bell` is registered, so that ringing it wakes handlers.
    pub(crate) fn end(&self, bell: Bell) {
        self.bell.store(bell.0, Ordering::SeqCst);
        self.state.store(ENDING, Ordering::SeqCst);
    }

    /// Wakes those who stand still.
    pub(crate) fn wake_all(&self) {
        futex::wake(&self.state, i32::MAX);
    }

    /// Wakes handlers that wait for messages, by one. The caller waits until it is read.
    fn ring(&self) {
        let bell = self.bell.swap(0, Ordering::SeqCst);
        if bell != 0 {
            // SAFETY: the address was a `Bell`'s: nothing refers to that page. `Quiesce::end`
            // stores nothing else.
            let rung = unsafe { sys::memory::map_again(bell, PAGE_SIZE) };
            rung.expect("as many mappings as before, and one more");
        }
    }

    /// Runs a wait that may last for ever, which is as good as standing still.
    pub(crate) fn while_waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.parked.fetch_add(1, Ordering::SeqCst);
        let answer = wait();
        self.parked.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    /// Lets everybody work.
    pub(crate) fn resume(&self) {
        self.state.store(RUNNING, Ordering::SeqCst);
        futex::wake(&self.state, i32::MAX);
    }

    /// In a forked child, which has none of these threads.
    pub(crate) fn reset(&self) {
        self.workers.store(0, Ordering::SeqCst);
        self.handlers.store(0, Ordering::SeqCst);
        self.parked.store(0, Ordering::SeqCst);
        self.resume();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn who_may_work_depends_on_the_state() {
        let quiesce = Quiesce::default();
        assert!(
            quiesce.worker_enters()
                && quiesce.handler_enters()
                && quiesce.allows_direct_reclaim()
                && !quiesce.is_on()
        );
        quiesce.worker_leaves();
        quiesce.begin();
        assert!(quiesce.is_on() && !quiesce.allows_direct_reclaim(), "everything comes in");
        quiesce.handler_leaves();
        assert!(quiesce.handler_enters(), "handlers serve");
        quiesce.handler_leaves();
        quiesce.stop();
        quiesce.reset();
        assert!(quiesce.worker_enters() && !quiesce.is_on() && quiesce.parked() == 0);
        quiesce.worker_leaves();
        assert_eq!((quiesce.while_waiting(|| quiesce.parked()), quiesce.parked()), (1, 0));
        // SAFETY: no page at all: no worker rings it.
        quiesce.end(unsafe { Bell::new(0) });
        assert!(quiesce.is_ending() && !quiesce.handler_enters() && !quiesce.worker_enters());
    }
}
