//! Eviction: how pages leave the program for their staging slots, by `UFFDIO_MOVE`.
//!
//! `UFFDIO_MOVE` does not look whether its source is registered, and a mapping may have been replaced a moment ago by another
//! one. But it looks whether a call that changes mappings is under way at the userfaultfd that guards its *target*, under
//! the lock under which such calls begin. So staging is guarded by the program's own. Then a move succeeds only if every
//! munmap(), mremap(), madvise() and fork that has begun has been reported, and its thread has gone on: all reports have been
//! read, and applied, or there would be no proof of quiet; and the mapping that the kernel has just been asked about is
//! registered still.

use sys::userfaultfd::Stop;
use sys::PAGE_SIZE;

use super::extents::{EXTENT_PAGES, EXTENT_SLOTS};
use super::mover::{Quiet, Way};
use super::table::{
    part, runs, span, BlockGuard, PageRun, PageState, RunGuard, ALL_PAGES, BLOCK_BYTES, NO_SLOT,
};
use super::{now_ms, Pages};

impl Pages {
    /// Moves the present pages of a block out: into the slot where others of its pages wait already, else into `spare`,
    /// which is taken then. False when nothing could be moved. Where a page is shared with a forked relative a copy is asked for
    /// if `may_wait`, since that may wait for a fault to be served.
    pub fn evict(&self, spare: &mut Option<u32>, base: usize, mask: u32, may_wait: bool) -> bool {
        if self.mover.way == Way::Remap {
            return self.evict_by_remap(spare, base, mask);
        }
        let mut unshared = false;
        loop {
            let Some(block) = self.table.try_lock(base) else { return false };
            let wanted = mask & block.mask(PageState::Kernel);
            let own = Some(block.slot()).filter(|slot| *slot != NO_SLOT);
            let Some(slot) = own.or(*spare).filter(|_| wanted != 0 && !block.is_compressing()) else {
                return false;
            };
            let Some(quiet) = self.quiet(&block) else {
                drop(block);
                self.apply_events();
                return false;
            };
            // What a page left behind that came back as a copy.
            self.staging.discard_pages(slot, self.staging.present(slot) & wanted);
            let (mut moved, mut busy) = (0, None);
            for (first, count) in runs(wanted) {
                if !quiet.is_guarded(first) {
                    continue;
                }
                let at = base + first * PAGE_SIZE;
                let (left, shared) = self.move_run(&quiet, &block, slot, first, count);
                moved |= left;
                busy = busy.or(shared.map(|start| (start, at + count * PAGE_SIZE - start)));
            }
            if moved != 0 {
                self.staging.arrived(slot, moved);
                self.staging.set_owner(slot, base);
                block.change(moved, PageState::Kernel, PageState::Staged);
                self.policy.evicted(block.history(), moved);
                block.set_slot(slot);
            }
            // Only now may events be read: one that discards these pages must find them in the table.
            drop(quiet);
            if moved != 0 {
                drop(block);
                // The block's own slot is in the queue, or will be by whoever took it from there.
                if own.is_none() {
                    self.staging.queue(slot, base);
                    *spare = None;
                }
                return true;
            }
            match busy {
                Some(_) if !may_wait => return false,
                // Shared with a forked child, or pinned. Ask the kernel for copies of our own, which can be moved.
                Some((start, len)) if !unshared => {
                    drop(block);
                    sys::memory::unshare(start, len);
                    unshared = true;
                }
                Some(_) => {
                    block.refuse_briefly(wanted, now_ms());
                    return false;
                }
                None => return false,
            }
        }
    }

