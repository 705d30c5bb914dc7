//! Serving faults.

use std::sync::atomic::Ordering;

use sys::userfaultfd::{Message, Stop, MESSAGES_MAX};
use sys::PAGE_SIZE;
use zswap::Keep;

use crate::accounts::Count;
use crate::events::Epoch;
use crate::listeners::Luck;
use crate::pager::{drop_slot_if_unused, Pager, GROUP};
use crate::refs::PageRefs;
use crate::remap::Way;
use crate::staging::Purse;
use crate::streams::Stream;
use crate::table::{span, Block, PageState, BLOCK_BYTES, BLOCK_PAGES, NO_SLOT, RECENT};

/// Faults read and not yet served by one handler.
const PENDING_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) address: usize,
    pub(crate) write: bool,
    pub(crate) thread: u32,
    pub(crate) read_ns: u64,
}

/// What one handler thread carries along.
pub(crate) struct Handler {
    index: usize,
    pub(crate) purse: Purse,
    pending: [Option<Fault>; PENDING_MAX],
    waiting: usize,
    /// Pages brought in by the last fault, for which room has not been made yet.
    owed: usize,
    /// A page to decompress into, and how many were copied from there since frames were given back.
    page: usize,
    copied: usize,
    messages: [Message; MESSAGES_MAX],
}

/// How an attempt at a page ended.
pub(crate) enum Attempt {
    /// That many pages from the faulting one on are in place.
    Done(usize),
    /// An event is pending: apply it and look again.
    Again,
    /// No page to fill: reclaim and look again.
    NoPages,
}

