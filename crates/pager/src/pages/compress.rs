//! From staging into the pool: the slot that has waited longest is compressed, and its frames are
//! ready for use.
//!
//! The block's lock is not held while its slot is compressed. Nothing in the slot changes during
//! that: the block is marked, so that a page that is wanted back comes back as a copy, and no page
//! joins the others. A page that left the state *staged* by then has its object dropped.

use sys::PAGE_SIZE;

use super::table::{runs, span, BlockGuard, PageState, BLOCK_PAGES, NO_SLOT};
use super::{now_ms, Pages, GROUP};
use crate::accounts::Counter;

/// What compressing a slot came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compressed {
    /// Its pages are stored, or were not needed any more.
    Stored,
    /// None was stored: the pool refused all, and they are back in place.
    Refused,
    /// Some were refused, and an event keeps them from their place: they wait as before.
    Blocked,
    /// No slot waits.
    Nothing,
}

impl Pages {
    /// Compresses the slot that has waited longest.
    #[cfg(any(test, feature = "shuttle"))]
    pub fn compress_oldest(&self) -> Compressed {
        self.compress_oldest_moved_before(u64::MAX)
    }

    /// Compresses the slot that has waited longest, if its pages were moved out before `ns`.
    pub fn compress_oldest_moved_before(&self, ns: u64) -> Compressed {
        let Some(slot) = self.staging.oldest_moved_before(ns) else { return Compressed::Nothing };
        let base = self.staging.owner(slot);
        let block = self.lock(base);
        let staged = if block.slot() == slot { block.mask(PageState::Staged) } else { 0 };
        if staged == 0 {
            if block.slot() == slot {
                block.set_slot(NO_SLOT);
            }
            drop(block);
            self.release_slot(slot);
            return Compressed::Stored;
        }
        block.set_compressing(true);
        drop(block);

        let stored = self.store_block(base, slot, staged);

        let block = self.lock(base);
        let kept = block.mask(PageState::Staged) & staged;
        for (first, count) in runs(stored & !kept) {
            self.store.invalidate(GROUP, (base / PAGE_SIZE + first) as u64, count as u64);
        }
        block.change(stored & kept, PageState::Staged, PageState::Stored);
        self.accounts.add(Counter::ZswpOut, (stored & kept).count_ones().into());
        block.set_compressing(false);
        let refused = kept & !stored;
        let is_empty = refused == 0 || self.put_back(&block, slot, refused);
        block.drop_slot_if_unused();
        drop(block);
        match is_empty {
            true => self.release_slot(slot),
            false => self.staging.queue(slot, base),
        }
        match (is_empty, stored & kept) {
            (false, 0) => Compressed::Blocked,
            (true, 0) if refused != 0 => Compressed::Refused,
            _ => Compressed::Stored,
        }
    }

    /// Stores staged pages of a block, neighbours or not, in as few requests to the compressor as
    /// there can be; pages that refuse take no others with them. Returns those that are stored.
    fn store_block(&self, base: usize, slot: u32, staged: u32) -> u32 {
        let first_key = (base / PAGE_SIZE) as u64;
        let page = |index: usize| {
            // SAFETY: a page of the slot, which stays as it is while the block is marked as being
            // compressed.
            unsafe { &*(self.staging.address(slot, index) as *const [u8; PAGE_SIZE]) }
        };
        let mut pages = [(0, page(staged.trailing_zeros() as usize)); BLOCK_PAGES];
        let mut len = 0;
        for index in runs(staged).flat_map(|(first, count)| first..first + count) {
            pages[len] = (first_key + index as u64, page(index));
            len += 1;
        }
        let pages = &pages[..len];
        let Ok(refused) = self.store.store_scattered(GROUP, pages, 1) else {
            self.accounts.add(Counter::RejectAllocFail, len as u64);
            return 0;
        };
        let in_place = pages.iter().enumerate().filter(|(n, _)| refused.pages >> n & 1 == 0);
        let stored = in_place.fold(0, |mask, (_, (key, _))| mask | span((key - first_key) as usize, 1));
        let others = refused.pages & !refused.poor;
        self.accounts.add(Counter::RejectCompressPoor, refused.poor.count_ones().into());
        self.accounts.add(Counter::RejectAllocFail, others.count_ones().into());
        let folio = self.folio_pages.min(BLOCK_PAGES);
        for (first, count) in runs(stored) {
            let (mut at, end) = (first, first + count);
            while at < end {
                let next = end.min((at / folio + 1) * folio);
                self.accounts.add(Counter::Batches, 1);
                self.accounts.add(Counter::STORED[(next - at).ilog2() as usize], (next - at) as u64);
                at = next;
            }
        }
        stored
    }

    /// Returns pages that the pool refused to the program, and leaves them alone for a while. False
    /// when an event is in the way and they stay staged.
    fn put_back(&self, block: &BlockGuard<'_>, slot: u32, mask: u32) -> bool {
        block.refuse(mask, now_ms());
        let Some(quiet) = self.quiet(block) else { return false };
        for (first, count) in runs(mask) {
            for index in first..first + count {
                // The frame of a copied page, shared with a forked relative, is left in the slot as
                // a ready page.
                let Some(moved) = self.place_back(&quiet, index, self.staging.frame(slot, index)) else {
                    return false;
                };
                match moved {
                    true => self.staging.left(slot, span(index, 1)),
                    false => self.backend.came_as_copies(&self.staging, slot, span(index, 1)),
                }
                block.change(span(index, 1), PageState::Staged, PageState::Kernel);
                self.note_returned(block.history(), span(index, 1), 0, false);
            }
        }
        true
    }

    /// Gives a slot back whose pages are stored or were brought in.
    pub fn release_slot(&self, slot: u32) {
        if !self.recycles() {
            self.staging.discard(slot);
        }
        self.staging.give(slot);
    }
}