    /// Moves adjacent pages of a block into a slot; answers those that left, and where a shared one is among the others.
    fn move_run(
        &self,
        quiet: &Quiet<'_>,
        block: &BlockGuard<'_>,
        slot: u32,
        first: usize,
        count: usize,
    ) -> (u32, Option<usize>) {
        let (mut at, end) = (first, first + count);
        let (mut moved, mut busy, mut heals) = (0, None, 0);
        while at < end {
            let progress = quiet.move_out(PageRun::new(at, end - at), self.staging.frame(slot, at));
            let done = progress.done / PAGE_SIZE;
            moved |= span(at, done);
            at += done;
            match progress.stop {
                None => {}
                Some(Stop::Again) if done > 0 => {}
                Some(Stop::Busy) => {
                    // From where this call began.
                    busy.get_or_insert(quiet.address(at - done));
                    at += 1;
                }
                Some(Stop::Again) if self.mover.is_changing() => break,
                Some(Stop::Hole | Stop::Again) => at += 1,
                Some(Stop::Exists) if heals < 2 => {
                    heals += 1;
                    // What did not move itself yet has its place where `at` is now.
                    let (source, target) = (block.base() + at * PAGE_SIZE, self.staging.address(slot, at));
                    let arrived = self.mover.arrived(target, source, end - at) as u32;
                    moved |= arrived << at;
                    // Anything else in the slot is the zero page of somebody's late look at a page that had left.
                    let stray = self.mover.mapped(target, end - at) as u32 & !arrived;
                    for (first, count) in runs(stray) {
                        self.staging.discard_stray(slot, at + first, count);
                    }
                    at += arrived.trailing_ones() as usize;
                }
                Some(_) => {
                    // Locked, read-only, executable: not to be moved.
                    block.refuse(span(at, end - at), now_ms());
                    at = end;
                }
            }
        }
        (moved, busy)
    }

    /// Moves an extent's worth of adjacent blocks of present pages out with one call; false when nothing was moved.
    pub fn evict_extent(&self, base: usize) -> bool {
        let Some(first) = self.table.try_lock(base) else { return false };
        let mut run = RunGuard::of(first);
        run.extend(&self.table, EXTENT_SLOTS);
        let is_whole = |block: &BlockGuard<'_>| {
            block.mask(PageState::Kernel) == ALL_PAGES && block.slot() == NO_SLOT && !block.is_compressing()
        };
        if run.count() < EXTENT_SLOTS || !run.iter().all(is_whole) {
            return false;
        }
        let Some(first) = self.staging.take_empty_extent() else { return false };
        let Some(quiet) = self.quiet(&run).filter(|quiet| quiet.is_guarded(0)) else {
            self.staging.give_extent(first);
            return false;
        };
        let frame = self.staging.frame(first, 0);
        let target = frame.address();
        let progress = quiet.move_out(PageRun::new(0, EXTENT_PAGES), frame);
        let moved = match progress.stop {
            None => u128::MAX,
            Some(_) => self.mover.arrived(target, base, EXTENT_PAGES),
        };
        if progress.stop.is_some() {
            // The zero page of somebody's late look at a page that had left, as in `move_run`.
            let stray = self.mover.mapped(target, EXTENT_PAGES) & !moved;
            for index in 0..EXTENT_SLOTS {
                for (page, count) in runs(part(stray, index)) {
                    self.staging.discard_stray(first + index as u32, page, count);
                }
            }
        }
        for (index, block) in run.iter().enumerate() {
            let (slot, mask) = (first + index as u32, part(moved, index));
            if mask != 0 {
                self.staging.arrived(slot, mask);
                self.staging.set_owner(slot, block.base());
                block.change(mask, PageState::Kernel, PageState::Staged);
                self.policy.evicted(block.history(), mask);
                block.set_slot(slot);
            }
        }
        // Only now may events be read: one that discards these pages must find them in the table.
        drop(quiet);
        drop(run);
        for index in 0..EXTENT_SLOTS {
            let slot = first + index as u32;
            match part(moved, index) {
                0 => self.staging.give(slot),
                _ => self.staging.queue(slot, base + index * BLOCK_BYTES),
            }
        }
        moved != 0
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::pages::{Brought, Compressed, Inbound, BLOCK_PAGES};
    use crate::trial::{blocks, pager, read, write};

