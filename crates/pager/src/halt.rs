//! Halting: everything is brought in and nothing is registered, so that the process is as if it had no pager.
//!
//! Needed before fork(), where a child would find evicted pages as zeroes and locks held by threads it does not have,
//! and for good before the program takes away what a pager needs (a seccomp filter for all threads, mlockall).

use std::sync::atomic::{AtomicU32, Ordering};

use sys::memory::USER_END;
use sys::userfaultfd::{Message, Stop, Userfaultfd};
use sys::{futex, thread, PAGE_SIZE};
use zswap::Keep;

use crate::accounts::Count;
use crate::pager::{drop_slot_if_unused, lock_settled, Pager, GROUP};
use crate::staging::Purse;
use crate::table::{span, Block, PageState, BLOCK_PAGES};

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

/// How long parking waits for threads to stand: those that wait for memory of the program's may take a while.
const PARK_NS: u64 = 100_000_000;

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

    /// Begins a worker's work, once workers may; [`Halt::worker_leaves`] ends it. Outside of it a worker holds nothing.
    pub(crate) fn worker_enters(&self) {
        self.enter(&self.workers, RUNNING);
    }

    pub(crate) fn worker_leaves(&self) {
        self.workers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Begins a handler's work, once handlers may; [`Halt::handler_leaves`] ends it. Outside of it a handler has
    /// nothing but its purse.
    pub(crate) fn handler_enters(&self) {
        self.enter(&self.handlers, CALMING);
    }

    pub(crate) fn handler_leaves(&self) {
        self.handlers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts the caller in unless the state is above `highest`; the state is looked at after counting, as it is raised
    /// before the count is looked at.
    fn enter(&self, inside: &AtomicU32, highest: u32) {
        loop {
            inside.fetch_add(1, Ordering::SeqCst);
            let state = self.state.load(Ordering::SeqCst);
            if state <= highest {
                return;
            }
            inside.fetch_sub(1, Ordering::SeqCst);
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
        while self.helping.load(Ordering::SeqCst) > 0 {
            thread::sleep_ns(20_000);
        }
        let mut purse = Purse::new();
        let mut brought = 0;
        loop {
            let before = brought;
            let mut busy = false;
            self.table.for_each_busy(0, USER_END, |base, block| {
                busy = true;
                brought += self.bring_in(&mut purse, base, block);
            });
            if !busy {
                break;
            }
            if brought == before {
                thread::sleep_ns(50_000);
            }
        }
        purse.empty_out(&self.staging);
        self.accounts.add(Count::BroughtIn, brought as u64);
        self.mappings.lock().expect("no panic while held").unregister_all(&self.uffd);
        while self.busy_since.iter().any(|since| since.load(Ordering::Acquire) != 0) || self.events.pending()
        {
            thread::sleep_ns(10_000);
        }
        // Nothing waits for compression any more; the pages go back to the system.
        while let Some(slot) = self.staging.oldest() {
            self.staging.give(slot);
        }
        while let Some(slot) = self.staging.take_ready(1) {
            self.staging.discard(slot);
            self.staging.give(slot);
        }
        self.measure();
    }

    /// After a halt that is for good: has all workers and handlers make their last system call, a wait that does not
    /// end. The filter that comes next may kill for any other, in whichever thread.
    pub fn park(&self) {
        self.halt.state.store(PARKED, Ordering::SeqCst);
        futex::wake(&self.halt.state, i32::MAX);
        self.pressure.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.pressure, i32::MAX);
        self.listeners.call_all();
        let give_up = sys::now_ns() + PARK_NS;
        let threads = self.workers.load(Ordering::SeqCst) + self.listeners.count();
        while self.halt.parked.load(Ordering::SeqCst) < threads && sys::now_ns() < give_up {
            thread::sleep_ns(50_000);
        }
        // From the count to the wait it is a few instructions.
        thread::sleep_ns(1_000_000);
    }

    /// Goes on after a halt.
    pub fn go_on(&self) {
        self.halt.over();
        self.refresh_mappings();
    }

    /// Brings a block's pages in; answers how many. What an event is in the way of is left for another round.
    fn bring_in(&self, purse: &mut Purse, base: usize, block: &Block) -> usize {
        lock_settled(block);
        let mut brought = 0;
        for index in 0..BLOCK_PAGES {
            let (at, state) = (base + index * PAGE_SIZE, block.state(index));
            let Some(epoch) = self.events.epoch() else { break };
            let slot = block.slot();
            let (source, pages) = match state {
                PageState::Kernel => continue,
                PageState::Staged => (self.staging.address(slot, index), None),
                PageState::Stored => {
                    let Some(pages) = purse.pages(&self.staging, 1) else { break };
                    let source = self.staging.address(pages.slot, pages.first);
                    // SAFETY: the purse's page belongs to this thread.
                    let page = unsafe { &mut *(source as *mut [u8; PAGE_SIZE]) };
                    let key = (at / PAGE_SIZE) as u64;
                    if let Err(error) = self.store.load(GROUP, key, &mut [page], Keep::Shared) {
                        self.fatal(format_args!("page {at:#x} is lost: {error}"));
                    }
                    (source, Some(pages))
                }
            };
            let Some(_moving) = self.events.moving(epoch) else { break };
            let Some(moved) = self.place_single(at, source) else { break };
            match pages {
                None => {
                    if moved {
                        self.staging.left(slot, span(index, 1));
                    }
                }
                Some(pages) => {
                    if moved {
                        purse.spend(&self.staging, pages, 1);
                    }
                    self.store.invalidate(GROUP, (at / PAGE_SIZE) as u64, 1);
                }
            }
            block.change(span(index, 1), state, PageState::Kernel);
            brought += 1;
        }
        drop_slot_if_unused(block);
        block.unlock();
        brought
    }

    /// A fork went past the library's fork handlers: the child's memory lacks what is evicted here. Give it all of
    /// that, and poison what came in since the fork and might be missing there: a child of this kind gets its bytes or
    /// SIGBUS, never zeroes.
    pub(crate) fn foster(&self, descriptor: i32) {
        let child = Userfaultfd::from_descriptor(descriptor);
        self.give_all(&child);
        for entry in &self.arrivals {
            let run = entry.load(Ordering::Relaxed);
            let (at, pages) = (run & !(PAGE_SIZE - 1), run % PAGE_SIZE);
            // One by one: a page that is there ends a call.
            for page in 0..pages {
                child.poison(at + page * PAGE_SIZE, PAGE_SIZE);
            }
        }
        self.accounts.add(Count::Forks, 1);
        child.close();
    }

    /// Copies everything that is out into a forked child.
    pub(crate) fn give_all(&self, child: &Userfaultfd) {
        let mut page = [0u8; PAGE_SIZE];
        self.table.for_each_busy(0, USER_END, |base, block| {
            lock_settled(block);
            for index in 0..BLOCK_PAGES {
                let at = base + index * PAGE_SIZE;
                match block.state(index) {
                    PageState::Kernel => continue,
                    PageState::Staged => {
                        // SAFETY: staged pages stay until the block's lock is released.
                        page =
                            unsafe { *(self.staging.address(block.slot(), index) as *const [u8; PAGE_SIZE]) };
                    }
                    PageState::Stored => {
                        let key = (at / PAGE_SIZE) as u64;
                        if let Err(error) = self.store.load(GROUP, key, &mut [&mut page], Keep::Shared) {
                            self.fatal(format_args!("page {at:#x} is lost: {error}"));
                        }
                    }
                }
                for _ in 0..1000 {
                    // SAFETY: fills a missing page of the child with its own content.
                    match unsafe { child.copy(at, page.as_ptr() as usize, PAGE_SIZE) }.stop {
                        Some(Stop::Again | Stop::NoMemory) => thread::sleep_ns(20_000),
                        _ => break,
                    }
                }
            }
            block.unlock();
        });
    }

    /// Remembers pages that came in a moment ago, for [`Pager::foster`].
    pub(crate) fn note_arrival(&self, at: usize, pages: usize) {
        debug_assert!(pages < PAGE_SIZE);
        let turn = self.arrival_turn.fetch_add(1, Ordering::Relaxed) as usize % self.arrivals.len();
        self.arrivals[turn].store(at | pages, Ordering::Relaxed);
    }

    /// Applies an event that is no fault.
    pub(crate) fn apply(&self, event: Message) {
        match event {
            Message::Remove { start, end } => {
                self.forget_range(start, end);
                self.quarantine(start, end);
            }
            Message::Unmap { start, end } => {
                self.forget_range(start, end);
                self.mappings.lock().expect("no panic while held").forget(start, end);
            }
            Message::Remap { from, to, len } => self.move_range(from, to, len),
            Message::Fork { descriptor } => self.foster(descriptor),
            Message::Fault { .. } => unreachable!("faults are not queued"),
        }
    }
}