impl Pager {
    /// Serves faults until the process ends. `index` numbers the handler; pin its thread to one CPU.
    pub fn handle_faults(&self, index: usize) -> ! {
        let Ok(page) = sys::house::take(PAGE_SIZE, PAGE_SIZE) else {
            self.fatal(format_args!("no memory for a handler: the house is full"));
        };
        let mut handler = Handler::new(index, page.as_ptr() as usize);
        let mut luck = Luck::new();
        self.listeners.join();
        loop {
            // Not read before the wait says so: of one thread's faults there is never a second one already.
            let came = self.listeners.wait(&mut luck, |ms| match ms {
                -1 => self.halt.while_waiting(|| self.uffd.wait(ms)),
                _ => self.uffd.wait(ms),
            });
            if !came {
                self.halt.stand_if_parked();
                continue;
            }
            self.halt.handler_enters();
            if self.read_messages(&mut handler) == 0 {
                luck.lost();
            }
            while let Some(fault) = handler.take() {
                self.listeners.won(&mut luck, fault.thread, fault.read_ns);
                self.serve(&mut handler, fault);
                luck.served();
            }
            self.purse_slots[index].store(handler.purse.slot().unwrap_or(NO_SLOT), Ordering::Relaxed);
            self.halt.handler_leaves();
        }
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

    pub(crate) fn serve(&self, handler: &mut Handler, fault: Fault) {
        self.busy_since[handler.index].store(fault.read_ns, Ordering::Relaxed);
        // Before the program goes on, not after: a thread that is awake and waits for this CPU looks to the kernel like
        // one to be moved to an idle CPU, where its next faults would be served from afar.
        self.balance(handler.owed);
        let page = fault.address / PAGE_SIZE;
        let stream = self.streams.find(fault.thread, page as u64);
        let whole_run = self.bring_run(fault, stream.window());
        let done = whole_run.unwrap_or_else(|| self.bring_page(handler, fault, stream));
        let read_ahead = if whole_run.is_some() { 0 } else { self.ahead(handler, page + done, stream, done) };
        self.streams.ended(stream, (page + done + read_ahead) as u64);
        let ns = sys::now_ns() - fault.read_ns;
        self.accounts.fault(ns);
        self.accounts.add(Count::Faults, 1);
        self.accounts.add(Count::FaultNs, ns);
        self.busy_since[handler.index].store(0, Ordering::Relaxed);
        handler.owed = done + read_ahead;
    }

    /// Brings in the page of a fault, and those of its block that the stream's window holds, whatever is in the way.
    fn bring_page(&self, handler: &mut Handler, fault: Fault, stream: Stream) -> usize {
        let mut tries = 0u32;
        loop {
            match self.try_page(handler, fault, stream.window()) {
                Attempt::Done(pages) => return pages,
                Attempt::Again => {
                    self.listeners.call_any();
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
                    self.listeners.call_any();
                    if !self.reclaim_step() {
                        sys::thread::sleep_ns(100_000);
                    }
                }
            }
        }
    }

    /// Brings in what is left of a stream's window behind the block of the fault; answers how many pages.
    fn ahead(&self, handler: &mut Handler, start: usize, stream: Stream, done: usize) -> usize {
        let mut at = start;
        let mut left = stream.window().saturating_sub(done);
        // Only what was stored is worth bringing in early; first touches beyond the block may never come, unless so many
        // came already that the whole run was brought.
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
        at - start
    }

    /// One look at the faulting page under its block's lock.
    pub(crate) fn try_page(&self, handler: &mut Handler, fault: Fault, window: usize) -> Attempt {
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
        if self.way == Way::Remap {
            return match self.place_copies(at, self.zeroes(), count) {
                Placed::Copied(copied) => {
                    self.accounts.add(Count::ZeroFilled, copied as u64);
                    Attempt::Done(copied)
                }
                Placed::Again => Attempt::Again,
                Placed::NoMemory => Attempt::NoPages,
                Placed::Moved(_) | Placed::Lost => Attempt::Done(1),
            };
        }
        match self.move_zeroes(handler, at, count) {
            (0, None | Some(Stop::NoMemory)) => Attempt::NoPages,
            (0, Some(Stop::Again)) => Attempt::Again,
            // Not writable any more, or locked: such pages cannot be moved in, only made.
            (0, Some(Stop::Invalid)) => match self.uffd.zero(at, PAGE_SIZE).stop {
                Some(Stop::Again) => Attempt::Again,
                _ => self.woken(at),
            },
            (0, Some(_)) => self.woken(at),
            (done, _) => Attempt::Done(done),
        }
    }

    /// Moves up to `count` pages of zeroes in; answers how many, and what the kernel said when it was not all. Nothing
    /// said means that staging had no pages left. The caller holds the block's lock and the right to move.
    fn move_zeroes(&self, handler: &mut Handler, at: usize, count: usize) -> (usize, Option<Stop>) {
        let mut done = 0;
        while done < count {
            let Some(pages) = handler.purse.pages(&self.staging, count - done) else { break };
            let source = self.staging.address(pages.slot, pages.first);
            let len = pages.count * PAGE_SIZE;
            // SAFETY: the purse's pages belong to this handler.
            unsafe { std::ptr::write_bytes(source as *mut u8, 0, len) };
            // SAFETY: the source is this handler's, the destination is missing (a present page refuses).
            let progress = unsafe { self.uffd.move_pages(at + done * PAGE_SIZE, source, len, true) };
            let moved = progress.done / PAGE_SIZE;
            handler.purse.spend(&self.staging, pages, moved);
            self.accounts.add(Count::ZeroFilled, moved as u64);
            done += moved;
            if progress.stop.is_some() {
                return (done, progress.stop);
            }
        }
        (done, None)
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
            // The bytes are in place; the slot's page is left over as a ready page, or was copied for want of a move.
            Placed::Copied(copied) => {
                if self.way == Way::Remap {
                    self.staging.discard_pages(slot, span(first, copied));
                }
                copied
            }
            Placed::Lost => 1,
            Placed::Again => return Attempt::Again,
            Placed::NoMemory => return Attempt::NoPages,
        };
        block.change(span(first, moved), PageState::Staged, PageState::Kernel);
        drop_slot_if_unused(block);
        self.accounts.add(Count::Refaults, moved as u64);
        Attempt::Done(moved)
    }

