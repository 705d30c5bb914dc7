//! Long runs: a rack's 128 pages out and in with one call each.
//!
//! What cannot be done that way (a page shared with a relative, a border between mappings, an event, a neighbour whose
//! lock is held) is left to the ways for a block at a time, which know how to deal with each case.

use sys::memory::USER_END;
use sys::userfaultfd::Progress;
use sys::PAGE_SIZE;

use crate::accounts::Count;
use crate::pager::{Pager, GROUP};
use crate::racks::{RACK_PAGES, RACK_SLOTS};
use crate::reclaim::{Role, Step};
use crate::remap::Way;
use crate::service::Fault;
use crate::table::{
    runs, Block, PageState, ALL_PAGES, BLOCK_BYTES, BLOCK_PAGES, COMPRESSING, NO_SLOT, RECENT,
};

/// Shorter runs are brought in block by block.
const RUN_MIN: usize = 2 * BLOCK_PAGES;
/// Windows from which a whole run is brought in at once.
const WINDOW_MIN: usize = 4 * BLOCK_PAGES;
/// Slots that a handler compresses at most before it does without a rack.
const HELP_SLOTS: usize = 2 * RACK_SLOTS;
/// Blocks that a run may touch: one that begins inside a block is shorter, and the next begins with a block.
const BLOCKS_MAX: usize = RACK_SLOTS;

/// The locks of adjacent blocks, taken from the lowest on. All but the first are only tried, since a thread that waits
/// for a block may hold another.
struct Locked<'a> {
    blocks: [Option<&'a Block>; BLOCKS_MAX],
    count: usize,
}

impl<'a> Locked<'a> {
    fn none() -> Self {
        Locked { blocks: [None; BLOCKS_MAX], count: 0 }
    }

    fn add(&mut self, block: &'a Block) {
        self.blocks[self.count] = Some(block);
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &'a Block> + '_ {
        self.blocks[..self.count].iter().flatten().copied()
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.iter().for_each(Block::unlock);
    }
}

/// The sixteen bits of `mask` that belong to slot or block `index`.
fn part(mask: u128, index: usize) -> u32 {
    (mask >> (index * BLOCK_PAGES)) as u32 & ALL_PAGES
}

impl Pager {
    /// What a call to move `count` pages brought to `target`. The kernel's own count is not relied on when it stopped
    /// early; see [`Pager::arrived_after_all`].
    fn arrived(&self, progress: Progress, target: usize, source: usize, count: usize) -> u128 {
        match progress.stop {
            None => u128::MAX >> (RACK_PAGES - count),
            Some(_) => self.mapped(target, count) & !self.mapped(source, count),
        }
    }

    /// Which of the first `count` pages from `start` are mapped, as [`sys::pagemap::Pagemap::mapped`] for a rack.
    fn mapped(&self, start: usize, count: usize) -> u128 {
        const HALF: usize = RACK_PAGES / 2;
        let low = self.pagemap.mapped(start, count.min(HALF));
        let high = match count.saturating_sub(HALF) {
            0 => 0,
            rest => self.pagemap.mapped(start + HALF * PAGE_SIZE, rest),
        };
        u128::from(high) << HALF | u128::from(low)
    }

    /// Moves a rack's worth of adjacent blocks of present pages out; false when nothing was moved.
    pub(crate) fn evict_rack(&self, base: usize) -> bool {
        let mut locked = Locked::none();
        for index in 0..RACK_SLOTS {
            match self.table.block(base + index * BLOCK_BYTES) {
                Ok(block) if block.try_lock() => locked.add(block),
                _ => return false,
            }
        }
        let Some(epoch) = self.events.epoch() else { return false };
        let whole = |block: &Block| {
            block.mask(PageState::Kernel) == ALL_PAGES && block.slot() == NO_SLOT && !block.has(COMPRESSING)
        };
        if !locked.iter().all(whole) {
            return false;
        }
        let Some(first) = self.staging.take_empty_rack() else { return false };
        let Some(moving) = self.events.moving(epoch) else {
            self.staging.give_rack(first);
            return false;
        };
        // Asked when no event can come any more, as for single blocks.
        let quarantined =
            |(index, block): (usize, &Block)| self.is_quarantined(block, base + index * BLOCK_BYTES);
        if locked.iter().enumerate().any(quarantined) || !self.is_guarded(base) {
            self.staging.give_rack(first);
            return false;
        }
        let target = self.staging.address(first, 0);
        // SAFETY: the pages are moved, not lost: their state says staged before the locks are released, and the rack's
        // pages are missing, since it was empty.
        let progress = unsafe { self.staging_uffd.move_pages(target, base, RACK_PAGES * PAGE_SIZE, false) };
        let mut moved = self.arrived(progress, target, base, RACK_PAGES);
        if progress.stop.is_some() {
            // The zero page of somebody's late look at a page that had left, as in `move_out`.
            let stray = self.mapped(target, RACK_PAGES) & !moved;
            for index in 0..RACK_SLOTS {
                for (page, count) in runs(part(stray, index)) {
                    self.staging.discard_stray(first + index as u32, page, count);
                }
            }
        }
        if moved != 0 && !self.is_guarded(base) {
            for index in 0..RACK_SLOTS {
                let (slot, at) = (first + index as u32, base + index * BLOCK_BYTES);
                let back = self.move_back(slot, at, part(moved, index));
                moved &= !(u128::from(back) << (index * BLOCK_PAGES));
            }
        }
        for (index, block) in locked.iter().enumerate() {
            let (slot, mask) = (first + index as u32, part(moved, index));
            if mask != 0 {
                self.staging.arrived(slot, mask);
                self.staging.set_owner(slot, base + index * BLOCK_BYTES);
                block.change(mask, PageState::Kernel, PageState::Staged);
                block.set_slot(slot);
            }
        }
        // Only now may events be read: one that discards these pages must find them in the table.
        drop(moving);
        drop(locked);
        for index in 0..RACK_SLOTS {
            let slot = first + index as u32;
            match part(moved, index) {
                0 => self.staging.give(slot),
                _ => self.staging.queue(slot, base + index * BLOCK_BYTES),
            }
        }
        moved != 0
    }

