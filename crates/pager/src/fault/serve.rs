//! Serving faults, from the message to the page in place.
//!
//! ```text
//!  wait for a message            handlers.rs decides who
//!  read one message              an event is applied, a fault served
//!  make room for the last pages   reclaim/; no lock is held during it
//!  how far to look ahead         readahead.rs
//!  bring the pages in            fault_in of address_space; when an event is in the way, read on and try again
//!                                pages in the swap file are for the threads of disk.rs, which may wait
//!  count
//! ```
//!
//! The kernel returns faults before events, and no page moves while an event is unread. So a
//! handler that needs an event reads on past any number of faults, which are parked for the next
//! free handler. If the queue is full, a fault is sent back: its thread is woken and faults again.

use std::ops::Range;

use address_space::units::{PageMask, PageNumber, BLOCK_PAGES};
use address_space::{Counter, FaultedIn, Inbound, Read};
use sys::PAGE_SIZE;

use super::handlers::Record;
use super::queue::{Fault, PARKED_MAX};
use super::readahead::{Over, Stream, Uses};
use super::FaultService;

/// Runs of used or unused pages distinguished in a window. Pages behind them count as unused.
const READ_AHEAD_RUNS: usize = 16;
/// Attempts that only yield the CPU. Later ones sleep, longer each time.
const QUICK_TRIES: u32 = 3;
const TRY_NS_MAX: u64 = 500_000;
/// Attempts (some 20 ms) after which to check whether the waiting thread itself blocks the fault.
const MANY_TRIES: u32 = 64;

pub(crate) struct Handler {
    pub(super) index: usize,
    pub inbound: Inbound,
    /// Pages that the last fault brought in and reclaim has not yet made room for.
    pub(super) owed: usize,
}

impl Handler {
    pub fn new(index: usize, buffer: usize) -> Self {
        Handler { index, inbound: Inbound::new(buffer), owed: 0 }
    }
}

impl FaultService {
    /// Serves faults until the process or the pager ends. `index` is the handler's number. Pin its
    /// thread to one CPU.
    pub(crate) fn handle_faults(&self, index: usize) {
        let Ok(page) = sys::arena::take(PAGE_SIZE, PAGE_SIZE) else {
            self.process.pages.fatal(format_args!("no memory for a handler: the arena is full"));
        };
        let mut handler = Handler::new(index, page.as_ptr() as usize);
        handler.inbound.reads_disk = false;
        let mut record = Record::new();
        self.process.pages.own_threads.add();
        self.handlers.join();
        loop {
            // Do not try to read before waiting: a thread has at most one fault at a time.
            let came = !self.faults.parked.is_empty()
                || self.handlers.wait(&mut record, |ms| match ms {
                    -1 => self.process.quiesce.while_waiting(|| self.process.pages.reports().wait(ms)),
                    _ => self.process.pages.reports().wait(ms),
                });
            if !came {
                if self.process.quiesce.is_ending() {
                    return;
                }
                self.process.quiesce.stand_if_parked();
                continue;
            }
            if !self.process.quiesce.handler_enters() {
                return;
            }
            match self.process.pages.read_message() {
                Read::Fault { page, write, thread } => {
                    let fault = Fault { page, write, thread, read_ns: sys::now_ns() };
                    self.handlers.won(&mut record, thread, fault.read_ns);
                    self.serve(&mut handler, fault);
                    record.served();
                }
                Read::Event => {}
                Read::Nothing => record.lost(),
            }
            if let Some(fault) = self.faults.parked.pop() {
                self.serve(&mut handler, fault);
            }
            self.faults.set_cached(index, handler.inbound.frames.slot_number());
            self.process.quiesce.handler_leaves();
        }
    }

    pub(crate) fn make_room(&self, handler: &mut Handler) {
        self.reclaimer.direct_reclaim(std::mem::take(&mut handler.owed), &|| self.read_on());
    }

    /// Serves one fault. Hold no lock.
    pub(crate) fn serve(&self, handler: &mut Handler, fault: Fault) {
        self.faults.set_busy(handler.index, fault.read_ns);
        // Reclaim before the program continues, not after: the kernel would move a thread that
        // waits for this CPU to an idle one, where its next faults would be served from afar.
        self.reclaimer.direct_reclaim(handler.owed, &|| self.read_on());
        let page = fault.page;
        if self.process.config.records {
            self.process.accounts.reference(page);
        }
        let over = if self.process.pages.is_out(page) { Over::Out } else { Over::Untouched };
        let stream = self.streams.find(fault.thread, page, over, |pages| self.uses_of(pages));
        if stream.wasted > 0 {
            self.process.accounts.add(Counter::ReadAheadWasted, stream.wasted);
        }
        let (before, ahead) = self.window(page, over, stream);
        let (mut window, mut came) = self.fault_in_up_to(&mut handler.inbound, page, before);
        if !window.contains(&page) {
            let Some(done) = self.bring_page(&mut handler.inbound, fault, stream, ahead) else {
                // Another thread serves the fault from here on.
                self.faults.set_busy(handler.index, 0);
                self.reclaimer.evictions.note_arrivals(came);
                self.process.accounts.add(Counter::ReadAhead, came as u64);
                handler.owed = came;
                return;
            };
            window = page..page + done;
            window.end += self.fault_in_ahead(&mut handler.inbound, window.end, stream, done);
            came += window.end - window.start;
        }
        self.streams.ended(stream, window);
        self.reclaimer.evictions.note_arrivals(came);
        self.count_fault(fault);
        if over == Over::Out && came > 1 {
            self.process.accounts.add(Counter::ReadAhead, (came - 1) as u64);
        }
        self.faults.set_busy(handler.index, 0);
        handler.owed = came;
    }

