//! Eviction: how pages leave the program for their staging slots, by `UFFDIO_MOVE`.
//!
//! `UFFDIO_MOVE` does not check that its source is registered, and a mapping may just have been
//! replaced by another. But at each move the kernel checks whether a call that changes mappings has
//! begun. It checks only the userfaultfd that guards the *target*, under the lock that such calls
//! take when they begin. So the program's own userfaultfd guards staging. A move then succeeds only
//! if every munmap(), mremap(), madvise() and fork begun so far has been reported and its thread
//! has continued. The proof of coherence shows that each such report was applied, so the mapping
//! just checked is still registered.

use replacement::policy::Policy;
use sys::userfaultfd::Stop;
use zswap::Zswap;

use crate::accounts::Counter;
use crate::address_space::{now_ms, AddressSpace};
use crate::space::block::{BlockGuard, PageState};
use crate::space::mover::Coherent;
use crate::space::run::RunGuard;
use crate::staging::slot::EmptySlot;
use crate::staging::Staging;
use crate::units::{bytes_of, pages_in, BlockNumber, PageMask, PageRun, RunMask, SlotNumber};
use crate::units::{BLOCK_PAGES, EXTENT_PAGES, EXTENT_SLOTS};

impl AddressSpace {
    /// Moves the present pages of `mask` out of a block, into the block's slot or, if it has none,
    /// into `spare`, which the call then takes. Returns false if nothing was moved. If `may_wait`,
    /// asks the kernel to copy pages shared with a forked relative, which may wait for a fault to
    /// be served.
    pub fn evict(
        &self,
        spare: &mut Option<EmptySlot>,
        at: BlockNumber,
        mask: PageMask,
        may_wait: bool,
    ) -> bool {
        let (mut unshared, mut common) = (false, PageMask::NONE);
        loop {
            let Some(block) = self.space.table.try_lock(at) else { return false };
            let present = mask & block.mask(PageState::Kernel);
            let shared = shared_pages(self, &block, present);
            common |= shared.common;
            let wanted = present & !shared.kept;
            let own = block.slot();
            let Some(slot) = own
                .or(spare.as_ref().map(EmptySlot::number))
                .filter(|_| !wanted.is_empty() && !block.is_compressing())
            else {
                return false;
            };
            let Some(coherent) = self.coherent(&block) else {
                drop(block);
                self.apply_events();
                return false;
            };
            // The frame of a page that came back as a copy.
            let left_behind = self.staging.present(slot) & wanted;
            // SAFETY: the block is locked and not being compressed, and the wanted pages are the
            // kernel's: their frames in the slot are not needed.
            unsafe { self.staging.discard_pages(slot, left_behind) };
            let (mut moved, mut busy) = (PageMask::NONE, PageMask::NONE);
            for (first, count) in wanted.runs() {
                if !coherent.is_guarded(first) {
                    continue;
                }
                let (left, rest) = move_run(self, &coherent, &block, slot, (first, count), unshared);
                moved |= left;
                busy |= rest;
            }
            note_staged(&self.staging, &self.policy, &block, slot, moved);
            // Events may be read from here on: the table now shows that these pages have left.
            drop(coherent);
            if !moved.is_empty() {
                drop(block);
                (moved & common).pages().for_each(|index| self.store.note_common(at.page(index).key()));
                // The block's own slot is queued, or the thread that took it will queue it.
                if let Some(slot) = spare.take_if(|_| own.is_none()) {
                    self.staging.queue(slot.filled(), at);
                }
                return true;
            }
            // These pages are pinned or shared with relatives. Once the kernel has made private
            // copies, those can be moved.
            if unshared && !busy.is_empty() {
                block.refuse_briefly(busy, now_ms());
            }
            if unshared || busy.is_empty() || !may_wait {
                return false;
            }
            drop(block);
            for (first, count) in busy.runs() {
                sys::memory::unshare(at.page(first).address(), bytes_of(count));
            }
            unshared = true;
        }
    }

