//! The order of events that the kernel reports out of order.
//!
//! munmap() and mremap() do their work under the kernel's lock and report it after they have let go of it. So when two
//! threads are at it, what one of them freed may be in use again by the other, and the report about the new use may come
//! first:
//!
//! ```text
//!   thread A  munmap(s) ------------------------- reports UNMAP s        read second
//!   thread B             mremap(x -> s) reports REMAP x s                read first
//! ```
//!
//! Applied as they are read, the second would discard what the first has brought to `s`. The kernel counts the calls that
//! are under way, and refuses to fill pages until it is zero: that is how one knows whether some older report is still to
//! come. So after a REMAP nothing is brought in or evicted until no call is under way, and what is reported meanwhile about
//! the target of such a REMAP is put aside. Then:
//!
//! * pages that were out at the target when the REMAP was read, or a target that is registered still: the report was about
//!   the older mapping, whose pages are dropped or follow it;
//! * else it was about the newer one.
//!
//! A thread cannot know, and so not free, what another thread's mremap() is about to return: so of several reports about one
//! target the first is the older mapping's. A program with one thread has no such cases, and they are not looked for.

use std::sync::atomic::{AtomicU32, Ordering};

use sys::userfaultfd::Message;
use sys::PAGE_SIZE;
use zswap::Keep;

use super::table::{within, BLOCK_PAGES};
use super::{Pages, GROUP, LIMBO};

/// Where a REMAP has moved pages to lately.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    start: usize,
    end: usize,
    /// A report about the older mapping has come.
    settled: bool,
}

/// A part of a reported range.
struct Part {
    start: usize,
    end: usize,
    /// It is about what was there before a REMAP.
    is_older: bool,
}

/// Reports whose order is not known yet.
#[derive(Default)]
pub(super) struct Contest {
    arrivals: Vec<Arrival>,
    aside: Vec<Message>,
}

impl Contest {
    fn overlaps(&self, start: usize, end: usize) -> bool {
        self.arrivals.iter().any(|arrival| arrival.start < end && start < arrival.end)
    }
}

/// Threads of this process that are the pager's own.
#[derive(Default)]
pub(super) struct OwnThreads(AtomicU32);

impl OwnThreads {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }

    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether the program has one thread.
    fn leave_one(&self) -> bool {
        sys::threads::count().is_some_and(|all| all <= self.count() + 1)
    }
}

impl Pages {
    /// Applies an event, or puts it aside.
    pub(super) fn apply(&self, event: Message) {
        let mut contest = self.contest.lock().expect("no panic while held");
        let touches = match event {
            Message::Unmap { start, end } => contest.overlaps(start, end),
            Message::Remap { from, to, len } => {
                contest.overlaps(from, from + len) || contest.overlaps(to, to + len)
            }
            Message::Remove { start, end } => !contest.aside.is_empty() && contest.overlaps(start, end),
            _ => false,
        };
        if touches || !contest.aside.is_empty() && !matches!(event, Message::Fork { .. }) {
            contest.aside.push(event);
            return;
        }
        match event {
            Message::Remove { start, end } => {
                self.discard(start, end);
                self.mark_discarding(start, end);
            }
            Message::Unmap { start, end } => {
                self.discard(start, end);
                self.note_changed(start, end);
            }
            Message::Remap { from, to, len } => {
                self.accounts.forgotten(from, from + len);
                if !self.own_threads.leave_one() {
                    self.displace(to, to + len);
                    contest.arrivals.push(Arrival { start: to, end: to + len, settled: false });
                    self.events.set_unsettled(true);
                }
                self.relocate(GROUP, from, to, len);
                self.note_move(from, to, len);
            }
            Message::Fork { descriptor } => self.foster(descriptor),
            Message::Fault { .. } => unreachable!("faults are not queued"),
        }
    }