    /// Moves out about as many pages as came in, a rack at a time where the clock offers neighbours.
    pub(crate) fn evict_run(&self, pages: usize) {
        let mut left = pages;
        while left >= RACK_PAGES && self.room_for_rack() {
            if !self.if_help_is_allowed(|| self.evict_neighbours(Role::Handler)) {
                return;
            }
            left -= RACK_PAGES;
        }
        // A run's rest. Whole racks that found no room wait until there is some: one block at a time they would cost
        // eight times the calls and interrupts.
        let rest = if left < RACK_PAGES { left } else { 0 };
        for _ in 0..rest.div_ceil(BLOCK_PAGES) {
            if !self.evict_step() {
                return;
            }
        }
    }

    pub(crate) fn room_for_rack(&self) -> bool {
        self.staging.pages_max().saturating_sub(self.staging.pages()) >= RACK_PAGES
    }

    /// Whether a rack's pages could be brought in with one call now.
    fn has_rack(&self) -> bool {
        self.staging.has_ready_rack() || self.room_for_rack()
    }

    /// Compresses until as many pages can be brought in with one call, when workers alone do not keep up; false when it does
    /// not come to that.
    pub(crate) fn help_to_a_rack(&self) -> bool {
        for _ in 0..HELP_SLOTS {
            if self.has_rack() {
                return true;
            }
            if !self.if_help_is_allowed(|| self.compress_oldest() == Step::Progress) {
                return false;
            }
        }
        self.has_rack()
    }

    /// Moves the next candidates out, a rack's worth, with one call if they lie side by side. False when none could be moved.
    pub(crate) fn evict_neighbours(&self, role: Role) -> bool {
        let mut candidates = [(0, 0); RACK_SLOTS];
        let mut count = 0;
        while count < RACK_SLOTS {
            let Some(candidate) = self.next_candidate() else { break };
            candidates[count] = candidate;
            count += 1;
        }
        let base = candidates[0].0;
        let are_neighbours = count == RACK_SLOTS
            && (0..)
                .zip(&candidates)
                .all(|(index, candidate)| *candidate == (base + index * BLOCK_BYTES, ALL_PAGES));
        if are_neighbours && self.evict_rack(base) {
            return true;
        }
        let mut evicted = false;
        for &(base, mask) in &candidates[..count] {
            let mut spare = self.room();
            if spare.is_none() {
                break;
            }
            evicted |= self.evict(&mut spare, base, mask, role);
            if let Some(slot) = spare {
                self.staging.give(slot);
            }
        }
        evicted
    }

