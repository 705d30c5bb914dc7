//! Serving faults.

use std::sync::atomic::{AtomicU32, Ordering};

use sys::userfaultfd::{Message, Stop, MESSAGES_MAX};
use sys::{futex, PAGE_SIZE};
use zswap::Keep;

use crate::accounts::Count;
use crate::events::Epoch;
use crate::pager::{drop_slot_if_unused, Pager, GROUP};
use crate::refs::PageRefs;
use crate::staging::Purse;
use crate::streams::Stream;
use crate::table::{span, Block, PageState, BLOCK_BYTES, BLOCK_PAGES, RECENT};

/// Faults read and not yet served by one handler.
const PENDING_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Fault {
    address: usize,
    write: bool,
    thread: u32,
    read_ns: u64,
}

/// Handlers that listen, and those that rest.
///
/// The kernel wakes every waiting handler at every fault, and one on another CPU does more than lose: its CPU has the
/// program's address space loaded from then on, so that every page that moves interrupts it (in a virtual machine, p50
/// of a random touch was 22 us with a second listener and 12 us without, November 2026). So who wins nothing for
/// [`TRIAL_MS`] rests for a while, and is called when faults queue up. One always listens.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    listening: AtomicU32,
    resting: AtomicU32,
    calls: AtomicU32,
    /// Processor whose handler was called last, or [`ANY`].
    called: AtomicU32,
    /// Faults that handlers began to serve.
    served: AtomicU32,
}

/// How long a handler listens beside others before it sees whether that was of use.
const TRIAL_MS: i32 = 1;
/// How long a handler rests, at first and after several rests in a row. The program's thread may move to its CPU
/// meanwhile, where its faults take longer until it is back.
const REST_NS: std::ops::Range<u64> = 20_000_000..320_000_000;
/// Rest while there are no faults at all.
const IDLE_NS: u64 = 2_000_000_000;
/// Any handler.
const ANY: u32 = u32::MAX;
/// One in so many faults is looked at for the processor it came from.
const LOOK_EVERY: u32 = 16;
/// Faults that one handler finds waiting for it, one after another, before it calls for help.
const BACKLOG: u32 = 4;

impl Listeners {
    fn wait_ms(&self) -> i32 {
        if self.listening.load(Ordering::Acquire) > 1 {
            TRIAL_MS
        } else {
            -1
        }
    }