    /// Moves an extent's worth of adjacent full blocks out with one call. False if none moved.
    pub fn evict_extent(&self, at: BlockNumber) -> bool {
        let Some(first) = self.space.table.try_lock(at) else { return false };
        let mut run = RunGuard::of(first);
        run.extend(&self.space.table, EXTENT_SLOTS);
        let is_whole = |block: &BlockGuard<'_>| {
            block.mask(PageState::Kernel) == PageMask::ALL
                && block.slot().is_none()
                && !block.is_compressing()
        };
        if run.count() < EXTENT_SLOTS || !run.iter().all(is_whole) {
            return false;
        }
        let Some(extent) = self.staging.take_empty_extent() else { return false };
        let Some(coherent) = self.coherent(&run).filter(|coherent| coherent.is_guarded(0)) else {
            self.staging.give_extent(extent);
            return false;
        };
        let first = extent.first();
        let frame = self.staging.frame(first, 0);
        let target = frame.address();
        let progress = coherent.move_out(PageRun::new(0, EXTENT_PAGES), frame);
        let moved = match progress.stop {
            None => RunMask::ALL,
            Some(_) => self.space.mover.arrived(target, at.address(), EXTENT_PAGES),
        };
        if progress.stop.is_some() {
            // A late read of a moved page maps the zero page, as in `move_run`.
            let stray = self.space.mover.mapped(target, EXTENT_PAGES) & !moved;
            for index in 0..EXTENT_SLOTS {
                for (page, count) in stray.of_block(index).runs() {
                    // SAFETY: slots of an extent taken for this move, at places that received no
                    // page.
                    unsafe { self.staging.discard_stray(first.behind(index), page, count) };
                }
            }
        }
        for (index, block) in run.iter().enumerate() {
            note_staged(&self.staging, &self.policy, block, first.behind(index), moved.of_block(index));
        }
        // Events may be read from here on: the table now shows that these pages have left.
        drop(coherent);
        drop(run);
        for (index, slot) in extent.slots().enumerate() {
            match moved.of_block(index).is_empty() {
                true => self.staging.give(slot),
                false => self.staging.queue(slot.filled(), at + index),
            }
        }
        !moved.is_empty()
    }
}

/// Whether pages that relatives share stay in memory where each relative would keep a compressed
/// copy: they stay if the copies would take more than `PART` of the one page.
fn keeps_shared(store: &Zswap, sharers: u32) -> bool {
    const PART: (u64, u64) = (3, 4);
    /// The ratio assumed while the pool is empty.
    const COPY: (u64, u64) = (1, 3);
    let (pool, stored) = (store.pool_bytes(), bytes_of(store.stored_pages()));
    let (copy, page) = if stored == 0 { COPY } else { (pool, stored) };
    u128::from(sharers) * u128::from(copy) * u128::from(PART.1) > u128::from(page) * u128::from(PART.0)
}

/// Pages that relatives share.
#[derive(Clone, Copy)]
struct SharedPages {
    /// They leave, and their objects go into a segment.
    common: PageMask,
    /// They stay in memory for now.
    kept: PageMask,
}

impl SharedPages {
    const NONE: SharedPages = SharedPages { common: PageMask::NONE, kept: PageMask::NONE };
}

/// The pages of `mask` that relatives share.
fn shared_pages(pages: &AddressSpace, block: &BlockGuard<'_>, mask: PageMask) -> SharedPages {
    let sharers = pages.accounts.share().sharers;
    if mask.is_empty() || sharers == 0 {
        return SharedPages::NONE;
    }
    let shares = pages.policy.common_leave() && pages.accounts.shares_segments();
    if !shares && !keeps_shared(&pages.store, sharers) {
        return SharedPages::NONE;
    }
    let shared = pages.pagemap().shared(block.number().address(), BLOCK_PAGES) as u32;
    let shared = PageMask::from_bits(shared) & block.mask(PageState::Kernel);
    if shared.is_empty() || shares {
        return SharedPages { common: mask & shared, ..SharedPages::NONE };
    }
    pages.accounts.add(Counter::KeptShared, shared.count() as u64);
    block.refuse_briefly(shared, now_ms());
    SharedPages { kept: mask & shared, ..SharedPages::NONE }
}

fn note_staged(
    staging: &Staging,
    policy: &Policy,
    block: &BlockGuard<'_>,
    slot: SlotNumber,
    moved: PageMask,
) {
    if !moved.is_empty() {
        staging.arrived(slot, moved);
        staging.set_owner(slot, block.number());
        block.change(moved, PageState::Kernel, PageState::Staged);
        policy.evicted(block.history(), moved.bits());
        block.set_slot(Some(slot));
    }
}

