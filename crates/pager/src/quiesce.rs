//! Quiescing the pager's threads: which may work, and which stand still.
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
//! Invariants: a thread counts itself in before it reads the state, and the state is raised before
//! the counts are read. So when [`Quiesce::begin`] or [`Quiesce::stop`] returns, no thread that
//! should stand works. A standing thread holds no lock and no slot, except a handler's frame cache.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

use address_space::Bell;
use sys::{futex, thread};

const RUNNING: u32 = 0;
const HALTING: u32 = 1;
const DRAINING: u32 = 2;
const STOPPED: u32 = 3;
const PARKED: u32 = 4;
const ENDING: u32 = 5;

/// Which threads stand still, and the number of those at work.
#[derive(Debug, Default)]
pub(crate) struct Quiesce {
    state: AtomicU32,
    workers: AtomicU32,
    handlers: AtomicU32,
    /// Threads in an endless or unlimited wait.
    parked: AtomicU32,
    /// One worker rings it when all threads end: the report wakes handlers that wait for messages.
    bell: Mutex<Option<Bell>>,
}

impl Quiesce {
    pub(crate) fn is_on(&self) -> bool {
        self.state.load(Ordering::SeqCst) != RUNNING
    }

    pub(crate) fn allows_direct_reclaim(&self) -> bool {
        self.state.load(Ordering::SeqCst) != HALTING
    }

    /// Starts a worker's work, when workers may; [`Quiesce::worker_leaves`] ends it. Outside it a
    /// worker holds nothing. Returns false if the worker must end.
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

    /// Starts a handler's work, when handlers may; [`Quiesce::handler_leaves`] ends it. Outside it
    /// a handler holds only its frame cache. Returns false if the handler must end.
    pub(crate) fn handler_enters(&self) -> bool {
        self.enter(&self.handlers, DRAINING)
    }

    pub(crate) fn handler_leaves(&self) {
        self.handlers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts the caller in unless the state is above `highest`. It counts before it reads the
    /// state, which is raised before the count is read. Returns false if the caller must end.
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

    /// Waits until workers stand still and handlers serve without making room.
    pub(crate) fn begin(&self) {
        self.raise(HALTING, &self.workers);
    }

    /// Makes all threads stand still for ever.
    pub(crate) fn park(&self) {
        self.state.store(PARKED, Ordering::SeqCst);
        self.wake_all();
    }

    pub(crate) fn parked(&self) -> u32 {
        self.parked.load(Ordering::SeqCst)
    }

    fn raise(&self, state: u32, inside: &AtomicU32) {
        self.state.store(state, Ordering::SeqCst);
        while inside.load(Ordering::SeqCst) > 0 {
            thread::sleep_ns(5_000);
        }
    }

    /// Waits until workers, then handlers stand still. Workers may wait for their own faults.
    pub(crate) fn stop(&self) {
        self.raise(DRAINING, &self.workers);
        self.raise(STOPPED, &self.handlers);
    }

    /// Does not return after [`Quiesce::park`].
    pub(crate) fn stand_if_parked(&self) {
        while self.state.load(Ordering::SeqCst) == PARKED {
            self.while_waiting(|| futex::wait(&self.state, PARKED, None));
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.state.load(Ordering::SeqCst) == ENDING
    }

    /// Ends all threads. `bell` is registered, so that ringing it wakes handlers.
    pub(crate) fn end(&self, bell: Bell) {
        *self.bell.lock().expect("no panic while held") = Some(bell);
        self.state.store(ENDING, Ordering::SeqCst);
    }

    pub(crate) fn wake_all(&self) {
        futex::wake(&self.state, i32::MAX);
    }

    /// Wakes handlers that wait for messages, by a message. The caller waits until it is read.
    fn ring(&self) {
        let bell = self.bell.lock().expect("no panic while held").take();
        bell.into_iter().for_each(Bell::ring);
    }

    /// Runs an unlimited wait, which counts as standing still.
    pub(crate) fn while_waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.parked.fetch_add(1, Ordering::SeqCst);
        let result = wait();
        self.parked.fetch_sub(1, Ordering::SeqCst);
        result
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_decides_which_threads_may_work() {
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
        quiesce.end(address_space::testing::bell());
        assert!(quiesce.is_ending() && !quiesce.handler_enters() && !quiesce.worker_enters());
    }
}
