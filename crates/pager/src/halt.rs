//! Halting: everything is brought in and nothing is registered, so that the process is as if it had no pager.
//!
//! Needed before fork(), where a child would find evicted pages as zeroes and locks held by threads it does not have,
//! and for good before the program takes away what a pager needs (a seccomp filter for all threads, mlockall).

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use sys::memory::USER_END;
use sys::{futex, thread, PAGE_SIZE};

use crate::accounts::Counter;
use crate::pager::Pager;
use crate::pages::Inbound;

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

/// How long parking waits for threads to stand, at most: none of them waits for the program, but the machine may be slow.
const PARK_NS: u64 = 10_000_000_000;

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

    /// Begins a handler's work, once handlers may; [`Halt::handler_leaves`] ends it. Outside of it a handler has
    /// nothing but its frame cache. False when the handler is to end.
    pub(crate) fn handler_enters(&self) -> bool {
        self.enter(&self.handlers, CALMING)
    }

    pub(crate) fn handler_leaves(&self) {
        self.handlers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts the caller in unless the state is above `highest`; the state is looked at after counting, as it is raised
    /// before the count is looked at. False when the caller is to end.
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

    fn raise(&self, state: u32, inside: &AtomicU32) {
        self.state.store(state, Ordering::SeqCst);
        while inside.load(Ordering::SeqCst) > 0 {
            thread::sleep_ns(5_000);
        }
    }

    /// Has workers, then handlers stand still, and waits until they do. Workers first: they may wait for faults of
    /// their own to be served.
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

impl Pager {
    /// Stops reclaim, brings every page in, unregisters every mapping, and waits until no fault is being served. Call
    /// from a pager thread that is no worker and no handler.
    pub fn halt(&self) {
        self.halt.raise(HALTING, &self.halt.workers);
        self.reclaim.wait_for_helpers();
        let mut inbound = Inbound::new(self.own_page);
        let mut brought = 0;
        // Ends because nothing goes out any more: what is left is what events are in the way of. Handlers read them; their order
        // may be known only when their threads have gone on, of which no message tells.
        while self.bring_everything(&mut inbound, &mut brought) {
            self.pages.apply_events();
            self.dismiss_gate_reports();
            thread::sleep_ns(50_000);
        }
        inbound.frames.empty_out(self.pages.staging());
        self.accounts.add(Counter::BroughtIn, brought as u64);
        self.unregister_everything();
        self.pages.watch_changes(false);
        while self.faults.any_busy()
            || self.faults.has_parked()
            || self.faults.has_parked_for_disk()
            || self.pages.has_pending_events()
        {
            self.pages.apply_events();
            thread::sleep_ns(10_000);
        }
        // Nothing waits for compression any more; the pages go back to the system.
        while let Some(slot) = self.pages.staging().oldest() {
            self.pages.staging().give(slot);
        }
        while let Some(slot) = self.pages.staging().take_ready(1) {
            self.pages.staging().discard(slot);
            self.pages.staging().give(slot);
        }
        self.measure();
    }

    /// Lets go of all mappings: where nobody serves faults any more, the threads of one that is registered would wait for ever.
    fn unregister_everything(&self) {
        loop {
            let mut registrations = self.registrations.lock().expect("no panic while held");
            registrations.note_changes(&self.pages);
            // What has been moved or has grown since the last look is registered, too, and not in the list.
            registrations.refresh(&self.files.maps, &self.pages, &self.config);
            registrations.unregister_all(&self.pages);
            drop(registrations);
            if self.unregister_moved() {
                return;
            }
        }
    }

    /// The same for what other threads have moved meanwhile, which is reported each time; false when too much was.
    fn unregister_moved(&self) -> bool {
        let (mut has_moved, mut is_known) = (true, true);
        while has_moved && is_known {
            while self.pages.has_pending_events() || self.pages.guard().is_changing() {
                self.pages.apply_events();
                self.dismiss_gate_reports();
                thread::sleep_ns(10_000);
            }
            has_moved = false;
            self.pages.take_changed(|start, end| {
                has_moved = true;
                is_known &= end != usize::MAX;
                // Most of these mappings have gone, or were never registered.
                let _ = self.pages.reports().unregister(start, end - start);
            });
        }
        is_known
    }

    /// Brings in what is out; whether something may be left.
    fn bring_everything(&self, inbound: &mut Inbound, brought: &mut usize) -> bool {
        let mut is_left = false;
        for base in self.pages.table().busy(0, USER_END) {
            let (pages, blocked) = self.pages.bring_all(inbound, base);
            *brought += pages;
            is_left |= blocked;
        }
        is_left
    }

    /// After a halt that is for good: has all workers and handlers make their last system call, a wait that does not
    /// end. The filter that comes next may kill for any other, in whichever thread.
    pub fn park(&self) {
        self.halt.state.store(PARKED, Ordering::SeqCst);
        futex::wake(&self.halt.state, i32::MAX);
        self.reclaim.wake_all();
        self.handlers.call_all();
        self.swap.wake_all();
        let give_up = sys::now_ns() + PARK_NS;
        let threads = self.reclaim.workers() + self.handlers.count() + self.swap.threads();
        while self.halt.parked.load(Ordering::SeqCst) < threads && sys::now_ns() < give_up {
            thread::sleep_ns(50_000);
        }
        // From the count to the wait it is a few instructions, and behind it there is no other call.
        loop {
            match self.pages.own_threads_are_blocked() {
                Some(false) if sys::now_ns() < give_up => thread::sleep_ns(50_000),
                Some(_) => break,
                // Nothing tells.
                None => break thread::sleep_ns(1_000_000),
            }
        }
    }

    /// Whether a halt is on.
    pub fn is_halted(&self) -> bool {
        self.halt.is_on()
    }

    /// Goes on after a halt.
    pub fn go_on(&self) {
        self.pages.watch_changes(true);
        self.halt.over();
        self.refresh_mappings();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::pages::BLOCK_BYTES;
    use crate::trial::{blocks, pager_of};

    /// The story: mlockall() just after mremap() had moved a mapping. It was registered still where it was now, nobody served faults any
    /// more, and who touched a page of it for the first time waited for ever.
    #[test]
    fn nothing_stays_registered_wherever_it_has_been_moved() {
        let base = blocks(16);
        let Some(pager) = pager_of(Some(base..base + 16 * BLOCK_BYTES), false) else { return };
        pager.register(base..base + 4 * BLOCK_BYTES);
        let (to, is_over) = (base + 8 * BLOCK_BYTES, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (at, to, len) = (base as *mut libc::c_void, to as *mut libc::c_void, 4 * BLOCK_BYTES);
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                // SAFETY: this test's mapping.
                assert_eq!(unsafe { libc::mremap(at, len, len, flags, to) }, to);
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                pager.pages.read_message();
            }
        });
        assert_eq!(pager.pages.guard().is_registered(to), Some(true));
        pager.halt();
        assert_eq!(pager.pages.guard().is_registered(to), Some(false));
    }
}
