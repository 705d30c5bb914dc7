//! Eviction: how the pages of a block leave the program for their staging slot, by `UFFDIO_MOVE`.

use sys::userfaultfd::{Stop, WRITE_PROTECT};
use sys::PAGE_SIZE;

use crate::pager::Pager;
use crate::reclaim::Role;
use crate::remap::Way;
use crate::table::{runs, span, Block, PageState, COMPRESSING, NO_SLOT, STUBBORN};

impl Pager {
    /// Whether a page is in a mapping registered with us and no change of mappings is under way. A mapping that was
    /// replaced a moment ago is not ours although the list says so, until the event about its predecessor was read;
    /// the kernel knows better. Asked with a move that cannot succeed, since its source is missing.
    pub(crate) fn is_guarded(&self, at: usize) -> bool {
        // SAFETY: nothing moves: the source page does not exist.
        let progress = unsafe { self.uffd.move_pages(at, self.staging.hole(), PAGE_SIZE, false) };
        match progress.stop {
            Some(Stop::Hole | Stop::Exists) => true,
            Some(_) => false,
            None => panic!("a page moved out of nowhere"),
        }
    }

    /// Moves `count` pages of the program into a slot; answers those that left, and where a shared one is among the
    /// others. The caller holds the block's lock and the right to move.
    fn move_out(
        &self,
        block: &Block,
        slot: u32,
        base: usize,
        first: usize,
        count: usize,
    ) -> (u32, Option<usize>) {
        let (mut at, end) = (first, first + count);
        let (mut moved, mut busy, mut heals) = (0, None, 0);
        while at < end {
            let (source, target) = (base + at * PAGE_SIZE, self.staging.address(slot, at));
            // SAFETY: the pages are moved, not lost: their state says staged before the lock is released. Their places
            // in the slot are empty: nobody else's slot has them, and what the books knew there `evict` has discarded.
            let progress =
                unsafe { self.staging_uffd.move_pages(target, source, (end - at) * PAGE_SIZE, false) };
            let done = progress.done / PAGE_SIZE;
            moved |= span(at, done);
            at += done;
            match progress.stop {
                None => {}
                Some(Stop::Again) if done > 0 => {}
                Some(Stop::Busy) => {
                    busy.get_or_insert(source);
                    at += 1;
                }
                Some(Stop::Hole | Stop::Again) => at += 1,
                Some(Stop::Exists) if heals < 2 => {
                    heals += 1;
                    let arrived = self.arrived_after_all(target, source, end - at);
                    moved |= arrived << at;
                    // Anything else in the slot is the zero page of somebody's late look at a page that had left.
                    let stray = self.pagemap.mapped(target, end - at) as u32 & !arrived;
                    for (first, count) in runs(stray) {
                        self.staging.discard_stray(slot, at + first, count);
                    }
                    at += arrived.trailing_ones() as usize;
                }
                Some(_) => {
                    block.set(STUBBORN);
                    at = end;
                }
            }
        }
        (moved, busy)
    }

    /// Which of `count` pages a move brought from `source` to `target` although it answered EEXIST.
    ///
    /// Linux 6.18 does that: when something inside makes it start over (a huge page to split, an accessed bit that
    /// changed), it forgets to count what the second attempt moves, tries once more and finds the pages there. Taking
    /// its word means losing them (seen as zeroes under `stress-ng --vm` with huge pages, November 2026).
    pub(crate) fn arrived_after_all(&self, target: usize, source: usize, count: usize) -> u32 {
        (self.pagemap.mapped(target, count) & !self.pagemap.mapped(source, count)) as u32
    }

    /// Undoes a move out of a mapping that turned out not to be registered: it replaced the one that was asked for
    /// between the question and the move. Pages of a mapping that is ours stay staged.
    pub(crate) fn move_back(&self, slot: u32, base: usize, mask: u32) -> u32 {
        let mut back = 0;
        for (first, count) in runs(mask) {
            let (target, source) = (base + first * PAGE_SIZE, self.staging.address(slot, first));
            // The pager's main descriptor refuses to move while the event is unread, and reading waits for us.
            if self.staging_uffd.register(target, count * PAGE_SIZE, WRITE_PROTECT).is_err() {
                continue;
            }
            // SAFETY: the pages return to where they were a moment ago.
            let progress = unsafe { self.staging_uffd.move_pages(target, source, count * PAGE_SIZE, true) };
            let mut returned = span(0, progress.done / PAGE_SIZE);
            if progress.stop.is_some() {
                returned |= self.arrived_after_all(target, source, count);
            }
            // A mapping that is gone again needs nothing.
            let _ = self.staging_uffd.unregister(target, count * PAGE_SIZE);
            back |= returned << first;
        }
        back
    }