    /// Brings in one page by a copy. For one page that is quicker than a move, which takes locks on both sides and
    /// interrupts other CPUs for the source's sake; and the page it is decompressed into is warm.
    fn load_single(
        &self,
        handler: &mut Handler,
        block: &Block,
        at: usize,
        mask: u32,
        epoch: Epoch,
    ) -> Attempt {
        let key = (at / PAGE_SIZE) as u64;
        self.decompress(key, handler.page, 1);
        let Some(_moving) = self.events.moving(epoch) else { return Attempt::Again };
        match self.place_copies(at, handler.page, 1) {
            Placed::Moved(_) | Placed::Copied(_) | Placed::Lost => {}
            Placed::Again => return Attempt::Again,
            Placed::NoMemory => return Attempt::NoPages,
        }
        block.change(mask, PageState::Stored, PageState::Kernel);
        self.store.invalidate(GROUP, key, 1);
        self.accounts.add(Count::PagesIn, 1);
        // The frame that was ready for it is not needed; frames are given back sixteen at a time.
        if self.way == Way::Move {
            handler.copied += 1;
        }
        if handler.copied >= BLOCK_PAGES {
            if let Some(slot) = self.staging.take_ready(BLOCK_PAGES) {
                handler.copied -= self.staging.discard(slot).min(handler.copied);
                self.staging.give(slot);
            }
        }
        Attempt::Done(1)
    }

    /// Decompresses the adjacent pages of `mask` and moves them in.
    fn load(&self, handler: &mut Handler, block: &Block, base: usize, mask: u32, epoch: Epoch) -> Attempt {
        let (first, count) = (mask.trailing_zeros() as usize, mask.count_ones() as usize);
        if count == 1 {
            return self.load_single(handler, block, base + first * PAGE_SIZE, mask, epoch);
        }
        let mut done = 0;
        while done < count {
            let Some(pages) = self.filling(&mut handler.purse, count - done) else {
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
                Placed::Copied(copied) => copied,
                Placed::Lost => 1,
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

    pub(crate) fn decompress(&self, key: u64, target: usize, count: usize) {
        // SAFETY: the target is a handler's page, or pages of its purse or of a rack it took: they are its own, lie side
        // by side and are given out here once.
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
            Placed::Copied(_) | Placed::Lost => Some(false),
            Placed::Again | Placed::NoMemory => None,
        }
    }

    /// Puts whole pages at `at`, by moving or, where mappings do not allow that, by copying the first.
    fn place(&self, at: usize, source: usize, count: usize) -> Placed {
        if self.way == Way::Remap {
            return self.place_copies(at, source, count);
        }
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
        // Copying works whatever the protection.
        self.place_copies(at, source, 1)
    }

    fn place_copies(&self, at: usize, source: usize, count: usize) -> Placed {
        let progress = self.copy_in(at, source, count);
        match progress.stop {
            _ if progress.done > 0 => Placed::Copied(progress.done / PAGE_SIZE),
            None | Some(Stop::Again) => Placed::Again,
            Some(Stop::NoMemory) => Placed::NoMemory,
            Some(Stop::Gone) => crate::pager::end_process(),
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
    Copied(usize),
    Lost,
    Again,
    NoMemory,
}

impl Handler {
    pub(crate) fn new(index: usize, page: usize) -> Self {
        let blank = Message::Remove { start: 0, end: 0 };
        Handler {
            index,
            purse: Purse::new(),
            pending: [None; PENDING_MAX],
            waiting: 0,
            owed: 0,
            page,
            copied: 0,
            messages: [blank; MESSAGES_MAX],
        }
    }

    fn take(&mut self) -> Option<Fault> {
        let fault = self.pending[0]?;
        self.waiting -= 1;
        self.pending.copy_within(1..self.waiting + 1, 0);
        self.pending[self.waiting] = None;
        Some(fault)
    }
}