    /// Brings in up to `window` pages from the page of a fault on, all stored or all never touched. Answers how many, or
    /// `None` when the page itself is not among them.
    pub(crate) fn bring_run(&self, fault: Fault, window: usize) -> Option<usize> {
        if self.way != Way::Move || window < WINDOW_MIN {
            return None;
        }
        let at = fault.address & !(PAGE_SIZE - 1);
        let base = at & !(BLOCK_BYTES - 1);
        let skipped = (at - base) / PAGE_SIZE;
        let mut locked = Locked::none();
        let block = self.table.block(base).ok()?;
        block.lock();
        locked.add(block);
        let epoch = self.events.epoch()?;
        let state = block.state(skipped);
        if state == PageState::Staged || state == PageState::Kernel && !fault.write {
            return None;
        }
        // Bit 0 is the first block's first page.
        let mut wanted = u128::from(block.mask(state));
        let touched = (skipped + window).div_ceil(BLOCK_PAGES).min(BLOCKS_MAX);
        for index in 1..touched {
            let next = base + index * BLOCK_BYTES;
            let block = if next < USER_END { self.table.block(next).ok() } else { None };
            let Some(block) = block.filter(|block| block.try_lock()) else { break };
            locked.add(block);
            wanted |= u128::from(block.mask(state)) << (index * BLOCK_PAGES);
        }
        let run = ((wanted >> skipped).trailing_ones() as usize).min(window.min(RACK_PAGES));
        if run < RUN_MIN {
            return None;
        }
        let first = self.filling_rack()?;
        let (source, key) = (self.staging.address(first, 0), (at / PAGE_SIZE) as u64);
        match state {
            PageState::Stored => self.decompress(key, source, run),
            // SAFETY: the rack was taken for this.
            _ => unsafe { std::ptr::write_bytes(source as *mut u8, 0, run * PAGE_SIZE) },
        }
        let Some(moving) = self.events.moving(epoch) else {
            self.staging.give_rack(first);
            return None;
        };
        // SAFETY: the source is this handler's and holds what belongs at `at`; present pages refuse.
        let progress = unsafe { self.uffd.move_pages(at, source, run * PAGE_SIZE, true) };
        let arrived = self.arrived(progress, at, source, run);
        for index in 0..RACK_SLOTS {
            self.staging.left(first + index as u32, part(arrived, index));
        }
        let arrived_at = arrived << skipped;
        for (index, block) in locked.iter().enumerate() {
            let mask = (arrived_at >> (index * BLOCK_PAGES)) as u32 & ALL_PAGES;
            if mask == 0 {
                continue;
            }
            block.set(RECENT);
            if state == PageState::Stored {
                block.change(mask, PageState::Stored, PageState::Kernel);
                for (page, count) in runs(mask) {
                    let key = (base + index * BLOCK_BYTES) / PAGE_SIZE + page;
                    self.store.invalidate(GROUP, key as u64, count as u64);
                }
            }
        }
        let pages = arrived.count_ones() as usize;
        if state == PageState::Stored {
            // While no event can be read: a fork that is read later must find them, as after `place`. Zeroes need not
            // be found, a child without them reads the same.
            self.note_arrival(at, run);
        }
        drop(moving);
        drop(locked);
        self.staging.give_rack(first);
        let count = if state == PageState::Stored { Count::PagesIn } else { Count::ZeroFilled };
        self.accounts.add(count, pages as u64);
        if progress.stop.is_some() && pages > 0 {
            self.uffd.wake(at, run * PAGE_SIZE);
        }
        match arrived.trailing_ones() as usize {
            0 => None,
            done => Some(done),
        }
    }

    /// A rack of pages to fill: ready ones, or ones that the kernel makes when they are written.
    fn filling_rack(&self) -> Option<u32> {
        if let Some(first) = self.staging.take_ready_rack() {
            return Some(first);
        }
        self.fresh_rack()
    }

    /// A rack of pages that the kernel makes now.
    fn fresh_rack(&self) -> Option<u32> {
        let first = if self.room_for_rack() { self.staging.take_empty_rack()? } else { return None };
        // With one call instead of a fault a page.
        sys::memory::populate(self.staging.address(first, 0), RACK_PAGES * PAGE_SIZE);
        (first..first + RACK_SLOTS as u32).for_each(|slot| self.staging.arrived(slot, ALL_PAGES));
        Some(first)
    }