    /// Moves the present pages of a block out: into the slot where others of its pages wait already, else into `spare`,
    /// which is taken then. False when nothing could be moved.
    pub(crate) fn evict(&self, spare: &mut Option<u32>, base: usize, mask: u32, role: Role) -> bool {
        if self.way == Way::Remap {
            return self.evict_by_remap(spare, base, mask);
        }
        let Ok(block) = self.table.block(base) else { return false };
        let mut unshared = false;
        loop {
            if !block.try_lock() {
                return false;
            }
            let Some(epoch) = self.events.epoch() else {
                block.unlock();
                self.apply_events();
                return false;
            };
            let wanted = mask & block.mask(PageState::Kernel);
            let own = Some(block.slot()).filter(|slot| *slot != NO_SLOT);
            let Some(slot) = own.or(*spare).filter(|_| wanted != 0 && !block.has(COMPRESSING)) else {
                block.unlock();
                return false;
            };
            let Some(moving) = self.events.moving(epoch) else {
                block.unlock();
                return false;
            };
            // Asked when no event can come any more: an earlier answer may be from before one.
            if self.is_quarantined(block, base) {
                block.unlock();
                return false;
            }
            // What a page left behind that came back as a copy.
            self.staging.discard_pages(slot, self.staging.present(slot) & wanted);
            let (mut moved, mut busy) = (0, None);
            for (first, count) in runs(wanted) {
                let at = base + first * PAGE_SIZE;
                if !self.is_guarded(at) {
                    continue;
                }
                let (mut left, shared) = self.move_out(block, slot, base, first, count);
                // The same question again: had the mapping changed hands meanwhile, its event would be unread still.
                if left != 0 && !self.is_guarded(at) {
                    left &= !self.move_back(slot, base, left);
                }
                moved |= left;
                busy = busy.or(shared.map(|start| (start, at + count * PAGE_SIZE - start)));
            }
            if moved != 0 {
                self.staging.arrived(slot, moved);
                self.staging.set_owner(slot, base);
                block.change(moved, PageState::Kernel, PageState::Staged);
                block.set_slot(slot);
            }
            // Only now may events be read: one that discards these pages must find them in the table.
            drop(moving);
            block.unlock();
            if moved != 0 {
                // The block's own slot is in the queue, or will be by whoever took it from there.
                if own.is_none() {
                    self.staging.queue(slot, base);
                    *spare = None;
                }
                return true;
            }
            match busy {
                // Shared with a forked child, or pinned. Ask the kernel for copies of our own, which can be moved.
                // That may wait for a fault to be served, so handlers leave it to the workers.
                Some(_) if role == Role::Handler => return false,
                Some((start, len)) if !unshared => {
                    sys::memory::unshare(start, len);
                    unshared = true;
                }
                Some(_) => {
                    block.set(STUBBORN);
                    return false;
                }
                None => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::Step;
    use crate::table::{ALL_PAGES, BLOCK_BYTES, BLOCK_PAGES};
    use crate::trial::{blocks, pager, read, write};

    #[test]
    fn more_pages_of_a_block_join_those_that_wait() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(1);
        pager.register(base..base + BLOCK_BYTES);
        let block = pager.table.block(base).unwrap();
        let mut spare = pager.staging.take_empty();
        assert!(pager.evict(&mut spare, base, 0x00ff, Role::Handler) && spare.is_none());
        let (slot, other) = (block.slot(), pager.staging.take_empty());
        spare = other;
        block.set(COMPRESSING);
        assert!(!pager.evict(&mut spare, base, ALL_PAGES, Role::Handler), "its slot is being read");
        block.clear(COMPRESSING);
        assert!(pager.evict(&mut spare, base, 0x0fff, Role::Handler));
        assert_eq!((spare, block.slot(), pager.staging.queued_slots()), (other, slot, 1));
        assert_eq!(block.mask(PageState::Staged), 0x0fff);

        // A page that comes back as a copy leaves its frame in the slot, and goes there once more.
        block.lock();
        assert!(pager.copy_in(base + 3 * PAGE_SIZE, pager.staging.address(slot, 3), 1).stop.is_none());
        block.change(1 << 3, PageState::Staged, PageState::Kernel);
        block.unlock();
        write(base, 3, 77);
        assert!(pager.evict(&mut spare, base, ALL_PAGES, Role::Handler));
        assert_eq!((spare, block.mask(PageState::Staged)), (other, ALL_PAGES));
        assert_eq!((pager.staging.pages(), pager.pagemap.mapped(base, BLOCK_PAGES)), (16, 0));
        let numbers = (0..BLOCK_PAGES).map(|page| read(pager.staging.address(slot, 0), page));
        assert!(numbers.enumerate().all(|(page, number)| number == if page == 3 { 77 } else { page + 1 }));
        assert_eq!(pager.compress_oldest(), Step::Progress);
        assert_eq!(
            (block.mask(PageState::Stored), block.slot(), pager.staging.queued_slots()),
            (ALL_PAGES, NO_SLOT, 0)
        );
    }
}