    /// Rests if others listen; false when this is the last one.
    fn rest(&self, ns: u64) -> bool {
        let mut seen = self.calls.load(Ordering::Acquire);
        let others = |listening: u32| (listening > 1).then(|| listening - 1);
        if self.listening.fetch_update(Ordering::AcqRel, Ordering::Acquire, others).is_err() {
            return false;
        }
        self.resting.fetch_add(1, Ordering::AcqRel);
        let mut ns = ns;
        loop {
            let served = self.served.load(Ordering::Relaxed);
            futex::wait(&self.calls, seen, Some(ns));
            let calls = self.calls.load(Ordering::Acquire);
            if calls != seen {
                let called = self.called.load(Ordering::Relaxed);
                if called == ANY || called as usize == sys::cpu::current() {
                    break;
                }
                seen = calls;
            } else if self.served.load(Ordering::Relaxed) != served {
                break;
            } else {
                ns = IDLE_NS;
            }
        }
        self.resting.fetch_sub(1, Ordering::AcqRel);
        self.listening.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Calls one of those that rest, or the one of processor `called`.
    fn call(&self, called: u32) {
        if self.resting.load(Ordering::Acquire) > 0 {
            self.called.store(called, Ordering::Relaxed);
            self.calls.fetch_add(1, Ordering::AcqRel);
            futex::wake(&self.calls, if called == ANY { 1 } else { i32::MAX });
        }
    }

    /// Calls the handler beside `thread` if that is elsewhere: it will win the next faults, and the caller will rest.
    fn find(&self, thread: u32) {
        if self.resting.load(Ordering::Acquire) > 0 {
            match sys::procfs::processor_of(thread) {
                Some(processor) if processor != sys::cpu::current() => self.call(processor as u32),
                _ => {}
            }
        }
    }
}

/// What one handler thread carries along.
pub(crate) struct Handler {
    index: usize,
    purse: Purse,
    pending: [Option<Fault>; PENDING_MAX],
    waiting: usize,
    messages: [Message; MESSAGES_MAX],
}

/// How an attempt at a page ended.
enum Attempt {
    /// That many pages from the faulting one on are in place.
    Done(usize),
    /// An event is pending: apply it and look again.
    Again,
    /// No page to fill: reclaim and look again.
    NoPages,
}

impl Pager {
    /// Serves faults until the pager stops. `index` numbers the handler; pin its thread to one CPU.
    pub fn handle_faults(&self, index: usize) {
        let blank = Message::Remove { start: 0, end: 0 };
        let mut handler = Handler {
            index,
            purse: Purse::new(),
            pending: [None; PENDING_MAX],
            waiting: 0,
            messages: [blank; MESSAGES_MAX],
        };
        self.listeners.listening.fetch_add(1, Ordering::AcqRel);
        let (mut wins, mut rest_ns, mut in_a_row) = (0u32, REST_NS.start, 0u32);
        while !self.stopping.load(Ordering::Acquire) {
            if handler.waiting == 0 && self.read_messages(&mut handler) == 0 {
                in_a_row = 0;
                if self.uffd.wait(self.listeners.wait_ms()) {
                    continue;
                }
                if wins == 0 && self.listeners.rest(rest_ns) {
                    rest_ns = (rest_ns * 2).min(REST_NS.end);
                }
                wins = 0;
                continue;
            }
            while let Some(fault) = handler.take() {
                (wins, rest_ns, in_a_row) = (wins + 1, REST_NS.start, in_a_row + 1);
                let served = self.listeners.served.fetch_add(1, Ordering::Relaxed);
                if in_a_row == BACKLOG {
                    self.listeners.call(ANY);
                    in_a_row = 0;
                }
                if served.is_multiple_of(LOOK_EVERY) {
                    self.listeners.find(fault.thread);
                }
                self.serve(&mut handler, fault);
            }
        }
        self.listeners.listening.fetch_sub(1, Ordering::AcqRel);
        handler.purse.empty_out(&self.staging);
    }

    /// Reads a message if there is one, and applies events. Answers the number read.
    fn read_messages(&self, handler: &mut Handler) -> usize {
        // One at a time: a second fault is better served by another handler than by queueing here.
        let room = self.events.room().min(PENDING_MAX - handler.waiting).min(1);
        let mut count = 0;
        if room > 0 {
            let _reading = self.events.reading();
            count = self.uffd.read(&mut handler.messages, room);
            for message in handler.messages[..count].iter().copied() {
                match message {
                    Message::Fault { address, write, thread, .. } => {
                        let fault = Fault { address, write, thread, read_ns: sys::now_ns() };
                        handler.pending[handler.waiting] = Some(fault);
                        handler.waiting += 1;
                    }
                    event => self.events.push(event),
                }
            }
        }
        self.apply_events();
        count
    }

    fn serve(&self, handler: &mut Handler, fault: Fault) {
        self.busy_since[handler.index].store(fault.read_ns, Ordering::Relaxed);
        let page = fault.address / PAGE_SIZE;
        let stream = self.streams.find(fault.thread, page as u64);
        let mut tries = 0u32;
        let done = loop {
            match self.try_page(handler, fault, stream.window()) {
                Attempt::Done(pages) => break pages,
                Attempt::Again => {
                    // The thread behind the event must run before the kernel lets pages move again.
                    if self.read_messages(handler) == 0 {
                        tries += 1;
                        if tries > 3 {
                            sys::thread::sleep_ns(u64::from(tries.min(50)) * 10_000);
                        } else {
                            sys::thread::yield_now();
                        }
                    }
                }
                Attempt::NoPages => {
                    if !self.reclaim_step() {
                        sys::thread::sleep_ns(100_000);
                    }
                }
            }
        };
        let read_ahead = self.ahead(handler, page + done, stream, done);
        let ns = sys::now_ns() - fault.read_ns;
        self.accounts.fault(ns);
        self.accounts.add(Count::Faults, 1);
        self.accounts.add(Count::FaultNs, ns);
        self.busy_since[handler.index].store(0, Ordering::Relaxed);
        self.balance(done + read_ahead);
    }

