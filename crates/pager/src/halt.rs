//! Which of the pager's threads may work, and which stand still. What a halt is for: `standstill`.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use sys::{futex, thread, PAGE_SIZE};

/// Everybody works.
const RUNNING: u32 = 0;
/// Workers stand still, handlers serve and do not reclaim: everything comes in.
const HALTING: u32 = 1;
/// Workers stand still, handlers serve.
const CALMING: u32 = 2;
/// Workers and handlers stand still, everything stays where it is.
const STILL: u32 = 3;
/// All threads stand still for ever and make no system call any more.
const PARKED: u32 = 4;
/// All threads end.
const ENDING: u32 = 5;

/// Which threads are to stand still, and how many do not.
#[derive(Debug, Default)]
pub struct Halt {
    state: AtomicU32,
    /// Workers at work.
    workers: AtomicU32,
    /// Handlers that read or serve.
    handlers: AtomicU32,
    /// Threads that are in their last system call.
    parked: AtomicU32,
    /// A page that is registered, for one worker to map again when all end: the report wakes
    /// handlers that wait for messages.
    bell: AtomicUsize,
}

impl Halt {
    /// Whether a halt is on.
    pub(crate) fn is_on(&self) -> bool {
        self.state.load(Ordering::SeqCst) != RUNNING
    }

    /// Whether handlers may reclaim.
    pub(crate) fn allows_help(&self) -> bool {
        self.state.load(Ordering::SeqCst) != HALTING
    }

    /// Begins a worker's work, once workers may; [`Halt::worker_leaves`] ends it. Outside of it a
    /// worker holds nothing. False when the worker is to end.
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

    /// Begins a handler's work, once handlers may; [`Halt::handler_leaves`] ends it. Outside of it
    /// a handler has nothing but its frame cache. False when the handler is to end.
    pub(crate) fn handler_enters(&self) -> bool {
        self.enter(&self.handlers, CALMING)
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
    pub(crate) fn still(&self) {
        self.raise(CALMING, &self.workers);
        self.raise(STILL, &self.handlers);
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

    /// Has all threads end. `bell` is a page of the pager's own that is registered.
    pub(crate) fn end(&self, bell: usize) {
        self.bell.store(bell, Ordering::SeqCst);
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
            // SAFETY: a page of the pager's own, which nothing refers to any more.
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
    pub(crate) fn over(&self) {
        self.state.store(RUNNING, Ordering::SeqCst);
        futex::wake(&self.state, i32::MAX);
    }

    /// In a forked child, which has none of these threads.
    pub(crate) fn reset(&self) {
        self.workers.store(0, Ordering::SeqCst);
        self.handlers.store(0, Ordering::SeqCst);
        self.parked.store(0, Ordering::SeqCst);
        self.over();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn who_may_work_depends_on_the_state() {
        let halt = Halt::default();
        assert!(halt.worker_enters() && halt.handler_enters() && halt.allows_help() && !halt.is_on());
        halt.worker_leaves();
        halt.begin();
        assert!(halt.is_on() && !halt.allows_help(), "everything comes in");
        halt.handler_leaves();
        assert!(halt.handler_enters(), "handlers serve");
        halt.handler_leaves();
        halt.still();
        halt.reset();
        assert!(halt.worker_enters() && !halt.is_on() && halt.parked() == 0);
        halt.worker_leaves();
        assert_eq!((halt.while_waiting(|| halt.parked()), halt.parked()), (1, 0));
        halt.end(0);
        assert!(halt.is_ending() && !halt.handler_enters() && !halt.worker_enters());
    }
}