    /// The numbers of pages that come with a fault: before its page, and from there on.
    fn window(&self, page: PageNumber, over: Over, stream: Stream) -> (usize, usize) {
        if stream.window() > 1 || over == Over::Untouched || self.process.config.records {
            return (stream.window() - stream.ahead(), stream.ahead());
        }
        let block = self.process.pages.table().find(page.block());
        let out = block.map_or(PageMask::NONE, |block| block.stored());
        match self.in_pool.comes_whole(page, out) {
            true => {
                let cluster = self.in_pool.of(page);
                (page - cluster.start, cluster.end - page)
            }
            false => (0, 1),
        }
    }

    /// Brings in up to `before` evicted pages that precede `page`, then `page` itself. Skips pages
    /// in the swap file, and stops at any other obstacle. Returns the last run of pages that came,
    /// and the number of all that came.
    fn fault_in_up_to(
        &self,
        inbound: &mut Inbound,
        page: PageNumber,
        before: usize,
    ) -> (Range<PageNumber>, usize) {
        let in_front = (1..=before).map_while(|count| page.before(count));
        let pages = in_front.take_while(|page| self.process.pages.is_out(*page)).count();
        let (mut run, mut came) = (page - pages..page - pages, 0);
        while pages > 0 && run.end <= page {
            let left = page + 1 - run.end;
            match self.process.pages.fault_in_for(inbound, page, run.end, false, left) {
                FaultedIn::Done(done) => {
                    run.end += done;
                    came += done;
                }
                FaultedIn::OnDisk => run = run.end + 1..run.end + 1,
                _ => break,
            }
        }
        (run, came)
    }

    /// The uses of the armed, present pages of a range. `None` if uses are not
    /// tracked. This is a system call, made after windows of more than one page, not at each fault.
    fn uses_of(&self, pages: Range<PageNumber>) -> Option<Uses> {
        let tracker = self.process.pages.tracker();
        if !tracker.sees_uses() {
            return None;
        }
        let mut runs = [sys::pagemap::Run::default(); READ_AHEAD_RUNS];
        let (count, _) = tracker.look(pages.start.address(), pages.end.address(), &mut runs);
        let mut uses = Uses::default();
        for run in &runs[..count] {
            // Pages present before the window came do not count.
            let pages = (run.start as usize..run.end as usize).step_by(PAGE_SIZE);
            let pages = pages.map(PageNumber::of);
            let came = pages.filter(|page| self.process.pages.was_armed(*page)).count() as u64;
            uses.seen += came;
            uses.used += if run.is_used() { came } else { 0 };
        }
        Some(uses)
    }

    pub(crate) fn count_fault(&self, fault: Fault) -> u64 {
        let ns = sys::now_ns() - fault.read_ns;
        self.process.accounts.fault(ns);
        self.process.accounts.add(Counter::Faults, 1);
        self.process.accounts.add(Counter::FaultNs, ns);
        ns
    }

    /// Brings in a fault's page and those of the stream's window. It ends when the page is in place
    /// or its mapping is gone: it reads every event in the way, and a thread that waits behind an
    /// event needs only CPU time. `None` if the fault was handed to the readers of the swap file.
    pub(crate) fn bring_page(
        &self,
        inbound: &mut Inbound,
        fault: Fault,
        stream: Stream,
        ahead: usize,
    ) -> Option<usize> {
        let mut tries = 0u32;
        loop {
            match self.process.pages.fault_in(inbound, fault.page, fault.write, ahead) {
                FaultedIn::Done(pages) => return Some(pages),
                FaultedIn::OnDisk if self.hand_to_disk(fault, stream) => return None,
                FaultedIn::OnDisk => {}
                FaultedIn::Again => self.read_on(),
                FaultedIn::NoMemory => {
                    self.read_on();
                    self.reclaimer.reclaim_step();
                }
            }
            tries += 1;
            // The control thread may be waiting for this one.
            if tries.is_multiple_of(QUICK_TRIES) {
                self.gate.dismiss_reports();
            }
            if tries.is_multiple_of(MANY_TRIES) {
                self.leave_growth_to_kernel(&fault);
            }
            match tries {
                0..=QUICK_TRIES => sys::thread::yield_now(),
                _ => sys::thread::sleep_ns((u64::from(tries) * 10_000).min(TRY_NS_MAX)),
            }
        }
    }