    /// Brings in what is left of a stream's window behind the block of the fault; answers how many pages.
    fn ahead(&self, handler: &mut Handler, start: usize, stream: Stream, done: usize) -> usize {
        let mut at = start;
        let mut left = stream.window().saturating_sub(done);
        // Only what was stored is worth bringing in early; first touches beyond the block may never come.
        while left > 0 && at.is_multiple_of(BLOCK_PAGES) {
            let Some(block) = self.table.find(at * PAGE_SIZE) else { break };
            if !block.try_lock() {
                break;
            }
            let wanted = block.mask(PageState::Stored) & span(0, left.min(BLOCK_PAGES));
            let run = wanted.trailing_ones() as usize;
            let brought = match self.events.epoch() {
                Some(epoch) if run > 0 => {
                    match self.load(handler, block, at * PAGE_SIZE, span(0, run), epoch) {
                        Attempt::Done(_) => run,
                        _ => 0,
                    }
                }
                _ => 0,
            };
            if brought > 0 {
                block.set(RECENT);
            }
            block.unlock();
            at += brought;
            left -= brought.min(left);
            if brought < BLOCK_PAGES {
                break;
            }
        }
        self.streams.ended(stream, at as u64);
        at - start
    }

    /// One look at the faulting page under its block's lock.
    fn try_page(&self, handler: &mut Handler, fault: Fault, window: usize) -> Attempt {
        let base = fault.address & !(BLOCK_BYTES - 1);
        let index = fault.address % BLOCK_BYTES / PAGE_SIZE;
        let Ok(block) = self.table.block(base) else {
            self.fatal(format_args!("no memory for the page table: the house is full"));
        };
        block.lock();
        let attempt = match self.events.epoch() {
            None => Attempt::Again,
            Some(epoch) => {
                let state = block.state(index);
                let reach = span(index, window.min(BLOCK_PAGES - index));
                let run = (block.mask(state) & reach) >> index;
                let count = run.trailing_ones() as usize;
                let mask = span(index, count);
                match state {
                    PageState::Kernel => self.first_touch(handler, fault, count, epoch),
                    PageState::Staged => self.unstage(block, base, mask, epoch),
                    PageState::Stored => self.load(handler, block, base, mask, epoch),
                }
            }
        };
        if matches!(attempt, Attempt::Done(_)) {
            block.set(RECENT);
        }
        block.unlock();
        attempt
    }

