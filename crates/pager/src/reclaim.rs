//! Reclaim: who makes room, when and how much of it, and the way from staging into the pool. Which pages go is for
//! [`crate::clock`] to say, and how they leave the program for [`crate::eviction`].

use std::sync::atomic::Ordering;

use sys::{futex, PAGE_SIZE};
use zswap::StoreError;

use crate::accounts::Count;
use crate::pager::{drop_slot_if_unused, now_ms, Pager, GROUP};
use crate::promotion::PROMOTE_MS;
use crate::racks::RACK_PAGES;
use crate::remap::Way;
use crate::table::{runs, span, Block, PageState, BLOCK_PAGES, COMPRESSING, NO_SLOT, STUBBORN};

/// Ready pages kept in stock for the fault handlers, per handler.
const READY_PER_HANDLER: usize = 3 * BLOCK_PAGES;
/// Pages that a handler makes ready at a time: enough to spread the cost, few enough to bound the wait.
const RESTOCK_PAGES: usize = 16;
/// Ready pages that a worker keeps in stock while runs come in: what it compresses in a millisecond, so that it need not
/// be woken for each run.
const STREAM_PAGES: usize = 512;
/// Ready pages below which a handler does not rely on a worker: two blocks.
const STREAM_PAGES_MIN: usize = 2 * BLOCK_PAGES;
/// Ready pages that a worker leaves for the handlers of streams when it gives pages back: with fewer, racks are given
/// back that a handler has the kernel make again a moment later.
const STREAM_PAGES_LEFT: usize = STREAM_PAGES_MIN + 4 * RACK_PAGES;
/// How long handlers do not look for something to move out after there was nothing anywhere, in milliseconds: to look
/// means two rounds through the whole address space, and to keep the program waiting for each page meanwhile.
const VAIN_MS: u32 = 2;
/// How long workers are not called for what is beyond the budget, likewise: each process of a large tree has some.
const VAIN_WORKERS_MS: u32 = 10;

/// Who reclaims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A worker: may wait.
    Worker,
    /// A fault handler: must not wait for faults.
    Handler,
}

/// What one step of reclaim came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Progress,
    Nothing,
}

impl Pager {
    /// A reclaim worker: sleeps until there is pressure, then evicts and compresses until there is none.
    pub fn reclaim(&self) {
        self.workers.fetch_add(1, Ordering::AcqRel);
        loop {
            let seen = self.pressure.load(Ordering::Acquire);
            self.halt.worker_enters();
            self.working.fetch_add(1, Ordering::AcqRel);
            let worked = self.reclaim_until_low();
            // However that ended: a handler that wants more says so again, and wakes somebody.
            self.streaming.store(false, Ordering::Relaxed);
            self.working.fetch_sub(1, Ordering::AcqRel);
            // Not counted as working: whoever has something urgent meanwhile wakes another.
            let more = !worked && self.promote_cold();
            self.halt.worker_leaves();
            if !worked {
                let ns = if more { PROMOTE_MS * 1_000_000 } else { 50_000_000 };
                futex::wait(&self.pressure, seen, Some(u64::from(ns)));
            }
        }
    }