    #[test]
    fn more_pages_of_a_block_join_those_that_wait() {
        let Some(pager) = pager(false) else { return };
        let pages = &pager.pages;
        let base = blocks(1);
        pager.register(base..base + BLOCK_BYTES);
        let mut spare = pages.staging.take_empty();
        assert!(pages.evict(&mut spare, base, 0x00ff, false) && spare.is_none());
        let (slot, other) = (pages.lock(base).slot(), pages.staging.take_empty());
        spare = other;
        pages.lock(base).set_compressing(true);
        assert!(!pages.evict(&mut spare, base, ALL_PAGES, false), "its slot is being read");
        pages.lock(base).set_compressing(false);
        assert!(pages.evict(&mut spare, base, 0x0fff, false));
        assert_eq!((spare, pages.lock(base).slot(), pages.staging.queued_slots()), (other, slot, 1));
        assert_eq!(pages.lock(base).mask(PageState::Staged), 0x0fff);

        // A page that comes back as a copy leaves its frame in the slot, and goes there once more.
        let block = pages.lock(base);
        block.set_compressing(true);
        let mut inbound = Inbound::new(pager.own_page);
        assert_eq!(pages.bring_within(&block, &mut inbound, 3, true, 1), Brought::Done(1));
        block.set_compressing(false);
        drop(block);
        write(base, 3, 77);
        assert!(pages.evict(&mut spare, base, ALL_PAGES, false));
        assert_eq!((spare, pages.lock(base).mask(PageState::Staged)), (other, ALL_PAGES));
        assert_eq!((pages.staging.pages(), pages.mover.mapped(base, BLOCK_PAGES)), (16, 0));
        let numbers = (0..BLOCK_PAGES).map(|page| read(pages.staging.address(slot, 0), page));
        assert!(numbers.enumerate().all(|(page, number)| number == if page == 3 { 77 } else { page + 1 }));
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        let block = pages.lock(base);
        assert_eq!(
            (block.mask(PageState::Stored), block.slot(), pages.staging.queued_slots()),
            (ALL_PAGES, NO_SLOT, 0)
        );
    }

    #[test]
    fn a_page_that_is_wanted_while_it_is_compressed_comes_back_as_a_copy() {
        let Some(pager) = pager(false) else { return };
        let pages = &pager.pages;
        let base = blocks(1);
        pager.register(base..base + BLOCK_BYTES);
        let mut spare = pages.staging.take_empty();
        assert!(pages.evict(&mut spare, base, ALL_PAGES, false));
        let block = pages.lock(base);
        block.set_compressing(true);
        let mut inbound = Inbound::new(pager.own_page);
        assert_eq!(pages.bring_within(&block, &mut inbound, 0, true, 4), Brought::Done(4));
        write(base, 2, 99);
        // What the compressor reads is as it was.
        let slot = block.slot();
        assert_eq!(
            (0..4).map(|page| read(pages.staging.address(slot, 0), page)).collect::<Vec<_>>(),
            [1, 2, 3, 4]
        );
        assert_eq!(block.mask(PageState::Staged), 0xfff0);
        block.set_compressing(false);
        drop(block);
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!((pages.lock(base).mask(PageState::Stored), read(base, 2)), (0xfff0, 99));
    }

    #[test]
    fn frames_that_others_refer_to_are_given_back() {
        let Some(pager) = pager(false) else { return };
        let pages = &pager.pages;
        let base = blocks(1);
        pager.register(base..base + BLOCK_BYTES);
        pager.stop_recycling();
        let mut spare = pages.staging.take_empty();
        assert!(pages.evict(&mut spare, base, ALL_PAGES, false));
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!((pages.staging.pages(), pages.staging.ready_pages()), (0, 0));
        let mut inbound = Inbound::new(pager.own_page);
        assert_eq!(pages.bring(&mut inbound, base, false, BLOCK_PAGES), Brought::Done(BLOCK_PAGES));
        assert!((0..BLOCK_PAGES).all(|page| read(base, page) == page + 1));
    }
}
