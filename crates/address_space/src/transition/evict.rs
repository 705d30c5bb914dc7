//! Eviction: how pages leave the program for their staging slots, by `UFFDIO_MOVE`.
//!
//! `UFFDIO_MOVE` does not check that its source is registered, and a mapping may just have been
//! replaced by another. But the kernel checks for calls that change mappings at the userfaultfd
//! that guards the *target*, under the lock under which such calls begin. So the program's own
//! userfaultfd guards staging. A move then succeeds only if every munmap(), mremap(), madvise() and
//! fork begun so far has been reported and its thread has continued. Its report was read and
//! applied, or there would be no proof of quiet, so the mapping just checked is still registered.

use sys::userfaultfd::Stop;

use crate::accounts::Counter;
use crate::address_space::{now_ms, AddressSpace};
use crate::space::block::{BlockGuard, PageState, NO_SLOT};
use crate::space::mover::Quiet;
use crate::space::run::{part, PageRun, RunGuard};
use crate::staging::slot::EmptySlot;
use crate::units::{bytes_of, index_of, page_at, pages_in, runs, span, ALL_PAGES, BLOCK_BYTES, BLOCK_PAGES};
use crate::units::{EXTENT_PAGES, EXTENT_SLOTS};

impl AddressSpace {
    /// Moves the present pages of `mask` out of a block, into the block's slot or else into
    /// `spare`, which is then taken. Returns false if nothing was moved. If `may_wait`, asks the
    /// kernel to copy pages shared with a forked relative, which may wait for a fault to be served.
    pub fn evict(&self, spare: &mut Option<EmptySlot>, base: usize, mask: u32, may_wait: bool) -> bool {
        let (mut unshared, mut kept) = (false, 0);
        loop {
            let Some(block) = self.space.table.try_lock(base) else { return false };
            let wanted = mask & block.mask(PageState::Kernel) & !kept;
            let own = Some(block.slot()).filter(|slot| *slot != NO_SLOT);
            let Some(slot) = own
                .or(spare.as_ref().map(EmptySlot::number))
                .filter(|_| wanted != 0 && !block.is_compressing())
            else {
                return false;
            };
            let Some(quiet) = self.quiet(&block) else {
                drop(block);
                self.apply_events();
                return false;
            };
            // The frame of a page that came back as a copy.
            let left_behind = self.staging.present(slot) & wanted;
            // SAFETY: the block is locked and not being compressed, and the wanted pages are the
            // kernel's: their frames in the slot are not needed.
            unsafe { self.staging.discard_pages(slot, left_behind) };
            let (mut moved, mut busy) = (0, None);
            for (first, count) in runs(wanted) {
                if !quiet.is_guarded(first) {
                    continue;
                }
                let at = page_at(base, first);
                let (left, shared) = move_run(self, &quiet, &block, slot, first, count);
                moved |= left;
                busy = busy.or(shared.map(|start| (start, page_at(at, count) - start)));
            }
            note_staged(self, &block, slot, moved);
            // Only now may events be read: they must find these pages in the table.
            drop(quiet);
            if moved != 0 {
                drop(block);
                // The block's own slot is queued, or the thread that took it will queue it.
                if let Some(slot) = spare.take_if(|_| own.is_none()) {
                    self.staging.queue(slot.filled(), base);
                }
                return true;
            }
            // Pinned, or shared with relatives: the kernel's private copies can be moved.
            let Some((start, len)) = busy else { return false };
            if keeps_shared(self) {
                kept = wanted & self.pagemap().shared(base, BLOCK_PAGES) as u32;
                self.accounts.add(Counter::KeptShared, kept.count_ones().into());
            }
            if unshared || wanted == kept {
                block.refuse_briefly(wanted, now_ms());
            }
            if unshared || wanted == kept || !may_wait {
                return false;
            }
            drop(block);
            let busy = span(index_of(start), pages_in(len)) & !kept;
            runs(busy).for_each(|(first, count)| sys::memory::unshare(page_at(base, first), bytes_of(count)));
            unshared = true;
        }
    }