    /// Reads messages until none is left or one was an event. Parks faults, or sends them back.
    /// Serve parked faults before waiting: all handlers may wait for messages, and are not woken.
    pub(crate) fn read_on(&self) {
        for _ in 0..PARKED_MAX {
            match self.process.pages.read_message() {
                Read::Event => return,
                Read::Nothing => {
                    self.faults.look_at_parked(|fault| self.leave_growth_to_kernel(fault));
                    return;
                }
                Read::Fault { page, write, thread } => {
                    let fault = Fault { page, write, thread, read_ns: sys::now_ns() };
                    match self.faults.parked.push(fault) {
                        true => self.handlers.call_any(),
                        false => self.process.pages.reports().wake(page.address(), PAGE_SIZE),
                    }
                }
            }
        }
    }

    /// Lets the kernel fill the pages that an mremap() adds to a locked mapping, if the faulting
    /// thread waits for that.
    ///
    /// Linux moves such a mapping, fills its new pages, and then reports the move. Before the
    /// report is read it refuses every fill. Within mremap() a thread touches nothing else, and
    /// starts at the first new page. But a fault parked for a while may be over, and its thread in
    /// a later call.
    pub(super) fn leave_growth_to_kernel(&self, fault: &Fault) {
        let Some(growth) = sys::threads::growth(fault.thread as i32) else { return };
        let at = fault.page.address();
        if growth.target.is_none_or(|target| target + growth.old_len == at) {
            self.process.pages.leave_to_kernel(at..at + (growth.new_len - growth.old_len));
        }
    }

    /// Brings in the rest of a stream's window behind the fault's block. Returns the number of
    /// pages. Only stored pages are read ahead; first touches beyond the block may never come.
    fn fault_in_ahead(&self, inbound: &mut Inbound, start: PageNumber, stream: Stream, done: usize) -> usize {
        let mut at = start;
        let mut left = stream.ahead().saturating_sub(done);
        // A whole run was brought in, or the window ended with its block.
        if done > BLOCK_PAGES {
            return 0;
        }
        while left > 0 && at.index() == 0 && at < PageNumber::of(sys::memory::USER_END) {
            let brought = self.process.pages.fault_in_ahead(inbound, at.block(), left);
            at += brought;
            left -= brought.min(left);
            if brought < BLOCK_PAGES {
                break;
            }
        }
        at - start
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    use super::super::queue::Fault;
    use crate::testing::{blocks, evict, inbound, pager_with, range_of, read};
    use address_space::units::{PageMask, BLOCK_BYTES, BLOCK_PAGES};
    use address_space::{FaultedIn, Registration};

    /// Regression: the page of a parked fault had come in, and its thread was in mremap(). The
    /// pager left memory at the fault's address to the kernel, and out pages there read as zeroes.
    #[test]
    fn a_fault_that_is_over_does_not_leave_evicted_pages_to_the_kernel() {
        let Some((pager, base)) = pager_with(1) else { return };
        let growing = blocks(2);
        pager.register(range_of(growing, 2));
        evict(&pager.process.pages, base, PageMask::ALL.without_first());
        let (thread, is_over) = (AtomicI32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                thread.store(sys::threads::own(), Ordering::Release);
                // Part of a mapping, with no room to grow in place.
                let at = growing.address() as *mut libc::c_void;
                // SAFETY: this test's mapping.
                let to = unsafe { libc::mremap(at, BLOCK_BYTES, 2 * BLOCK_BYTES, libc::MREMAP_MAYMOVE) };
                is_over.store(true, Ordering::Release);
                assert!(to != libc::MAP_FAILED && to != at);
            });
            // The report is not read until this test reads it.
            while sys::threads::growth(thread.load(Ordering::Acquire)).is_none() {
                std::thread::yield_now();
            }
            for page in [0, 1, 2].map(|index| base.page(index)) {
                let thread = thread.load(Ordering::Acquire) as u32;
                pager.service.leave_growth_to_kernel(&Fault { page, write: true, thread, read_ns: 0 });
            }
            while !is_over.load(Ordering::Acquire) {
                pager.process.pages.read_message();
            }
        });
        while pager.process.pages.has_pending_events() {
            pager.process.pages.apply_events();
        }
        assert_eq!(pager.process.pages.guard().registration(base.address()), Registration::Registered);
        let mut inbound = inbound();
        let at = base.page(1);
        let brought = pager.process.pages.fault_in(&mut inbound, at, true, BLOCK_PAGES);
        assert_eq!(brought, FaultedIn::Done(BLOCK_PAGES - 1));
        assert!((0..BLOCK_PAGES).all(|page| read(base, page) == page + 1));
    }
}