/// Moves adjacent pages of a block into a slot. Returns the moved pages, and the pinned or shared
/// ones: each if it `passes` them, otherwise all pages from the first on, which then stay.
fn move_run(
    pages: &AddressSpace,
    coherent: &Coherent<'_>,
    block: &BlockGuard<'_>,
    slot: SlotNumber,
    (first, count): (usize, usize),
    passes: bool,
) -> (PageMask, PageMask) {
    let (mut at, end) = (first, first + count);
    let (mut moved, mut busy, mut heals) = (PageMask::NONE, PageMask::NONE, 0);
    while at < end {
        let progress = coherent.move_out(PageRun::new(at, end - at), pages.staging.frame(slot, at));
        let done = pages_in(progress.done);
        moved |= PageMask::span(at, done);
        at += done;
        match progress.stop {
            None => {}
            Some(Stop::Again) if done > 0 => {}
            Some(Stop::Busy) if passes => {
                busy |= PageMask::span(at, 1);
                at += 1;
            }
            Some(Stop::Busy) => {
                busy = PageMask::span(at, end - at);
                break;
            }
            Some(Stop::Again) if pages.space.mover.guard.is_changing() => break,
            Some(Stop::Hole | Stop::Again) => at += 1,
            Some(stop) => {
                heals += usize::from(stop == Stop::Exists);
                // The first page that has not moved is at `at`; others may have, for any error.
                let (source, target) = (block.page(at).address(), pages.staging.address(slot, at));
                let arrived =
                    pages.space.mover.arrived(target, source, end - at).counted_before(at).of_block(0);
                moved |= arrived;
                // Other pages in the slot are zero pages, mapped by late reads of moved pages.
                let present = pages.space.mover.mapped(target, end - at).counted_before(at).of_block(0);
                for (first, count) in (present & !arrived).runs() {
                    // SAFETY: a locked block's slot, or one taken for it, at places that received
                    // no page.
                    unsafe { pages.staging.discard_stray(slot, first, count) };
                }
                at += arrived.run_at(at);
                if stop != Stop::Exists || heals > 2 {
                    // Locked, read-only, executable or under a protection key: immovable.
                    let left = PageMask::span(at, end - at) & !moved;
                    pages.accounts.add(Counter::Immovable, left.count() as u64);
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
    use crate::testing::{self, evict, inbound, pages_with, read, write};
    use crate::transition::compress::Compressed;
    use crate::transition::fault_in::{fault_in_within, FaultedIn};

    #[test]
    fn more_pages_of_a_block_join_those_that_wait() {
        let Some((pages, base)) = pages_with(1) else { return };
        evict(pages, base, PageMask::span(0, 8));
        let slot = pages.lock(base).slot();
        let mut spare = pages.staging.take_empty();
        let other = spare.as_ref().unwrap().number();
        pages.lock(base).set_compressing(true);
        assert!(!pages.evict(&mut spare, base, PageMask::ALL, false), "its slot is being read");
        pages.lock(base).set_compressing(false);
        assert!(pages.evict(&mut spare, base, PageMask::span(0, 12), false));
        let number = |spare: &Option<EmptySlot>| spare.as_ref().unwrap().number();
        assert_eq!((number(&spare), pages.lock(base).slot(), pages.staging.queued_slots()), (other, slot, 1));
        assert_eq!(pages.lock(base).mask(PageState::Staged), PageMask::span(0, 12));

        // A page that comes back as a copy leaves its frame, and is evicted there again.
        let block = pages.lock(base);
        block.set_compressing(true);
        let mut inbound = inbound();
        assert_eq!(fault_in_within(pages, &block, &mut inbound, 3, true, 1), FaultedIn::Done(1));
        block.set_compressing(false);
        drop(block);
        write(base, 3, 77);
        assert!(pages.evict(&mut spare, base, PageMask::ALL, false));
        assert_eq!((number(&spare), pages.lock(base).mask(PageState::Staged)), (other, PageMask::ALL));
        assert_eq!(
            (pages.staging.pages(), pages.space.mover.mapped(base.address(), BLOCK_PAGES)),
            (16, RunMask::NONE)
        );
        let numbers = (0..BLOCK_PAGES).map(|page| read(testing::slot(pages, base), page));
        assert!(numbers.enumerate().all(|(page, number)| number == if page == 3 { 77 } else { page + 1 }));
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        let block = pages.lock(base);
        assert_eq!(
            (block.mask(PageState::Stored), block.slot(), pages.staging.queued_slots()),
            (PageMask::ALL, None, 0)
        );
    }

    #[test]
    fn a_page_that_is_wanted_while_it_is_compressed_comes_back_as_a_copy() {
        let Some((pages, base)) = pages_with(1) else { return };
        evict(pages, base, PageMask::ALL);
        let block = pages.lock(base);
        block.set_compressing(true);
        let mut inbound = inbound();
        assert_eq!(fault_in_within(pages, &block, &mut inbound, 0, true, 4), FaultedIn::Done(4));
        write(base, 2, 99);
        let slot = BlockNumber::of(pages.staging.address(block.staged_slot(), 0));
        assert_eq!([0, 1, 2, 3].map(|page| read(slot, page)), [1, 2, 3, 4]);
        assert_eq!(block.mask(PageState::Staged), PageMask::span(4, 12));
        block.set_compressing(false);
        drop(block);
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!((pages.lock(base).mask(PageState::Stored), read(base, 2)), (PageMask::span(4, 12), 99));
    }

    #[test]
    fn frames_that_others_refer_to_are_given_back() {
        let Some((pages, base)) = pages_with(1) else { return };
        pages.staging.stop_recycling();
        evict(pages, base, PageMask::ALL);
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!((pages.staging.pages(), pages.staging.ready_pages()), (0, 0));
        let mut inbound = inbound();
        assert_eq!(
            pages.fault_in(&mut inbound, base.page(0), false, BLOCK_PAGES),
            FaultedIn::Done(BLOCK_PAGES)
        );
        assert!((0..BLOCK_PAGES).all(|page| read(base, page) == page + 1));
    }
}
