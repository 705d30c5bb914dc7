//! Reclaim: which pages go, their way into staging, and from there into the pool.

use std::sync::atomic::Ordering;

use sys::pagemap::Run;
use sys::userfaultfd::{Stop, WRITE_PROTECT};
use sys::{futex, PAGE_SIZE};
use zswap::StoreError;

use crate::accounts::Count;
use crate::pager::{drop_slot_if_unused, now_ms, Pager, GROUP};
use crate::racks::RACK_PAGES;
use crate::remap::Way;
use crate::table::{
    runs, span, Block, PageState, BLOCK_BYTES, BLOCK_PAGES, COMPRESSING, NO_SLOT, RECENT, STUBBORN,
};

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
const RUNS: usize = 128;

/// The clock hand: where in the address space the reclaimer looks next.
pub struct Hand {
    at: usize,
    runs: [Run; RUNS],
    next: usize,
    count: usize,
    /// Blocks offered since the hand last passed the end of the address space.
    offered: usize,
    /// Whole rounds in which nothing was offered.
    pub(crate) barren_rounds: u32,
}

impl Hand {
    /// At the bottom of the address space.
    pub fn new() -> Self {
        Hand { at: 0, runs: [Run::default(); RUNS], next: 0, count: 0, offered: 0, barren_rounds: 0 }
    }
}

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
            self.halt.worker_leaves();
            if !worked {
                futex::wait(&self.pressure, seen, Some(50_000_000));
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
        if self.way != Way::Move || self.config.handlers < 2 || self.workers.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.evict_run(pages);
        if self.stock() < self.stream_reserve() / 2 && !self.streaming.swap(true, Ordering::Relaxed) {
            self.wake_workers();
        }
        self.help_to_a_rack() || self.stock() >= STREAM_PAGES_MIN
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

    /// Gives ready pages back to the system, 64 with one call if there is a rack of them; answers how many.
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
    /// four blocks at a time, or wait for room for as many: a block at a time costs four times the calls and interrupts.
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

    /// The next block with present pages, by the clock: blocks faulted in since the last round are passed over once.
    pub(crate) fn next_candidate(&self) -> Option<(usize, u32)> {
        let mut hand = self.hand.lock().expect("no panic while held");
        let mut wraps = 0;
        loop {
            while hand.next < hand.count {
                let run = hand.runs[hand.next];
                let base = run.start as usize & !(BLOCK_BYTES - 1);
                let end = (run.end as usize).min(base + BLOCK_BYTES);
                let first = (run.start as usize - base) / PAGE_SIZE;
                let mut mask = span(first, (end - run.start as usize) / PAGE_SIZE);
                if end == run.end as usize {
                    hand.next += 1;
                } else {
                    let index = hand.next;
                    hand.runs[index].start = end as u64;
                }
                // Runs of the same block are one candidate.
                while hand.next < hand.count && (hand.runs[hand.next].start as usize) < base + BLOCK_BYTES {
                    let run = hand.runs[hand.next];
                    let end = (run.end as usize).min(base + BLOCK_BYTES);
                    let first = (run.start as usize - base) / PAGE_SIZE;
                    mask |= span(first, (end - run.start as usize) / PAGE_SIZE);
                    if end < run.end as usize {
                        let index = hand.next;
                        hand.runs[index].start = end as u64;
                        break;
                    }
                    hand.next += 1;
                }
                let Ok(block) = self.table.block(base) else { continue };
                if block.clear(RECENT) || self.spare(block, base) {
                    continue;
                }
                hand.offered += 1;
                return Some((base, mask));
            }
            if !self.scan(&mut hand) {
                hand.at = 0;
                if hand.offered == 0 {
                    hand.barren_rounds = hand.barren_rounds.saturating_add(1);
                    wraps += 1;
                    // Twice round: the first round may only have cleared marks.
                    if wraps == 2 {
                        return None;
                    }
                } else {
                    hand.barren_rounds = 0;
                }
                hand.offered = 0;
            }
        }
    }

    /// Whether a block is passed over for a reason other than recent use.
    fn spare(&self, block: &Block, base: usize) -> bool {
        if block.has(STUBBORN) {
            // Tried again once in a while: what did not compress may have changed.
            if base / BLOCK_BYTES % 16 == (sys::now_ns() >> 28) as usize % 16 {
                block.clear(STUBBORN);
            }
            return true;
        }
        self.is_quarantined(block, base) || block.has(COMPRESSING)
    }

    pub(crate) fn is_quarantined(&self, block: &Block, base: usize) -> bool {
        let now = now_ms();
        block.is_quarantined(now) || self.table.is_leaf_quarantined(base, now)
    }

    /// Fills the hand with the next present runs; false at the end of the address space.
    fn scan(&self, hand: &mut Hand) -> bool {
        loop {
            let mapping = self.mappings.lock().expect("no panic while held").from(hand.at);
            let Some(mapping) = mapping else { return false };
            let start = hand.at.max(mapping.start);
            let (count, walked) = self.pagemap.present(start, mapping.end, &mut hand.runs);
            hand.at = walked.max(start + PAGE_SIZE);
            (hand.next, hand.count) = (0, count);
            if count > 0 {
                return true;
            }
        }
    }

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
            // SAFETY: the pages are moved, not lost: their state says staged before the lock is released, and the
            // staging page is missing, since the slot was empty.
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
    use crate::table::ALL_PAGES;
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

    #[test]
    fn ready_pages_are_given_back_by_the_rack() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(4);
        pager.register(base..base + 4 * BLOCK_BYTES);
        assert_eq!(pager.give_back_ready(), 0);
        assert!(pager.evict_neighbours(Role::Worker));
        assert_eq!(pager.staging.queued_slots(), 4, "four blocks went");
        assert!(!pager.evict_neighbours(Role::Worker), "nothing is left");
        let room = pager.staging.pages_max() - pager.staging.pages();
        for _ in 0..4 {
            assert_eq!(pager.compress_oldest(), Step::Progress);
        }
        assert!(pager.staging.has_ready_rack());
        assert_eq!((pager.give_back_ready(), pager.staging.pages()), (RACK_PAGES, 0));
        assert_eq!(pager.staging.pages_max() - pager.staging.pages(), room + RACK_PAGES);
    }

    #[test]
    fn a_handler_compresses_until_there_is_a_rack() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(32);
        pager.register(base..base + 32 * BLOCK_BYTES);
        while pager.room_for_rack() {
            assert!(pager.evict_neighbours(Role::Handler));
        }
        assert_eq!((pager.staging.queued_slots(), pager.staging.has_ready_rack()), (16, false));
        assert!(pager.help_to_a_rack());
        assert_eq!((pager.staging.queued_slots(), pager.staging.has_ready_rack()), (12, true));
        assert!(pager.help_to_a_rack(), "there is one");
        assert_eq!(pager.staging.queued_slots(), 12);
    }
}
