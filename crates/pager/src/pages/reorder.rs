//! The order of events that the kernel reports out of order.
//!
//! munmap() and mremap() do their work under the kernel's lock and report it after they have let go
//! of it. So when two threads are at it, what one of them freed may be in use again by the other,
//! and the report about the new use may come first:
//!
//! ```text
//!   thread A  munmap(s) ------------------------- reports UNMAP s        read second
//!   thread B             mremap(x -> s) reports REMAP x s                read first
//! ```
//!
//! Applied as they are read, the second would discard what the first has brought to `s`. The kernel
//! counts the calls that are under way, and refuses to fill pages until it is zero: that is how one
//! knows whether some older report is still to come. So after a REMAP nothing is brought in or
//! evicted until no call is under way, and what is reported in between about the target of such a
//! REMAP is put aside. Then everything has been reported, and what is mapped at a place now tells
//! the rest:
//!
//! * An UNMAP, whichever mapping it was about: what the table has at a place that is not registered
//!   any more is of no use, and what is registered is the newest mapping's. (The kernel also
//!   reports an UNMAP of what mremap() has moved away, its second report, of which nothing is left
//!   in the table.)
//! * A REMAP away from the place: every mapping that comes to a place leaves it once, but for the
//!   present one. If more has left than has come since, the first to be reported was the mapping
//!   before. What was out at the place when the newer mapping came has been kept apart, and
//!   follows.
//!
//! A thread cannot know, and so not free, what another thread's mremap() is about to return: so
//! reports of what comes to a place are read in the order in which it came. A program with one
//! thread has no such cases, and they are not looked for.

use sys::userfaultfd::Message;
use sys::PAGE_SIZE;
use zswap::Keep;

use super::guard::Registration;
use super::{Pages, DISPLACED, GROUP};
use crate::units::{page_at, span, within, PageNumber, BLOCK_PAGES};

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
pub(super) struct ReorderBuffer {
    arrivals: Vec<Arrival>,
    aside: Vec<Message>,
    /// UNMAPs among them that have had their turn.
    unmapped: Vec<(usize, usize)>,
    /// Ranges that mremap() moved away from, whose UNMAP is still to come.
    unmaps_of_moves: Vec<(usize, usize)>,
    /// What has been applied since, in order, of what changes mappings: a fork that is reported now
    /// may have come before it.
    applied: Vec<Message>,
}

impl ReorderBuffer {
    /// Takes an UNMAP that comes along with a move away from that very range.
    fn take_unmap_of_move(&mut self, event: Message) -> bool {
        let Message::Unmap { start, end } = event else { return false };
        let twin = self.unmaps_of_moves.iter().position(|range| *range == (start, end));
        twin.map(|twin| self.unmaps_of_moves.swap_remove(twin)).is_some()
    }

    fn overlaps(&self, start: usize, end: usize) -> bool {
        self.arrivals.iter().any(|arrival| arrival.start < end && start < arrival.end)
    }
}

