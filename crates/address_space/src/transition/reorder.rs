//! The order of events that the kernel reports out of order.
//!
//! munmap() and mremap() work under the kernel's lock and report after they release it. So when two
//! threads do this at once, one may reuse what the other freed, and the report of the new use may
//! come first:
//!
//! ```text
//!   thread A  munmap(s) ------------------------- reports UNMAP s        read second
//!   thread B             mremap(x -> s) reports REMAP x s                read first
//! ```
//!
//! Applied in this order, the UNMAP would discard what the REMAP brought to `s`. The kernel counts
//! the calls under way and refuses to fill pages until the count is zero, which shows whether an
//! older report may still come. So after a REMAP nothing is brought in or evicted until no call is
//! under way, and reports about the target of such a REMAP are deferred. Then all reports have
//! been read, and the mapping now at a place decides:
//!
//! * An UNMAP, of either mapping: pages that the table has at an unregistered place are useless,
//!   and a registered place belongs to the newest mapping. (mremap() also reports an UNMAP of its
//!   source, where the table has nothing left.)
//! * A REMAP away from the place: every mapping that comes to a place leaves it once, except the
//!   present one. If more mappings have left than have come since, the first reported was the older
//!   mapping. Its pages were kept apart when the newer mapping came, and follow it.
//!
//! A thread cannot know, and so cannot free, the address that another thread's mremap() is about to
//! return. So arrivals at a place are reported in their order. A single-threaded program has no
//! such cases, and the check is skipped.

use sys::userfaultfd::Message;
use sys::PAGE_SIZE;
use zswap::Keep;

use super::discard::mark_discarding;
use super::hand_over::populate_child;
use super::relocate::{relocate, Transit};
use crate::address_space::{AddressSpace, DISPLACED, GROUP};
use crate::space::descriptor::{Guard, Registration};
use crate::sync::Mutex;
use crate::units::{BlockNumber, PageMask, BLOCK_PAGES};

#[derive(Debug, Clone, Copy)]
struct Arrival {
    start: usize,
    end: usize,
    /// A report about the older mapping has been read.
    settled: bool,
}

struct Part {
    start: usize,
    end: usize,
    /// About the mapping before a REMAP.
    is_older: bool,
}

/// Reports whose order is still unknown.
#[derive(Default)]
struct ReorderBuffer {
    arrivals: Vec<Arrival>,
    deferred: Vec<Message>,
    /// UNMAPs of `deferred` that are decided.
    unmapped: Vec<(usize, usize)>,
    /// Sources of mremap() calls whose UNMAP is still unread.
    unmaps_of_moves: Vec<(usize, usize)>,
    /// Mapping changes applied since, in order. A fork reported now may precede them.
    applied: Vec<Message>,
}

/// The state between events whose order is unknown.
pub(crate) struct Reorder {
    buffer: Mutex<ReorderBuffer>,
    /// Bytes of pages that follow an mremap().
    pub(super) transit: Mutex<Transit>,
}

impl Reorder {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Reorder { buffer: Mutex::default(), transit: Mutex::new(Transit::new()?) })
    }
}

impl ReorderBuffer {
    /// Takes an UNMAP that belongs to a move away from exactly its range.
    fn take_unmap_of_move(&mut self, event: Message) -> bool {
        let Message::Unmap { start, end } = event else { return false };
        let twin = self.unmaps_of_moves.iter().position(|range| *range == (start, end));
        twin.map(|twin| self.unmaps_of_moves.swap_remove(twin)).is_some()
    }

    fn overlaps(&self, start: usize, end: usize) -> bool {
        self.arrivals.iter().any(|arrival| arrival.start < end && start < arrival.end)
    }
}

pub(crate) fn apply(memory: &AddressSpace, event: Message) {
    let mut reorder = memory.reorder.buffer.lock().expect("no panic while held");
    if reorder.take_unmap_of_move(event) {
        return;
    }
    let touches = match event {
        Message::Unmap { start, end } => reorder.overlaps(start, end),
        Message::Remap { from, to, len } => {
            reorder.overlaps(from, from + len) || reorder.overlaps(to, to + len)
        }
        Message::Remove { start, end } => !reorder.deferred.is_empty() && reorder.overlaps(start, end),
        _ => false,
    };
    if touches || !reorder.deferred.is_empty() && !matches!(event, Message::Fork { .. }) {
        reorder.deferred.push(event);
        return;
    }
    match event {
        Message::Remove { start, end } => {
            memory.discard(start, end);
            mark_discarding(memory, start, end);
        }
        Message::Unmap { start, end } => {
            memory.discard(start, end);
            memory.changed.note(start, end);
            if memory.space.events.is_unsettled() {
                reorder.applied.push(event);
            }
        }
        Message::Remap { from, to, len } => {
            memory.accounts.forgotten(from, from + len);
            if !memory.own_threads.leave_one() {
                reorder.applied.push(event);
                displace(memory, to, to + len);
                reorder.arrivals.push(Arrival { start: to, end: to + len, settled: false });
                reorder.unmaps_of_moves.push((from, from + len));
                memory.space.events.set_unsettled(true);
            }
            relocate(memory, GROUP, from, to, len);
            memory.changed.note(from, from + len);
            memory.changed.note(to, to + len);
        }
        Message::Fork { descriptor } => {
            let mut reports = reorder.applied.clone();
            reports.extend(&reorder.deferred);
            populate_child(memory, descriptor, reports, reorder.applied.len());
        }
        Message::Fault { .. } => unreachable!("faults are not queued"),
    }
}

