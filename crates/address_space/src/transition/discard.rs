//! Discards by the program: madvise(MADV_DONTNEED, MADV_FREE), munmap() and replaced mappings.
//!
//! The event of madvise() comes *before* the kernel discards pages. Its thread continues once the
//! event is read, and nothing reports the end. A page still mapped then must not be saved as data:
//! it would come back with the old bytes. So applying the event, which precedes any refill of the
//! range, marks the range's mapped pages as being discarded. A mark ends when the page is missing
//! and is refilled, which proves that the old page is gone, or when a grace period has passed:
//! every thread was seen outside the call since (the pager finds out). No clock is involved: the
//! marks stay even if a thread is stopped for a minute between the event and its discarding.
//!
//! (After MADV_FREE pages may stay mapped, and be used again. For those the grace period alone ends
//! the mark.)

use sys::pagemap::Run;
use sys::PAGE_SIZE;

use crate::address_space::{AddressSpace, GROUP};
use crate::space::block::PageState;
use crate::space::table::AddressTable;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::units::{BlockNumber, PageMask, PageNumber};

const RUNS: usize = 64;

/// Marks of discarded pages. One bit says which of two generations new marks belong to, so that a
/// grace period ends the earlier ones only; a clock in each block would cost memory, and looks.
#[derive(Default)]
pub struct Discards {
    odd: AtomicBool,
    /// Approximate number of marks: raised by marks, reset by grace periods.
    marks: AtomicU64,
}

impl Discards {
    /// Whether a discarded page may still be mapped.
    pub fn are_pending(&self) -> bool {
        self.marks.load(Ordering::Relaxed) > 0
    }

    /// Begins a grace period. Later marks belong to the next one.
    pub fn begin_grace(&self) {
        self.odd.fetch_xor(true, Ordering::AcqRel);
    }

    /// The state of pages marked now, or of those marked before the last grace period began.
    fn state(&self, now: bool) -> PageState {
        match self.odd.load(Ordering::Acquire) == now {
            true => PageState::DiscardOdd,
            false => PageState::DiscardEven,
        }
    }

    /// Ends a grace period: every thread has left the calls whose events were applied before
    /// [`Discards::begin_grace`]. Pages marked before it and still mapped stay.
    pub fn end_grace(&self, table: &AddressTable) {
        let (state, before) = (self.state(false), self.marks.load(Ordering::Relaxed));
        let mut left = 0;
        for block in table.busy(0, sys::memory::USER_END) {
            let Some(block) = table.lock_existing(block) else { continue };
            block.change(block.mask(state), state, PageState::Kernel);
            left += (block.mask(PageState::DiscardEven) | block.mask(PageState::DiscardOdd)).count();
        }
        // Keep the count of marks made during the scan.
        let _ = self.marks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
            Some(now.saturating_sub(before) + left as u64)
        });
    }

    /// In a forked child, where no other thread can be discarding.
    pub fn forget(&self, table: &AddressTable) {
        self.begin_grace();
        self.end_grace(table);
    }
}

impl AddressSpace {
    /// The program discarded `[start, end)`, which reads as zeroes from now on.
    pub fn discard(&self, start: usize, end: usize) {
        self.accounts.forgotten(start, end);
        for block in self.space.table.known(start, end) {
            let mask = PageMask::within(block, start, end);
            let Some(block) = self.space.table.lock_existing(block).filter(|_| !mask.is_empty()) else {
                continue;
            };
            let (staged, stored) =
                (block.mask(PageState::Staged) & mask, block.mask(PageState::Stored) & mask);
            block.change(staged, PageState::Staged, PageState::Kernel);
            block.change(stored, PageState::Stored, PageState::Kernel);
            block.change_kernels(mask, PageState::Kernel);
            block.forget_refused(mask);
            for (first, count) in stored.runs() {
                self.store.invalidate(GROUP, block.page(first).key(), count as u64);
            }
            // The pages of a slot stay unchanged while it is being compressed.
            if !block.is_compressing() {
                block.drop_slot_if_unused();
            }
        }
    }

