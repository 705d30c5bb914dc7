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
//! the target of such a REMAP is put aside. Then everything has been reported, and what is mapped at a place now tells the rest:
//!
//! * An UNMAP, whichever mapping it was about: what the table has at a place that is not registered any more is of no use,
//!   and what is registered is the newest mapping's. (The kernel also reports an UNMAP of what mremap() has moved away, of
//!   which nothing is left in the table.)
//! * A REMAP away from the place was about the mapping before the one that came there if that one is there still, which is so
//!   when the place is registered and nothing else has been reported to have come since. What was out at the place when the
//!   newer mapping came has been kept apart, and follows.
//!
//! A thread cannot know, and so not free, what another thread's mremap() is about to return: so reports of what comes to a place
//! are read in the order in which it came. A program with one thread has no such cases, and they are not looked for.

use std::sync::atomic::{AtomicU32, Ordering};

use sys::userfaultfd::Message;
use sys::PAGE_SIZE;
use zswap::Keep;

use super::table::{span, within, BLOCK_PAGES};
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
        for (index, event) in aside.iter().enumerate() {
            let parts = match *event {
                Message::Remap { from, len, .. } => self.parts(arrivals, &aside[index..], from, from + len),
                // Decided by each page that is out, below.
                _ => Some(Vec::new()),
            };
            let Some(parts) = parts else {
                // Another call has begun.
                arrivals.iter_mut().for_each(|arrival| arrival.settled = false);
                return;
            };
            plan.push(parts);
        }
        for (event, parts) in aside.iter().zip(plan) {
            match *event {
                Message::Remove { start, end } => {
                    self.discard(start, end);
                    self.mark_discarding(start, end);
                }
                Message::Remap { from, to, len } => {
                    for part in parts {
                        let group = if part.is_older { LIMBO } else { GROUP };
                        self.relocate(group, part.start, part.start - from + to, part.end - part.start);
                    }
                    self.note_move(from, to, len);
                }
                Message::Unmap { start, end } => self.note_changed(start, end),
                Message::Fork { .. } | Message::Fault { .. } => unreachable!("never put aside"),
            }
        }
        let unmaps =
            (0..aside.len()).filter(|index| !is_twin(aside, *index)).filter_map(|index| match aside[index] {
                Message::Unmap { start, end } => Some((start, end)),
                _ => None,
            });
        let came: Vec<_> =
            arrivals.iter().map(|arrival| (arrival.start, arrival.end)).chain(targets(aside)).collect();
        let mut left: Vec<_> = unmaps.collect();
        // What has been done is not to be done again, whatever begins meanwhile.
        arrivals.iter_mut().for_each(|arrival| arrival.settled = true);
        arrivals.extend(targets(aside).map(|(start, end)| Arrival { start, end, settled: true }));
        aside.clear();
        while let Some((start, end)) = left.pop() {
            if !self.discard_unmapped(start, end, &came) {
                left.push((start, end));
                aside.extend(left.drain(..).map(|(start, end)| Message::Unmap { start, end }));
                return;
            }
        }
        arrivals.clear();
        // Displaced pages that no report was about: their mapping is gone, or was replaced without one.
        self.store.invalidate(LIMBO, 0, u64::MAX);
        self.events.set_unsettled(false);
    }

    /// Discards what is out in `[start, end)`, but for what is registered in one of the ranges that something `came` to; false
    /// when that cannot be told now.
    fn discard_unmapped(&self, start: usize, end: usize, came: &[(usize, usize)]) -> bool {
        for base in self.table.known(start, end) {
            let Some(out) =
                self.table.lock_existing(base).map(|block| block.mask_of(|state| !state.is_kernels()))
            else {
                continue;
            };
            let mask = within(base, start, end);
            for index in (0..BLOCK_PAGES).filter(|index| mask & span(*index, 1) != 0) {
                let at = base + index * PAGE_SIZE;
                let is_contested = came.iter().any(|(start, end)| (*start..*end).contains(&at));
                let is_kept = match is_contested && out & span(index, 1) != 0 {
                    true => self.mover.is_registered(at),
                    false => Some(is_contested),
                };
                match is_kept {
                    Some(true) => {}
                    Some(false) => self.discard(at, at + PAGE_SIZE),
                    None => return false,
                }
            }
        }
        true
    }

    /// The parts of the range that a REMAP, the first of `reports`, was away from, and whether it was about what was there before
    /// an earlier REMAP came; `None` when that cannot be told now.
    fn parts(
        &self,
        arrivals: &mut [Arrival],
        reports: &[Message],
        start: usize,
        end: usize,
    ) -> Option<Vec<Part>> {
        let mut parts = Vec::new();
        let mut at = start;
        while at < end {
            let cuts = arrivals.iter().flat_map(|arrival| [arrival.start, arrival.end]);
            let until = cuts.filter(|cut| *cut > at).min().unwrap_or(end).min(end);
            let over = arrivals.iter_mut().rev().find(|arrival| arrival.start <= at && until <= arrival.end);
            let is_older = match over {
                Some(arrival) if !arrival.settled => {
                    let is_older = match self.has_displaced(at, until) {
                        true => !has_surplus_unmap(reports, at),
                        false => !is_target(&reports[1..], at) && self.mover.is_registered(at)?,
                    };
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

/// The ranges that something came to.
fn targets(reports: &[Message]) -> impl Iterator<Item = (usize, usize)> + '_ {
    reports.iter().filter_map(|report| match *report {
        Message::Remap { to, len, .. } => Some((to, to + len)),
        _ => None,
    })
}

/// Whether one of the reports is of something that came to `at`.
fn is_target(reports: &[Message], at: usize) -> bool {
    targets(reports).any(|(start, end)| (start..end).contains(&at))
}

/// Whether an UNMAP is the one that comes along with a REMAP away from that very range.
fn is_twin(reports: &[Message], index: usize) -> bool {
    let Message::Unmap { start, end } = reports[index] else { return false };
    let is_same = |report: &&Message| match **report {
        Message::Remap { from, len, .. } => (from, from + len) == (start, end),
        _ => false,
    };
    let is_earlier = |report: &&Message| **report == reports[index];
    let before = &reports[..index];
    before.iter().filter(is_same).count() > before.iter().filter(is_earlier).count()
}

/// Whether the reports have more UNMAPs of `at` than come along with REMAPs away from there.
fn has_surplus_unmap(reports: &[Message], at: usize) -> bool {
    let (mut unmaps, mut remaps) = (0, 0);
    for report in reports {
        match *report {
            Message::Unmap { start, end } => unmaps += usize::from((start..end).contains(&at)),
            Message::Remap { from, len, .. } => remaps += usize::from((from..from + len).contains(&at)),
            _ => {}
        }
    }
    unmaps > remaps
}