    /// Works while there is something to do; false when there was nothing.
    fn reclaim_until_low(&self) -> bool {
        let mut worked = false;
        let mut total = self.measure();
        let mut turn = 0u32;
        while !self.halt.is_on() {
            turn += 1;
            if turn.is_multiple_of(8) {
                total = self.measure();
                if total > self.accounts.budget()
                    && self.working.load(Ordering::Relaxed) < self.workers.load(Ordering::Relaxed)
                {
                    futex::wake(&self.pressure, 1);
                }
            }
            let low = self.low_water();
            let reserve = self.ready_reserve();
            let streaming = self.streaming.load(Ordering::Relaxed);
            let ready = self.stock();
            // While a stream wants as many pages as there are, the pool grows all the same: what is used beyond the low
            // mark is given back before more is made ready.
            let enough = if streaming { STREAM_PAGES_LEFT } else { reserve };
            if total > low && ready > enough {
                total = total.saturating_sub((self.give_back_ready() * PAGE_SIZE) as u64);
            } else if streaming && ready < self.stream_reserve() && self.staging.queued_slots() > 0 {
                self.compress_oldest();
            } else if streaming && ready < self.stream_reserve() && total + self.headroom() < low {
                // Memory grows by runs of first touches: the pages are made here while the program uses the last ones.
                match self.make_fresh_rack() {
                    true => total += (RACK_PAGES * PAGE_SIZE) as u64,
                    false => return worked,
                }
            } else if total > low || (ready < reserve && total + self.headroom() > low) {
                if self.step(Role::Worker) == Step::Nothing {
                    self.note_stuck(total);
                    return worked;
                }
            } else {
                return worked;
            }
            worked = true;
        }
        worked
    }

    /// Bytes under the low water mark within which ready pages are kept in stock.
    fn headroom(&self) -> u64 {
        (self.staging.pages_max() * PAGE_SIZE) as u64
    }

    fn ready_reserve(&self) -> usize {
        (self.config.handlers * READY_PER_HANDLER).min(self.staging.pages_max() / 4)
    }

    fn stream_reserve(&self) -> usize {
        STREAM_PAGES.min(self.staging.pages_max() / 4)
    }

    /// Called by handlers before a fault is served, for the `pages` that the last one brought in: makes as many ready.
    ///
    /// For single pages on the spot, not by a worker on another CPU: while one runs, every page that moves, in or out,
    /// interrupts the other CPU for the TLB's sake, which in a virtual machine costs more than compressing the page. A
    /// random walk through a heap of 133 MiB in 80 took 27 s of system time with a worker beside it and 9 s on one CPU
    /// (2-CPU VM, November 2026). Runs of pages move by one system call and one interrupt: see [`Pager::make_way`].
    /// Beside that, workers are for what handlers do not see: memory that grows without faults.
    pub(crate) fn balance(&self, pages: usize) {
        let (low, budget) = (self.low_water(), self.accounts.budget());
        let total = self.accounts.total();
        if total + self.headroom() < low {
            if pages >= RACK_PAGES / 2 && self.may_share() {
                self.ask_for_stock();
            }
            return;
        }
        if pages > 1 && total <= budget && self.make_way(pages) {
            return;
        }
        // Single pages are paid for sixteen at a time, which is cheaper and leaves most faults alone.
        let (floor, enough) = match pages {
            0 | 1 => (self.config.handlers, RESTOCK_PAGES),
            _ => (self.ready_reserve(), self.ready_reserve()),
        };
        if self.stock() >= floor && total <= budget {
            return;
        }
        // Twice: once out of the program, once into the pool.
        for _ in 0..2 * pages.max(RESTOCK_PAGES).div_ceil(BLOCK_PAGES) + 2 {
            if self.stock() >= enough && total <= budget || !self.reclaim_step() {
                break;
            }
        }
        if self.measure() > budget {
            self.press();
            for _ in 0..4 {
                if !self.reclaim_step() {
                    self.slow_down();
                    break;
                }
                if self.measure() <= budget {
                    break;
                }
            }
        }
    }

    /// Lets the workers do what a handler cannot, the longer the more the budget is exceeded: 0.2 ms from 8 MiB on.
    fn slow_down(&self) {
        let over = self.accounts.total().saturating_sub(self.accounts.budget());
        sys::thread::sleep_ns((over / 40).min(200_000));
    }

    /// Moves as many pages out as a run brought in, for a worker to compress while the program and this handler go on.
    /// False when the workers cannot keep up, or there is none on another CPU.
    fn make_way(&self, pages: usize) -> bool {
        if !self.may_share() {
            return false;
        }
        self.evict_run(pages);
        self.ask_for_stock();
        self.help_to_a_rack() || self.stock() >= STREAM_PAGES_MIN
    }