    /// Moves an extent's worth of adjacent full blocks out with one call. False if none moved.
    pub fn evict_extent(&self, base: usize) -> bool {
        let Some(first) = self.space.table.try_lock(base) else { return false };
        let mut run = RunGuard::of(first);
        run.extend(&self.space.table, EXTENT_SLOTS);
        let is_whole = |block: &BlockGuard<'_>| {
            block.mask(PageState::Kernel) == ALL_PAGES && block.slot() == NO_SLOT && !block.is_compressing()
        };
        if run.count() < EXTENT_SLOTS || !run.iter().all(is_whole) {
            return false;
        }
        let Some(extent) = self.staging.take_empty_extent() else { return false };
        let Some(quiet) = self.quiet(&run).filter(|quiet| quiet.is_guarded(0)) else {
            self.staging.give_extent(extent);
            return false;
        };
        let first = extent.first();
        let frame = self.staging.frame(first, 0);
        let target = frame.address();
        let progress = quiet.move_out(PageRun::new(0, EXTENT_PAGES), frame);
        let moved = match progress.stop {
            None => u128::MAX,
            Some(_) => self.space.mover.arrived(target, base, EXTENT_PAGES),
        };
        if progress.stop.is_some() {
            // A late read of a moved page maps the zero page, as in `move_run`.
            let stray = self.space.mover.mapped(target, EXTENT_PAGES) & !moved;
            for index in 0..EXTENT_SLOTS {
                for (page, count) in runs(part(stray, index)) {
                    // SAFETY: slots of an extent taken for this move, at places that received no
                    // page.
                    unsafe { self.staging.discard_stray(first + index as u32, page, count) };
                }
            }
        }
        for (index, block) in run.iter().enumerate() {
            note_staged(self, block, first + index as u32, part(moved, index));
        }
        // Only now may events be read: they must find these pages in the table.
        drop(quiet);
        drop(run);
        for (index, slot) in extent.slots().enumerate() {
            match part(moved, index) {
                0 => self.staging.give(slot),
                _ => self.staging.queue(slot.filled(), base + index * BLOCK_BYTES),
            }
        }
        moved != 0
    }
}

/// Whether pages that relatives share stay in memory: they all would keep a compressed copy,
/// which together take more than this part of the one page.
fn keeps_shared(pages: &AddressSpace) -> bool {
    const PART: (u64, u64) = (3, 4);
    /// Taken for granted until the pool tells.
    const COPY: (u64, u64) = (1, 3);
    let (pool, stored) = (pages.store.pool_bytes(), bytes_of(pages.store.stored_pages() as usize) as u64);
    let (copy, page) = if stored == 0 { COPY } else { (pool, stored) };
    u128::from(pages.accounts.share().sharers) * u128::from(copy) * u128::from(PART.1)
        > u128::from(page) * u128::from(PART.0)
}

fn note_staged(pages: &AddressSpace, block: &BlockGuard<'_>, slot: u32, moved: u32) {
    if moved != 0 {
        pages.staging.arrived(slot, moved);
        pages.staging.set_owner(slot, block.base());
        block.change(moved, PageState::Kernel, PageState::Staged);
        pages.policy.evicted(block.history(), moved);
        block.set_slot(slot);
    }
}