    /// Decides about what was put aside, once no call is under way. Hold no block's lock.
    pub(super) fn settle(&self) {
        if !self.events.is_unsettled() {
            return;
        }
        let mut contest = self.contest.lock().expect("no panic while held");
        // Nothing under way, and everything that was reported has been read and applied or put aside: reading is what lets
        // calls end.
        if self.events.pending() || self.mover.is_changing() {
            return;
        }
        let Contest { arrivals, aside } = &mut *contest;
        let mut plan = Vec::with_capacity(aside.len());
        for event in aside.iter() {
            let parts = match *event {
                Message::Unmap { start, end } => self.parts(arrivals, start, end),
                Message::Remap { from, len, .. } => self.parts(arrivals, from, from + len),
                _ => Some(Vec::new()),
            };
            let Some(parts) = parts else {
                // Another call has begun.
                arrivals.iter_mut().for_each(|arrival| arrival.settled = false);
                return;
            };
            plan.push(parts);
        }
        for (event, parts) in aside.drain(..).zip(plan) {
            match event {
                Message::Remove { start, end } => {
                    self.discard(start, end);
                    self.mark_discarding(start, end);
                }
                Message::Unmap { start, end } => {
                    for part in parts {
                        match part.is_older {
                            true => _ = self.store.invalidate(LIMBO, key(part.start), pages(part)),
                            false => self.discard(part.start, part.end),
                        }
                    }
                    self.note_changed(start, end);
                }
                Message::Remap { from, to, len } => {
                    for part in parts {
                        let group = if part.is_older { LIMBO } else { GROUP };
                        self.relocate(group, part.start, part.start - from + to, part.end - part.start);
                    }
                    self.note_move(from, to, len);
                }
                Message::Fork { .. } | Message::Fault { .. } => unreachable!("never put aside"),
            }
        }
        arrivals.clear();
        // Displaced pages that no report was about: their mapping was replaced without one.
        self.store.invalidate(LIMBO, 0, u64::MAX);
        self.events.set_unsettled(false);
    }

    /// The parts of a reported range, and whether the report is about what was there before a REMAP; `None` when that cannot be
    /// told now.
    fn parts(&self, arrivals: &mut [Arrival], start: usize, end: usize) -> Option<Vec<Part>> {
        let mut parts = Vec::new();
        let mut at = start;
        while at < end {
            let cuts = arrivals.iter().flat_map(|arrival| [arrival.start, arrival.end]);
            let until = cuts.filter(|cut| *cut > at).min().unwrap_or(end).min(end);
            let over = arrivals.iter_mut().rev().find(|arrival| arrival.start <= at && until <= arrival.end);
            let is_older = match over {
                Some(arrival) if !arrival.settled => {
                    let is_older = self.has_displaced(at, until) || self.mover.is_registered(at)?;
                    arrival.settled |= is_older;
                    is_older
                }
                _ => false,
            };
            parts.push(Part { start: at, end: until, is_older });
            at = until;
        }
        Some(parts)
    }

    fn has_displaced(&self, start: usize, end: usize) -> bool {
        let (mut key, last) = (key(start), key(end));
        while key < last {
            let count = (last - key).min(64);
            if self.store.present(LIMBO, key, count as usize) != 0 {
                return true;
            }
            key += count;
        }
        false
    }

    /// Keeps what is out in `[start, end)` apart: it is older than what comes there now.
    fn displace(&self, start: usize, end: usize) {
        let mut page = [0u8; PAGE_SIZE];
        for base in self.table.busy(start, end) {
            let mask = within(base, start, end);
            for index in (0..BLOCK_PAGES).filter(|index| mask >> index & 1 == 1) {
                let at = base + index * PAGE_SIZE;
                if self.read_out(at, &mut page) {
                    if let Err(error) = self.store.store_any(LIMBO, key(at), &[&page]) {
                        self.fatal(format_args!("page {at:#x} could not be kept: {error}"));
                    }
                }
            }
        }
    }

    /// Takes displaced pages of a block; answers which.
    pub(super) fn take_displaced(
        &self,
        base: usize,
        mask: u32,
        pages: &mut [[u8; PAGE_SIZE]; BLOCK_PAGES],
    ) -> u32 {
        let key = key(base);
        let found = self.store.present(LIMBO, key, BLOCK_PAGES) as u32 & mask;
        for index in (0..BLOCK_PAGES).filter(|index| found >> index & 1 == 1) {
            let page = &mut pages[index];
            if let Err(error) = self.store.load(LIMBO, key + index as u64, &mut [page], Keep::Exclusive) {
                self.fatal(format_args!("a page from {base:#x} on could not follow mremap: {error}"));
            }
        }
        found
    }
}

fn key(at: usize) -> u64 {
    (at / PAGE_SIZE) as u64
}

fn pages(part: Part) -> u64 {
    key(part.end - part.start)
}