    /// Whether runs can be shared out between a handler and a worker on another CPU.
    fn may_share(&self) -> bool {
        self.way == Way::Move && self.config.handlers > 1 && self.workers.load(Ordering::Relaxed) > 0
    }

    /// Has a worker see to it that there are pages for runs.
    fn ask_for_stock(&self) {
        let is_low = self.stock() < self.stream_reserve() / 2;
        if is_low && !self.streaming.swap(true, Ordering::Relaxed) {
            self.wake_workers();
        }
    }

    /// Wakes a worker, unless there was nothing for anybody to move out a moment ago.
    pub(crate) fn press(&self) {
        if !self.was_vain(VAIN_WORKERS_MS) {
            self.wake_workers();
        }
    }

    fn was_vain(&self, ms: u32) -> bool {
        now_ms().wrapping_sub(self.vain_ms.load(Ordering::Relaxed)) < ms
    }

    /// Wakes one worker if all sleep.
    pub fn wake_workers(&self) {
        self.pressure.fetch_add(1, Ordering::Release);
        if self.working.load(Ordering::Acquire) == 0 {
            futex::wake(&self.pressure, 1);
        }
    }

    /// One step of reclaim on behalf of a handler; false when there is nothing to reclaim.
    pub(crate) fn reclaim_step(&self) -> bool {
        self.if_help_is_allowed(|| self.help())
    }

    /// Has a handler reclaim unless a halt forbids it; false then.
    pub(crate) fn if_help_is_allowed(&self, help: impl FnOnce() -> bool) -> bool {
        // Announced before the halt is looked at, as the halt is raised before this is looked at.
        self.helping.fetch_add(1, Ordering::SeqCst);
        let progress = self.halt.allows_help() && help();
        self.helping.fetch_sub(1, Ordering::SeqCst);
        progress
    }

    /// Gives ready pages back to the system, with one call if there is a rack of them; answers how many.
    fn give_back_ready(&self) -> usize {
        if let Some(first) = self.staging.take_ready_rack() {
            self.staging.discard_rack(first);
            return RACK_PAGES;
        }
        let Some(slot) = self.staging.take_ready(1) else { return 0 };
        let pages = self.staging.discard(slot);
        self.staging.give(slot);
        pages
    }

    fn help(&self) -> bool {
        let is_rich = self.accounts.total() > self.low_water() && self.stock() > self.ready_reserve();
        is_rich && self.give_back_ready() != 0 || self.step(Role::Handler) == Step::Progress
    }

    /// Moves one block out on behalf of a handler, as far as staging has room.
    pub(crate) fn evict_step(&self) -> bool {
        self.if_help_is_allowed(|| self.room().is_some_and(|slot| self.evict_into(slot, Role::Handler)))
    }

    /// A slot to move a block into, if that many pages may be staged yet.
    pub(crate) fn room(&self) -> Option<u32> {
        let room = self.staging.pages_max().saturating_sub(self.staging.pages());
        if room >= BLOCK_PAGES {
            self.staging.take_empty()
        } else {
            None
        }
    }

    /// Moves one block out, or compresses the oldest that was moved out. Workers, and handlers while a stream comes in, move
    /// a rack at a time, or wait for room for as many: a block at a time costs eight times the calls and interrupts.
    fn step(&self, role: Role) -> Step {
        let wide = role == Role::Worker || self.streaming.load(Ordering::Relaxed);
        if wide && self.way == Way::Move {
            let progress = if self.room_for_rack() {
                self.evict_neighbours(role)
            } else {
                self.compress_oldest() == Step::Progress
            };
            if progress {
                return Step::Progress;
            }
        }
        // The queue is kept as long as staging allows: the longer it is, the better second chances tell hot from cold.
        match self.room() {
            Some(slot) if self.evict_into(slot, role) => Step::Progress,
            _ => self.compress_oldest(),
        }
    }