    /// Gives zeroes: real pages for a write, the shared zero page for a read.
    fn first_touch(&self, handler: &mut Handler, fault: Fault, count: usize, epoch: Epoch) -> Attempt {
        let at = fault.address & !(PAGE_SIZE - 1);
        let Some(_moving) = self.events.moving(epoch) else { return Attempt::Again };
        if !fault.write {
            let progress = self.uffd.zero(at, PAGE_SIZE);
            return match progress.stop {
                Some(Stop::Again) => Attempt::Again,
                Some(Stop::NoMemory) => Attempt::NoPages,
                // Present already, or gone: either way the thread looks again by itself.
                Some(_) => self.woken(at),
                None => Attempt::Done(1),
            };
        }
        let mut done = 0;
        while done < count {
            let Some(pages) = handler.purse.pages(&self.staging, count - done) else {
                return if done > 0 { Attempt::Done(done) } else { Attempt::NoPages };
            };
            let source = self.staging.address(pages.slot, pages.first);
            // SAFETY: the purse's pages belong to this handler.
            unsafe { std::ptr::write_bytes(source as *mut u8, 0, pages.count * PAGE_SIZE) };
            // SAFETY: the source is this handler's, the destination is missing (a present page refuses).
            let progress =
                unsafe { self.uffd.move_pages(at + done * PAGE_SIZE, source, pages.count * PAGE_SIZE, true) };
            let moved = progress.done / PAGE_SIZE;
            handler.purse.spend(&self.staging, pages, moved);
            self.accounts.add(Count::ZeroFilled, moved as u64);
            done += moved;
            match progress.stop {
                None => {}
                _ if done > 0 => return Attempt::Done(done),
                Some(Stop::Again) => return Attempt::Again,
                Some(Stop::NoMemory) => return Attempt::NoPages,
                Some(Stop::Invalid) => {
                    // Not writable any more, or locked: such pages cannot be moved in, only made.
                    return match self.uffd.zero(at, PAGE_SIZE).stop {
                        Some(Stop::Again) => Attempt::Again,
                        _ => self.woken(at),
                    };
                }
                Some(_) => return self.woken(at),
            }
        }
        Attempt::Done(done)
    }

    fn woken(&self, at: usize) -> Attempt {
        self.uffd.wake(at, PAGE_SIZE);
        Attempt::Done(1)
    }

    /// The second chance: staged pages go straight back.
    fn unstage(&self, block: &Block, base: usize, mask: u32, epoch: Epoch) -> Attempt {
        let Some(_moving) = self.events.moving(epoch) else { return Attempt::Again };
        let (first, count) = (mask.trailing_zeros() as usize, mask.count_ones() as usize);
        let slot = block.slot();
        let moved = match self.place(base + first * PAGE_SIZE, self.staging.address(slot, first), count) {
            Placed::Moved(moved) => {
                self.staging.left(slot, span(first, moved));
                moved
            }
            // The bytes are in place; the slot's page is left over as a ready page.
            Placed::Copied => 1,
            Placed::Lost => 1,
            Placed::Again => return Attempt::Again,
            Placed::NoMemory => return Attempt::NoPages,
        };
        block.change(span(first, moved), PageState::Staged, PageState::Kernel);
        drop_slot_if_unused(block);
        self.accounts.add(Count::Refaults, moved as u64);
        Attempt::Done(moved)
    }

    /// Decompresses the adjacent pages of `mask` and moves them in.
    fn load(&self, handler: &mut Handler, block: &Block, base: usize, mask: u32, epoch: Epoch) -> Attempt {
        let (first, count) = (mask.trailing_zeros() as usize, mask.count_ones() as usize);
        let mut done = 0;
        while done < count {
            let Some(pages) = handler.purse.pages(&self.staging, count - done) else {
                return if done > 0 { Attempt::Done(done) } else { Attempt::NoPages };
            };
            let at = base + (first + done) * PAGE_SIZE;
            let key = (at / PAGE_SIZE) as u64;
            let source = self.staging.address(pages.slot, pages.first);
            self.decompress(key, source, pages.count);
            let Some(_moving) = self.events.moving(epoch) else {
                return if done > 0 { Attempt::Done(done) } else { Attempt::Again };
            };
            let placed = match self.place(at, source, pages.count) {
                Placed::Moved(moved) => {
                    handler.purse.spend(&self.staging, pages, moved);
                    moved
                }
                Placed::Copied | Placed::Lost => 1,
                _ if done > 0 => return Attempt::Done(done),
                Placed::Again => return Attempt::Again,
                Placed::NoMemory => return Attempt::NoPages,
            };
            block.change(span(first + done, placed), PageState::Stored, PageState::Kernel);
            self.store.invalidate(GROUP, key, placed as u64);
            self.accounts.add(Count::PagesIn, placed as u64);
            done += placed;
            if placed < pages.count {
                break;
            }
        }
        Attempt::Done(done)
    }