/// Decides about the reports deferred, once no call is under way. Hold no block's lock.
pub(crate) fn settle(memory: &AddressSpace) {
    if !memory.space.events.is_unsettled() {
        return;
    }
    let mut reorder = memory.reorder.buffer.lock().expect("no panic while held");
    // With no call under way, every report has been read, and applied or deferred.
    if memory.space.events.pending() || memory.space.mover.guard.is_changing() {
        return;
    }
    while let Some(&event) = reorder.deferred.first() {
        if reorder.take_unmap_of_move(event) {
            reorder.deferred.remove(0);
            continue;
        }
        let ReorderBuffer { arrivals, deferred, .. } = &mut *reorder;
        let parts = match event {
            Message::Remap { from, len, .. } => parts(memory.guard(), arrivals, deferred, from, from + len),
            Message::Unmap { start, end } => parts(memory.guard(), arrivals, deferred, start, end),
            _ => Some(Vec::new()),
        };
        let Some(parts) = parts else { return };
        match event {
            Message::Remove { start, end } => {
                memory.discard(start, end);
                mark_discarding(memory, start, end);
            }
            Message::Unmap { start, end } => {
                reorder.unmapped.push((start, end));
                memory.changed.note(start, end);
            }
            Message::Remap { from, to, len } => {
                displace(memory, to, to + len);
                for part in parts {
                    let group = if part.is_older { DISPLACED } else { GROUP };
                    relocate(memory, group, part.start, part.start - from + to, part.end - part.start);
                }
                reorder.arrivals.push(Arrival { start: to, end: to + len, settled: false });
                reorder.unmaps_of_moves.push((from, from + len));
                memory.changed.note(from, from + len);
                memory.changed.note(to, to + len);
            }
            Message::Fork { .. } | Message::Fault { .. } => unreachable!("never deferred"),
        }
        reorder.applied.push(event);
        reorder.deferred.remove(0);
    }
    while let Some(&(start, end)) = reorder.unmapped.last() {
        if !discard_unmapped(memory, start, end, &reorder.arrivals) {
            return;
        }
        reorder.unmapped.pop();
    }
    reorder.arrivals.clear();
    reorder.unmaps_of_moves.clear();
    reorder.applied.clear();
    // No report was about the remaining pages: their mapping is gone, or was replaced.
    memory.store.invalidate(DISPLACED, 0, u64::MAX);
    memory.space.events.set_unsettled(false);
}

/// Discards out pages, except registered ones at an arrival. Returns false if unknown.
fn discard_unmapped(memory: &AddressSpace, start: usize, end: usize, arrivals: &[Arrival]) -> bool {
    for block in memory.space.table.known(start, end) {
        let Some(guard) = memory.space.table.lock_existing(block) else { continue };
        let out = guard.mask_of(|state| !state.is_kernels());
        drop(guard);
        for index in PageMask::within(block, start, end).pages() {
            let at = block.page(index).address();
            let is_contested = arrivals.iter().any(|arrival| (arrival.start..arrival.end).contains(&at));
            if !is_contested {
                memory.discard(at, at + PAGE_SIZE);
            } else if out.has(index) {
                match memory.space.mover.guard.registration(at) {
                    Registration::Registered => {}
                    Registration::Unregistered => memory.discard(at, at + PAGE_SIZE),
                    Registration::Changing => return false,
                }
            }
        }
    }
    true
}

/// Splits the range that the first of `reports` left into parts, each about the mapping before
/// or after the last REMAP. `None` if that is unknown now.
fn parts(
    guard: &Guard,
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
                let present = match guard.registration(at) {
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

/// Keeps out pages in `[start, end)` apart: they are older than the mapping that arrives.
fn displace(memory: &AddressSpace, start: usize, end: usize) {
    let mut bytes = [0u8; PAGE_SIZE];
    for block in memory.space.table.busy(start, end) {
        for index in PageMask::within(block, start, end).pages() {
            let at = block.page(index);
            if memory.read_out(at, &mut bytes) {
                if let Err(error) = memory.store.store_any(DISPLACED, at.key(), &[&bytes]) {
                    memory.fatal(format_args!("page {at:?} could not be kept: {error}"));
                }
            }
        }
    }
}

/// Takes displaced pages of a block. Returns which they are.
pub(crate) fn take_displaced(
    memory: &AddressSpace,
    at: BlockNumber,
    mask: PageMask,
    pages: &mut [[u8; PAGE_SIZE]; BLOCK_PAGES],
) -> PageMask {
    let found = memory.store.present(DISPLACED, at.page(0).key(), BLOCK_PAGES);
    let found = PageMask::from_bits(found as u32) & mask;
    for index in found.pages() {
        let (key, bytes) = (at.page(index).key(), &mut pages[index]);
        if let Err(error) = memory.store.load(DISPLACED, key, &mut [bytes], Keep::Exclusive) {
            memory.fatal(format_args!("a page from {at:?} on could not follow mremap: {error}"));
        }
    }
    found
}

/// Number of reports about a range leaving `at`, and number of those arriving there.
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

fn has_twin(reports: &[Message], start: usize, end: usize) -> bool {
    reports.iter().any(
        |report| matches!(*report, Message::Remap { from, len, .. } if (from, from + len) == (start, end)),
    )
}