    /// Adds a rack of fresh pages to those that are ready; false when there is no room.
    pub(crate) fn make_fresh_rack(&self) -> bool {
        let rack = self.fresh_rack();
        rack.inspect(|first| self.staging.give_rack(*first)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{blocks, pager, read};

    fn fault(address: usize, write: bool) -> Fault {
        Fault { address, write, thread: 1, read_ns: sys::now_ns() }
    }

    /// The masks of adjacent blocks in a state.
    fn masks(pager: &Pager, base: usize, state: PageState) -> [u32; RACK_SLOTS] {
        std::array::from_fn(|index| {
            pager.table.find(base + index * BLOCK_BYTES).map_or(0, |block| block.mask(state))
        })
    }

    fn all_numbers(base: usize, pages: std::ops::Range<usize>) {
        for page in pages {
            assert_eq!(read(base, page), page + 1, "page {page}");
        }
    }

    #[test]
    fn a_rack_of_pages_goes_out_is_stored_and_comes_back_with_one_call_each() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(16);
        pager.register(base..base + 16 * BLOCK_BYTES);
        let before = pager.staging.pages();
        assert!(pager.evict_rack(base));
        assert_eq!(pager.mapped(base, RACK_PAGES), 0);
        assert_eq!(masks(pager, base, PageState::Staged), [ALL_PAGES; 8]);
        assert_eq!(pager.staging.pages(), before + 128);
        assert!(!pager.evict_rack(base), "nothing is there");
        for _ in 0..8 {
            assert_eq!(pager.staging.ready_pages(), 0);
            pager.compress_oldest();
        }
        assert_eq!(masks(pager, base, PageState::Stored), [ALL_PAGES; 8]);
        assert_eq!((pager.staging.ready_pages(), pager.store.stored_pages()), (128, 128));
        assert!(pager.evict_rack(base + 8 * BLOCK_BYTES));
        while pager.staging.queued_slots() > 0 {
            pager.compress_oldest();
        }
        assert_eq!(pager.bring_run(fault(base, false), 16), None, "a short window");
        // From the middle of a block: what is left of eight blocks, or of the window.
        assert_eq!(pager.bring_run(fault(base + 5 * PAGE_SIZE, false), 64), Some(64));
        all_numbers(base, 5..69);
        assert_eq!(
            masks(pager, base, PageState::Stored),
            [0x1f, 0, 0, 0, 0xffe0, ALL_PAGES, ALL_PAGES, ALL_PAGES]
        );
        assert_eq!(pager.store.stored_pages(), 192);
        assert_eq!(pager.bring_run(fault(base, false), 128), None, "five pages are no long run");
        assert_eq!(pager.bring_run(fault(base + 69 * PAGE_SIZE, true), 128), Some(123));
        assert_eq!(
            pager.bring_run(fault(base + 192 * PAGE_SIZE, true), 128),
            Some(64),
            "up to the last stored page"
        );
        all_numbers(base, 5..256);
    }

    #[test]
    fn first_touches_are_brought_up_to_what_is_there() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(8);
        // SAFETY: this test's mapping.
        unsafe { libc::madvise((base + PAGE_SIZE) as *mut _, 50 * PAGE_SIZE, libc::MADV_DONTNEED) };
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert_eq!(pager.bring_run(fault(base + PAGE_SIZE, false), 128), None, "reading takes no memory");
        assert_eq!(pager.bring_run(fault(base, true), 128), None, "the page is there");
        assert_eq!(pager.bring_run(fault(base + PAGE_SIZE, true), 128), Some(50));
        assert!((1..51).all(|page| read(base, page) == 0));
        all_numbers(base, 51..128);
        assert_eq!(masks(pager, base, PageState::Kernel), [ALL_PAGES; 8]);
        assert_eq!(pager.staging.pages(), 78, "the rest of the rack");
    }

    #[test]
    fn blocks_that_are_not_whole_or_are_held_are_left_to_others() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(16);
        pager.register(base..base + 16 * BLOCK_BYTES);
        let third = pager.table.block(base + 2 * BLOCK_BYTES).unwrap();
        third.lock();
        assert!(!pager.evict_rack(base), "somebody holds a block");
        third.unlock();
        assert!(pager.evict_rack(base));
        assert!(third.try_lock(), "and lets go of all");
        third.unlock();
        let half = base + 8 * BLOCK_BYTES;
        pager.quarantine(half + 7 * BLOCK_BYTES, half + 8 * BLOCK_BYTES);
        assert!(!pager.evict_rack(half), "a discard is on its way");
        assert_eq!(pager.mapped(half, RACK_PAGES), u128::MAX);
        // Two mappings: the kernel moves nothing across their border.
        let other = blocks(16);
        pager.register(other..other + 16 * BLOCK_BYTES);
        let reading = libc::PROT_READ;
        // SAFETY: this test's mapping.
        unsafe { libc::mprotect((other + 2 * BLOCK_BYTES) as *mut _, BLOCK_BYTES, reading) };
        assert!(!pager.evict_rack(other));
        assert_eq!(masks(pager, other, PageState::Kernel), [ALL_PAGES; 8]);
        all_numbers(other, 0..256);
    }

    #[test]
    fn holes_stay_holes_and_the_rest_goes() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(8);
        // SAFETY: this test's mapping.
        unsafe { libc::madvise((base + 20 * PAGE_SIZE) as *mut _, PAGE_SIZE, libc::MADV_DONTNEED) };
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert!(pager.evict_rack(base));
        let staged = masks(pager, base, PageState::Staged);
        assert_eq!((staged[0], staged[1] & 0xf), (ALL_PAGES, 0xf), "what lies before the hole went");
        assert_eq!(pager.staging.pages() as u32, staged.iter().map(|mask| mask.count_ones()).sum::<u32>());
        while pager.staging.queued_slots() > 0 {
            pager.compress_oldest();
        }
        assert_eq!(masks(pager, base, PageState::Staged), [0; 8]);
    }
}