    /// Records that a page is in place despite the table: it was copied into a forked child.
    pub fn forget_copied(&self, at: PageNumber) {
        let Some(block) = self.space.table.lock_existing(at.block()) else { return };
        let (index, mask) = (at.index(), at.mask());
        if block.mask(PageState::Staged).has(index) {
            // The slot still holds the page, until the slot is compressed or reused.
            block.change(mask, PageState::Staged, PageState::Kernel);
            block.drop_slot_if_unused();
        } else if block.mask(PageState::Stored).has(index) {
            block.change(mask, PageState::Stored, PageState::Kernel);
            self.store.invalidate(GROUP, at.key(), 1);
        }
    }

    /// Number of staged and stored pages.
    #[cfg(all(any(test, feature = "testing"), not(feature = "shuttle")))]
    pub fn pages_out(&self) -> usize {
        let blocks = self.space.table.busy(0, sys::memory::USER_END).map(|block| self.lock(block));
        blocks.map(|block| block.mask_of(|state| !state.is_kernels()).count()).sum()
    }
}

/// Marks the mapped pages of a range that the kernel is about to discard.
pub(crate) fn mark_discarding(memory: &AddressSpace, start: usize, end: usize) {
    let mut found = [Run::default(); RUNS];
    let mut at = start;
    while at < end {
        let (count, walked) = memory.space.mover.pagemap.mapped_runs(at, end, &mut found);
        for run in &found[..count] {
            mark_run(memory, run.start as usize, run.end as usize);
        }
        at = walked.max(at + PAGE_SIZE);
    }
}

fn mark_run(memory: &AddressSpace, start: usize, end: usize) {
    let state = memory.discards.state(true);
    for block in BlockNumber::all_of(start, end) {
        let block = memory.lock(block);
        let mask = PageMask::within(block.number(), start, end) & block.mask_of(PageState::is_kernels);
        block.change_kernels(mask, state);
        memory.discards.marks.fetch_add(mask.count() as u64, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::testing::{evict, inbound, pages_with, read, slot, write};
    use crate::transition::fault_in::FaultedIn;
    use crate::units::{PageRun, RunMask, BLOCK_PAGES};

    /// Regression: a thread lost its CPU for seconds between the event and its discarding. The
    /// pages were saved as data in between and came back with the old bytes.
    #[test]
    fn pages_that_are_being_discarded_are_not_saved_until_a_grace_period_has_passed() {
        let Some((pages, base)) = pages_with(1) else { return };
        // Simulates an event whose thread has not run since.
        let (start, end) = (base.address(), base.page(4).address());
        pages.discard(start, end);
        mark_discarding(pages, start, end);
        assert!(pages.discards.are_pending());
        evict(pages, base, PageMask::ALL);
        assert_eq!(
            (pages.pages_out(), pages.space.mover.mapped(start, BLOCK_PAGES)),
            (12, RunMask::first(4))
        );
        pages.discards.begin_grace();
        mark_discarding(pages, start, start + PAGE_SIZE);
        pages.discards.end_grace(pages.table());
        assert!(pages.discards.are_pending());
        evict(pages, base, PageMask::ALL);
        assert_eq!(pages.space.mover.mapped(start, BLOCK_PAGES), RunMask::first(1));
        pages.discards.begin_grace();
        pages.discards.end_grace(pages.table());
        assert!(!pages.discards.are_pending());
        evict(pages, base, PageMask::ALL);
        assert_eq!((pages.pages_out(), read(slot(pages, base), 0)), (16, 1));
    }

    #[test]
    fn a_refilled_page_is_no_longer_being_discarded() {
        let Some((pages, base)) = pages_with(1) else { return };
        mark_discarding(pages, base.address(), base.end());
        // The thread continues. Its event is not read, so the test takes the pages away.
        let slot = pages.staging.take_empty().unwrap();
        let block = pages.lock(base);
        let coherent = pages.coherent(&block).unwrap();
        let all = PageRun::new(0, BLOCK_PAGES);
        assert!(coherent.move_out(all, pages.staging.frame(slot.number(), 0)).stop.is_none());
        drop(coherent);
        drop(block);
        let mut inbound = inbound();
        assert_eq!(
            pages.fault_in(&mut inbound, base.page(0), true, BLOCK_PAGES),
            FaultedIn::Done(BLOCK_PAGES)
        );
        assert_eq!((read(base, 3), pages.lock(base).mask(PageState::Kernel)), (0, PageMask::ALL));
        write(base, 3, 7);
        evict(pages, base, PageMask::ALL);
        assert_eq!(pages.pages_out(), 16);
    }
}
