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

use std::sync::atomic::Ordering;

use sys::pagemap::Run;
use sys::PAGE_SIZE;

use crate::address_space::{AddressSpace, GROUP};
use crate::space::block::PageState;
use crate::units::{block_of, index_of, page_at, page_key, runs, span, within, BLOCK_BYTES};

const RUNS: usize = 64;

impl AddressSpace {
    /// The program discarded `[start, end)`, which reads as zeroes from now on.
    pub fn discard(&self, start: usize, end: usize) {
        self.accounts.forgotten(start, end);
        for base in self.table.known(start, end) {
            let mask = within(base, start, end);
            let Some(block) = self.table.lock_existing(base).filter(|_| mask != 0) else { continue };
            let (staged, stored) =
                (block.mask(PageState::Staged) & mask, block.mask(PageState::Stored) & mask);
            block.change(staged, PageState::Staged, PageState::Kernel);
            block.change(stored, PageState::Stored, PageState::Kernel);
            block.change_kernels(mask, PageState::Kernel);
            block.forget_refused(mask);
            for (first, count) in runs(stored) {
                self.store.invalidate(GROUP, page_key(page_at(base, first)), count as u64);
            }
            // The pages of a slot stay unchanged while it is being compressed.
            if !block.is_compressing() {
                block.drop_slot_if_unused();
            }
        }
    }

    /// Marks the mapped pages of a range that the kernel is about to discard.
    pub(crate) fn mark_discarding(&self, start: usize, end: usize) {
        let mut found = [Run::default(); RUNS];
        let mut at = start;
        while at < end {
            let (count, walked) = self.mover.pagemap.mapped_runs(at, end, &mut found);
            for run in &found[..count] {
                self.mark_run(run.start as usize, run.end as usize);
            }
            at = walked.max(at + PAGE_SIZE);
        }
    }

    fn mark_run(&self, start: usize, end: usize) {
        let state =
            if self.odd.load(Ordering::Acquire) { PageState::DiscardOdd } else { PageState::DiscardEven };
        let mut base = block_of(start);
        while base < end {
            let block = self.lock(base);
            let mask = within(base, start, end) & block.mask_of(PageState::is_kernels);
            block.change_kernels(mask, state);
            self.discarding.fetch_add(mask.count_ones().into(), Ordering::Relaxed);
            base += BLOCK_BYTES;
        }
    }

    /// Whether a discarded page may still be mapped.
    pub fn has_discarding(&self) -> bool {
        self.discarding.load(Ordering::Relaxed) > 0
    }

    /// Begins a grace period. Later marks belong to the next one.
    pub fn begin_grace(&self) {
        self.odd.fetch_xor(true, Ordering::AcqRel);
    }

    /// Ends a grace period: every thread has left the calls whose events were applied before
    /// [`AddressSpace::begin_grace`]. Pages marked before it and still mapped stay.
    pub fn end_grace(&self) {
        let state =
            if self.odd.load(Ordering::Acquire) { PageState::DiscardEven } else { PageState::DiscardOdd };
        let before = self.discarding.load(Ordering::Relaxed);
        let mut left = 0;
        for base in self.table.busy(0, sys::memory::USER_END) {
            let Some(block) = self.table.lock_existing(base) else { continue };
            block.change(block.mask(state), state, PageState::Kernel);
            left += (block.mask(PageState::DiscardEven) | block.mask(PageState::DiscardOdd)).count_ones();
        }
        // Keep the count of marks made during the scan.
        let _ = self.discarding.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
            Some(now.saturating_sub(before) + u64::from(left))
        });
    }

    /// In a forked child, where no other thread can be discarding.
    pub fn forget_discarding(&self) {
        self.begin_grace();
        self.end_grace();
    }

    /// Records that a page is in place despite the table: it was copied into a forked child.
    pub fn forget_copied(&self, at: usize) {
        let Some(block) = self.table.lock_existing(at) else { return };
        let mask = span(index_of(at), 1);
        if block.mask(PageState::Staged) & mask != 0 {
            // The slot still holds the page, until the slot is compressed or reused.
            block.change(mask, PageState::Staged, PageState::Kernel);
            block.drop_slot_if_unused();
        } else if block.mask(PageState::Stored) & mask != 0 {
            block.change(mask, PageState::Stored, PageState::Kernel);
            self.store.invalidate(GROUP, page_key(at), 1);
        }
    }

    /// Number of staged and stored pages.
    #[cfg(all(any(test, feature = "testing"), not(feature = "shuttle")))]
    pub fn pages_out(&self) -> usize {
        let blocks = self.table.busy(0, sys::memory::USER_END).map(|base| self.lock(base));
        blocks.map(|block| block.mask_of(|state| !state.is_kernels()).count_ones() as usize).sum()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::space::run::PageRun;
    use crate::testing::{evict, inbound, pages_with, read, write};
    use crate::transition::fault_in::FaultedIn;
    use crate::units::{page_at, ALL_PAGES, BLOCK_PAGES};

    /// Regression: a thread lost its CPU for seconds between the event and its discarding. The
    /// pages were saved as data in between and came back with the old bytes.
    #[test]
    fn pages_that_are_being_discarded_are_not_saved_until_a_grace_period_has_passed() {
        let Some((pages, base)) = pages_with(1) else { return };
        // Simulates an event whose thread has not run since.
        pages.discard(base, page_at(base, 4));
        pages.mark_discarding(base, page_at(base, 4));
        assert!(pages.has_discarding());
        evict(pages, base, ALL_PAGES);
        assert_eq!((pages.pages_out(), pages.mover.mapped(base, BLOCK_PAGES)), (12, 0xf));
        pages.begin_grace();
        pages.mark_discarding(base, base + PAGE_SIZE);
        pages.end_grace();
        assert!(pages.has_discarding());
        evict(pages, base, ALL_PAGES);
        assert_eq!(pages.mover.mapped(base, BLOCK_PAGES), 0x1);
        pages.begin_grace();
        pages.end_grace();
        assert!(!pages.has_discarding());
        evict(pages, base, ALL_PAGES);
        assert_eq!((pages.pages_out(), read(pages.staging.address(pages.lock(base).slot(), 0), 0)), (16, 1));
    }

    #[test]
    fn a_refilled_page_is_no_longer_being_discarded() {
        let Some((pages, base)) = pages_with(1) else { return };
        pages.mark_discarding(base, base + BLOCK_BYTES);
        // The thread continues. Its event is not read, so the test takes the pages away.
        let slot = pages.staging.take_empty().unwrap();
        let block = pages.lock(base);
        let quiet = pages.quiet(&block).unwrap();
        let all = PageRun::new(0, BLOCK_PAGES);
        assert!(quiet.move_out(all, pages.staging.frame(slot.number(), 0)).stop.is_none());
        drop(quiet);
        drop(block);
        let mut inbound = inbound();
        assert_eq!(pages.fault_in(&mut inbound, base, true, BLOCK_PAGES), FaultedIn::Done(BLOCK_PAGES));
        assert_eq!((read(base, 3), pages.lock(base).mask(PageState::Kernel)), (0, ALL_PAGES));
        write(base, 3, 7);
        evict(pages, base, ALL_PAGES);
        assert_eq!(pages.pages_out(), 16);
    }
}