impl Pages {
    /// Applies an event, or puts it aside.
    pub(super) fn apply(&self, event: Message) {
        let mut reorder = self.reorder.lock().expect("no panic while held");
        if reorder.take_unmap_of_move(event) {
            return;
        }
        let touches = match event {
            Message::Unmap { start, end } => reorder.overlaps(start, end),
            Message::Remap { from, to, len } => {
                reorder.overlaps(from, from + len) || reorder.overlaps(to, to + len)
            }
            Message::Remove { start, end } => !reorder.aside.is_empty() && reorder.overlaps(start, end),
            _ => false,
        };
        if touches || !reorder.aside.is_empty() && !matches!(event, Message::Fork { .. }) {
            reorder.aside.push(event);
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
                if self.events.is_unsettled() {
                    reorder.applied.push(event);
                }
            }
            Message::Remap { from, to, len } => {
                self.accounts.forgotten(from, from + len);
                if !self.own_threads.leave_one() {
                    reorder.applied.push(event);
                    self.displace(to, to + len);
                    reorder.arrivals.push(Arrival { start: to, end: to + len, settled: false });
                    reorder.unmaps_of_moves.push((from, from + len));
                    self.events.set_unsettled(true);
                }
                self.relocate(GROUP, from, to, len);
                self.note_changed(from, from + len);
                self.note_changed(to, to + len);
            }
            Message::Fork { descriptor } => {
                let mut reports = reorder.applied.clone();
                reports.extend(&reorder.aside);
                self.populate_child(descriptor, reports, reorder.applied.len());
            }
            Message::Fault { .. } => unreachable!("faults are not queued"),
        }
    }

    /// Decides about what was put aside, once no call is under way. Hold no block's lock.
    pub(super) fn settle(&self) {
        if !self.events.is_unsettled() {
            return;
        }
        let mut reorder = self.reorder.lock().expect("no panic while held");
        // Nothing under way, and everything that was reported has been read and applied or put
        // aside: reading is what lets calls end.
        if self.events.pending() || self.mover.is_changing() {
            return;
        }
        while let Some(&event) = reorder.aside.first() {
            if reorder.take_unmap_of_move(event) {
                reorder.aside.remove(0);
                continue;
            }
            let ReorderBuffer { arrivals, aside, .. } = &mut *reorder;
            let parts = match event {
                Message::Remap { from, len, .. } => self.parts(arrivals, aside, from, from + len),
                Message::Unmap { start, end } => self.parts(arrivals, aside, start, end),
                _ => Some(Vec::new()),
            };
            // Another call has begun.
            let Some(parts) = parts else { return };
            match event {
                Message::Remove { start, end } => {
                    self.discard(start, end);
                    self.mark_discarding(start, end);
                }
                Message::Unmap { start, end } => {
                    reorder.unmapped.push((start, end));
                    self.note_changed(start, end);
                }
                Message::Remap { from, to, len } => {
                    self.displace(to, to + len);
                    for part in parts {
                        let group = if part.is_older { DISPLACED } else { GROUP };
                        self.relocate(group, part.start, part.start - from + to, part.end - part.start);
                    }
                    reorder.arrivals.push(Arrival { start: to, end: to + len, settled: false });
                    reorder.unmaps_of_moves.push((from, from + len));
                    self.note_changed(from, from + len);
                    self.note_changed(to, to + len);
                }
                Message::Fork { .. } | Message::Fault { .. } => unreachable!("never put aside"),
            }
            reorder.applied.push(event);
            reorder.aside.remove(0);
        }
        while let Some(&(start, end)) = reorder.unmapped.last() {
            if !self.discard_unmapped(start, end, &reorder.arrivals) {
                return;
            }
            reorder.unmapped.pop();
        }
        reorder.arrivals.clear();
        reorder.unmaps_of_moves.clear();
        reorder.applied.clear();
        // Displaced pages that no report was about: their mapping is gone, or was replaced without
        // one.
        self.store.invalidate(DISPLACED, 0, u64::MAX);
        self.events.set_unsettled(false);
    }

    /// Discards what is out in `[start, end)`, but for what is registered where something has come
    /// to; false when that cannot be told now.
    fn discard_unmapped(&self, start: usize, end: usize, arrivals: &[Arrival]) -> bool {
        for base in self.table.known(start, end) {
            let Some(out) =
                self.table.lock_existing(base).map(|block| block.mask_of(|state| !state.is_kernels()))
            else {
                continue;
            };
            let mask = within(base, start, end);
            for index in (0..BLOCK_PAGES).filter(|index| mask & span(*index, 1) != 0) {
                let at = page_at(base, index);
                let is_contested = arrivals.iter().any(|arrival| (arrival.start..arrival.end).contains(&at));
                if !is_contested {
                    self.discard(at, at + PAGE_SIZE);
                } else if out & span(index, 1) != 0 {
                    match self.mover.registration(at) {
                        Registration::Registered => {}
                        Registration::Unregistered => self.discard(at, at + PAGE_SIZE),
                        Registration::Changing => return false,
                    }
                }
            }
        }
        true
    }

    /// The parts of the range that the first of `reports` is of having left, and whether that was
    /// what was there before the last REMAP came; `None` when that cannot be told now.
    fn parts(
        &self,
        arrivals: &mut [Arrival],
        reports: &[Message],
        start: usize,
        end: usize,
    ) -> Option<Vec<Part>> {
        let mut parts = Vec::new();
        let mut at = start;
        let mut older = Vec::new();
        while at < end {
            let cuts = arrivals.iter().flat_map(|arrival| [arrival.start, arrival.end]);
            let until = cuts.filter(|cut| *cut > at).min().unwrap_or(end).min(end);
            let over = arrivals.iter().rposition(|arrival| arrival.start <= at && until <= arrival.end);
            let is_older = match over.filter(|over| !arrivals[*over].settled) {
                Some(over) => {
                    let (left, come) = traffic(reports, at);
                    let present = match self.mover.registration(at) {
                        Registration::Registered => 1,
                        Registration::Unregistered => 0,
                        Registration::Changing => return None,
                    };
                    let is_older = left > 1 + come - present;
                    older.extend(is_older.then_some(over));
                    is_older
                }
                None => false,
            };
            parts.push(Part { start: at, end: until, is_older });
            at = until;
        }
        older.into_iter().for_each(|over| arrivals[over].settled = true);
        Some(parts)
    }

    /// Keeps what is out in `[start, end)` apart: it is older than what comes there now.
    fn displace(&self, start: usize, end: usize) {
        let mut page = [0u8; PAGE_SIZE];
        for base in self.table.busy(start, end) {
            let mask = within(base, start, end);
            for index in (0..BLOCK_PAGES).filter(|index| mask >> index & 1 == 1) {
                let at = page_at(base, index);
                if self.read_out(at, &mut page) {
                    if let Err(error) = self.store.store_any(DISPLACED, key(at), &[&page]) {
                        self.fatal(format_args!("page {at:#x} could not be kept: {error}"));
                    }
                }
            }
        }
    }

    /// Takes displaced pages of a block; returns which.
    pub(super) fn take_displaced(
        &self,
        base: usize,
        mask: u32,
        pages: &mut [[u8; PAGE_SIZE]; BLOCK_PAGES],
    ) -> u32 {
        let key = key(base);
        let found = self.store.present(DISPLACED, key, BLOCK_PAGES) as u32 & mask;
        for index in (0..BLOCK_PAGES).filter(|index| found >> index & 1 == 1) {
            let page = &mut pages[index];
            if let Err(error) = self.store.load(DISPLACED, key + index as u64, &mut [page], Keep::Exclusive) {
                self.fatal(format_args!("a page from {base:#x} on could not follow mremap: {error}"));
            }
        }
        found
    }
}

fn key(at: usize) -> u64 {
    PageNumber::of(at).key()
}

/// How many of the reports are of something that left `at`, and how many of something that came
/// there.
fn traffic(reports: &[Message], at: usize) -> (usize, usize) {
    let (mut left, mut come) = (0, 0);
    for report in reports {
        match *report {
            Message::Unmap { start, end } => {
                left += usize::from((start..end).contains(&at) && !has_twin(reports, start, end))
            }
            Message::Remap { from, to, len } => {
                left += usize::from((from..from + len).contains(&at));
                come += usize::from((to..to + len).contains(&at));
            }
            _ => {}
        }
    }
    (left, come)
}

/// Whether one of the reports is of a move away from that very range.
fn has_twin(reports: &[Message], start: usize, end: usize) -> bool {
    reports.iter().any(
        |report| matches!(*report, Message::Remap { from, len, .. } if (from, from + len) == (start, end)),
    )
}