    /// Moves the next block out, into an empty slot if it has none; false when there is none that can be moved.
    fn evict_into(&self, slot: u32, role: Role) -> bool {
        let mut spare = Some(slot);
        let mut evicted = false;
        if role == Role::Worker || !self.was_vain(VAIN_MS) {
            for _ in 0..64 {
                let Some((base, mask)) = self.next_candidate() else {
                    self.vain_ms.store(now_ms(), Ordering::Relaxed);
                    break;
                };
                evicted = self.evict(&mut spare, base, mask, role);
                if evicted {
                    break;
                }
            }
        }
        if let Some(slot) = spare {
            self.staging.give(slot);
        }
        evicted
    }

    fn note_stuck(&self, total: u64) {
        if total > self.accounts.budget() {
            self.accounts.add(Count::OverBudget, 1);
        }
    }

    /// Compresses the slot that has waited longest; its pages become ready pages.
    pub(crate) fn compress_oldest(&self) -> Step {
        let Some(slot) = self.staging.oldest() else { return Step::Nothing };
        let base = self.staging.owner(slot);
        let block = self.table.find(base).expect("a queued slot's block exists");
        block.lock();
        let staged = if block.slot() == slot { block.mask(PageState::Staged) } else { 0 };
        if staged == 0 {
            if block.slot() == slot {
                block.set_slot(NO_SLOT);
            }
            block.unlock();
            self.release_slot(slot);
            return Step::Progress;
        }
        block.set(COMPRESSING);
        block.unlock();

        // No lock while compressing: a fault may move pages out of the slot meanwhile. What is then read from the slot
        // is meaningless, and its object is dropped below.
        let mut stored = 0;
        for (first, count) in runs(staged) {
            self.store_run(base, slot, first, count, &mut stored);
        }

        block.lock();
        let kept = block.mask(PageState::Staged) & staged;
        for (first, count) in runs(stored & !kept) {
            self.store.invalidate(GROUP, (base / PAGE_SIZE + first) as u64, count as u64);
        }
        block.change(stored & kept, PageState::Staged, PageState::Stored);
        self.accounts.add(Count::PagesOut, (stored & kept).count_ones().into());
        let refused = kept & !stored;
        let back = if refused != 0 { self.put_back(block, base, slot, refused) } else { true };
        drop_slot_if_unused(block);
        block.clear(COMPRESSING);
        block.unlock();
        if back {
            self.release_slot(slot);
        } else {
            self.staging.queue(slot, base);
        }
        if stored & kept != 0 || refused == 0 {
            Step::Progress
        } else {
            Step::Nothing
        }
    }

    /// Stores adjacent staged pages, folio by folio; around pages that refuse.
    fn store_run(&self, base: usize, slot: u32, first: usize, count: usize, stored: &mut u32) {
        let folio = self.config.folio_pages.min(BLOCK_PAGES);
        let (mut at, end) = (first, first + count);
        while at < end {
            let next = end.min((at / folio + 1) * folio);
            // SAFETY: these are readable pages of the slot, which is this worker's; a refault may take one away, which
            // makes it read as zeroes.
            let pages: [&[u8; PAGE_SIZE]; BLOCK_PAGES] = std::array::from_fn(|index| unsafe {
                &*(self.staging.address(slot, (at + index).min(next - 1)) as *const [u8; PAGE_SIZE])
            });
            let key = (base / PAGE_SIZE + at) as u64;
            self.accounts.add(Count::Batches, 1);
            self.accounts.add(Count::BatchPages, (next - at) as u64);
            match self.store.store(GROUP, key, &pages[..next - at]) {
                Ok(()) => {
                    *stored |= span(at, next - at);
                    at = next;
                }
                Err(StoreError::Poor { index }) => {
                    self.accounts.add(Count::Poor, 1);
                    if index > 0 {
                        self.store_run(base, slot, at, index, stored);
                    }
                    at += index + 1;
                }
                Err(_) => {
                    self.accounts.add(Count::Refused, (next - at) as u64);
                    at = next;
                }
            }
        }
    }