    fn decompress(&self, key: u64, target: usize, count: usize) {
        // SAFETY: the purse's pages belong to this handler, lie side by side and are given out here once.
        let whole = unsafe { std::slice::from_raw_parts_mut(target as *mut [u8; PAGE_SIZE], count) };
        let mut refs = PageRefs::new();
        whole.iter_mut().for_each(|page| refs.push(page));
        if let Err(error) = self.store.load(GROUP, key, refs.as_mut_slice(), Keep::Shared) {
            self.fatal(format_args!("page {:#x} is lost: {error}", key * PAGE_SIZE as u64));
        }
    }

    /// Puts one page at `at`; whether its frame was moved away (else copied or not needed). `None`: not now.
    pub(crate) fn place_single(&self, at: usize, source: usize) -> Option<bool> {
        match self.place(at, source, 1) {
            Placed::Moved(_) => Some(true),
            Placed::Copied | Placed::Lost => Some(false),
            Placed::Again | Placed::NoMemory => None,
        }
    }

    /// Puts whole pages at `at`, by moving or, where mappings do not allow that, by copying the first.
    fn place(&self, at: usize, source: usize, count: usize) -> Placed {
        // SAFETY: the source holds exactly the bytes that belong at `at`; present pages refuse.
        let progress = unsafe { self.uffd.move_pages(at, source, count * PAGE_SIZE, true) };
        if progress.done > 0 || progress.stop.is_none() {
            self.note_arrival(at, progress.done / PAGE_SIZE);
            return Placed::Moved(progress.done / PAGE_SIZE);
        }
        match progress.stop.expect("nothing was done") {
            Stop::Again => Placed::Again,
            Stop::NoMemory => Placed::NoMemory,
            Stop::Gone => crate::pager::end_process(),
            Stop::Invalid | Stop::Busy => self.place_one(at, source, count),
            // Present: the mapping was replaced and what is there now is the program's newer truth. Gone: nobody can
            // see the page any more.
            Stop::Exists => match self.arrived_after_all(at, source, count).trailing_ones() as usize {
                0 => {
                    self.uffd.wake(at, PAGE_SIZE);
                    Placed::Lost
                }
                arrived => {
                    self.uffd.wake(at, arrived * PAGE_SIZE);
                    self.note_arrival(at, arrived);
                    Placed::Moved(arrived)
                }
            },
            Stop::Hole => {
                self.uffd.wake(at, PAGE_SIZE);
                Placed::Lost
            }
        }
    }

    fn place_one(&self, at: usize, source: usize, count: usize) -> Placed {
        if count > 1 {
            // The run may only have crossed a border between mappings.
            // SAFETY: as in `place`.
            let progress = unsafe { self.uffd.move_pages(at, source, PAGE_SIZE, true) };
            if progress.done == PAGE_SIZE {
                self.note_arrival(at, 1);
                return Placed::Moved(1);
            }
        }
        // SAFETY: as in `place`; copying works whatever the protection.
        let progress = unsafe { self.uffd.copy(at, source, PAGE_SIZE) };
        match progress.stop {
            None => {
                self.note_arrival(at, 1);
                Placed::Copied
            }
            Some(Stop::Again) => Placed::Again,
            Some(Stop::NoMemory) => Placed::NoMemory,
            Some(_) => {
                self.uffd.wake(at, PAGE_SIZE);
                Placed::Lost
            }
        }
    }
}

/// How [`Pager::place`] ended.
enum Placed {
    Moved(usize),
    Copied,
    Lost,
    Again,
    NoMemory,
}

impl Handler {
    fn take(&mut self) -> Option<Fault> {
        let fault = self.pending[0]?;
        self.waiting -= 1;
        self.pending.copy_within(1..self.waiting + 1, 0);
        self.pending[self.waiting] = None;
        Some(fault)
    }
}