/// Moves adjacent pages of a block into a slot. Returns the moved ones, and a shared one's place.
fn move_run(
    pages: &AddressSpace,
    quiet: &Quiet<'_>,
    block: &BlockGuard<'_>,
    slot: u32,
    first: usize,
    count: usize,
) -> (u32, Option<usize>) {
    let (mut at, end) = (first, first + count);
    let (mut moved, mut busy, mut heals) = (0, None, 0);
    while at < end {
        let progress = quiet.move_out(PageRun::new(at, end - at), pages.staging.frame(slot, at));
        let done = pages_in(progress.done);
        moved |= span(at, done);
        at += done;
        match progress.stop {
            None => {}
            Some(Stop::Again) if done > 0 => {}
            Some(Stop::Busy) => {
                busy.get_or_insert(quiet.address(at - done));
                at += 1;
            }
            Some(Stop::Again) if pages.space.mover.guard.is_changing() => break,
            Some(Stop::Hole | Stop::Again) => at += 1,
            Some(stop) => {
                heals += usize::from(stop == Stop::Exists);
                // The first page that has not moved is at `at`; others may have, for any error.
                let (source, target) = (page_at(block.base(), at), pages.staging.address(slot, at));
                let arrived = pages.space.mover.arrived(target, source, end - at) as u32;
                moved |= arrived << at;
                // Other pages in the slot are zero pages, mapped by late reads of moved pages.
                let stray = pages.space.mover.mapped(target, end - at) as u32 & !arrived;
                for (first, count) in runs(stray) {
                    // SAFETY: a locked block's slot, or one taken for it, at places that received
                    // no page.
                    unsafe { pages.staging.discard_stray(slot, at + first, count) };
                }
                at += arrived.trailing_ones() as usize;
                if stop != Stop::Exists || heals > 2 {
                    // Locked, read-only, executable or under a protection key: immovable.
                    let left = span(at, end - at) & !moved;
                    pages.accounts.add(Counter::Immovable, left.count_ones().into());
                    block.refuse(left, now_ms());
                    at = end;
                }
            }
        }
    }
    (moved, busy)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::testing::{evict, inbound, pages_with, read, write};
    use crate::transition::compress::Compressed;
    use crate::transition::fault_in::{fault_in_within, FaultedIn};

    #[test]
    fn more_pages_of_a_block_join_those_that_wait() {
        let Some((pages, base)) = pages_with(1) else { return };
        evict(pages, base, 0x00ff);
        let slot = pages.lock(base).slot();
        let mut spare = pages.staging.take_empty();
        let other = spare.as_ref().unwrap().number();
        pages.lock(base).set_compressing(true);
        assert!(!pages.evict(&mut spare, base, ALL_PAGES, false), "its slot is being read");
        pages.lock(base).set_compressing(false);
        assert!(pages.evict(&mut spare, base, 0x0fff, false));
        let number = |spare: &Option<EmptySlot>| spare.as_ref().unwrap().number();
        assert_eq!((number(&spare), pages.lock(base).slot(), pages.staging.queued_slots()), (other, slot, 1));
        assert_eq!(pages.lock(base).mask(PageState::Staged), 0x0fff);

        // A page that comes back as a copy leaves its frame, and is evicted there again.
        let block = pages.lock(base);
        block.set_compressing(true);
        let mut inbound = inbound();
        assert_eq!(fault_in_within(pages, &block, &mut inbound, 3, true, 1), FaultedIn::Done(1));
        block.set_compressing(false);
        drop(block);
        write(base, 3, 77);
        assert!(pages.evict(&mut spare, base, ALL_PAGES, false));
        assert_eq!((number(&spare), pages.lock(base).mask(PageState::Staged)), (other, ALL_PAGES));
        assert_eq!((pages.staging.pages(), pages.space.mover.mapped(base, BLOCK_PAGES)), (16, 0));
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
        let Some((pages, base)) = pages_with(1) else { return };
        evict(pages, base, ALL_PAGES);
        let block = pages.lock(base);
        block.set_compressing(true);
        let mut inbound = inbound();
        assert_eq!(fault_in_within(pages, &block, &mut inbound, 0, true, 4), FaultedIn::Done(4));
        write(base, 2, 99);
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
        let Some((pages, base)) = pages_with(1) else { return };
        pages.staging.stop_recycling();
        evict(pages, base, ALL_PAGES);
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!((pages.staging.pages(), pages.staging.ready_pages()), (0, 0));
        let mut inbound = inbound();
        assert_eq!(pages.fault_in(&mut inbound, base, false, BLOCK_PAGES), FaultedIn::Done(BLOCK_PAGES));
        assert!((0..BLOCK_PAGES).all(|page| read(base, page) == page + 1));
    }
}