    /// Returns pages that the pool refused to the program, and leaves their block alone for a while. False when an
    /// event is in the way and they stay staged.
    fn put_back(&self, block: &Block, base: usize, slot: u32, mask: u32) -> bool {
        block.set(STUBBORN);
        let Some(epoch) = self.events.epoch() else { return false };
        let Some(_moving) = self.events.moving(epoch) else { return false };
        for (first, count) in runs(mask) {
            for index in first..first + count {
                let (target, source) = (base + index * PAGE_SIZE, self.staging.address(slot, index));
                if self.way == Way::Remap {
                    let progress = self.copy_in(target, source, 1);
                    let done = span(index, progress.done / PAGE_SIZE);
                    self.staging.discard_pages(slot, done);
                    block.change(done, PageState::Staged, PageState::Kernel);
                    if progress.stop.is_some() {
                        return false;
                    }
                    continue;
                }
                // A copied page's frame, shared with a forked relative, is left in the slot as a ready page.
                let Some(moved) = self.place_single(target, source) else { return false };
                if moved {
                    self.staging.left(slot, span(index, 1));
                }
                block.change(span(index, 1), PageState::Staged, PageState::Kernel);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::BLOCK_BYTES;
    use crate::trial::{blocks, pager};

    #[test]
    fn ready_pages_are_given_back_by_the_rack() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(8);
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert_eq!(pager.give_back_ready(), 0);
        assert!(pager.evict_neighbours(Role::Worker));
        assert_eq!(pager.staging.queued_slots(), 8, "eight blocks went");
        assert!(!pager.evict_neighbours(Role::Worker), "nothing is left");
        let room = pager.staging.pages_max() - pager.staging.pages();
        for _ in 0..8 {
            assert_eq!(pager.compress_oldest(), Step::Progress);
        }
        assert!(pager.staging.has_ready_rack());
        assert_eq!((pager.give_back_ready(), pager.staging.pages()), (RACK_PAGES, 0));
        assert_eq!(pager.staging.pages_max() - pager.staging.pages(), room + RACK_PAGES);
    }

    #[test]
    fn a_worker_makes_pages_for_runs_of_first_touches_while_there_is_room() {
        let Some(pager) = pager(false) else { return };
        pager.balance(1);
        pager.balance(RACK_PAGES);
        assert!(!pager.streaming.load(Ordering::Relaxed), "there is no worker");
        pager.workers.store(1, Ordering::Relaxed);
        pager.balance(1);
        assert!(!pager.streaming.load(Ordering::Relaxed), "single pages are had from the kernel");
        pager.balance(RACK_PAGES);
        assert!(pager.streaming.load(Ordering::Relaxed));
        assert!(pager.reclaim_until_low());
        let ready = pager.staging.ready_pages();
        assert!(ready >= pager.stream_reserve() && ready.is_multiple_of(RACK_PAGES), "{ready}");
        assert!(pager.staging.has_ready_rack());
        assert!(!pager.reclaim_until_low(), "that is enough");
    }

    #[test]
    fn a_handler_compresses_until_there_is_a_rack() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(32);
        pager.register(base..base + 32 * BLOCK_BYTES);
        while pager.room_for_rack() {
            assert!(pager.evict_neighbours(Role::Handler));
        }
        assert_eq!((pager.staging.queued_slots(), pager.staging.has_ready_rack()), (32, false));
        assert!(pager.help_to_a_rack());
        assert_eq!((pager.staging.queued_slots(), pager.staging.has_ready_rack()), (24, true));
        assert!(pager.help_to_a_rack(), "there is one");
        assert_eq!(pager.staging.queued_slots(), 24);
    }
}
