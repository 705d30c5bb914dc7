//! Making room, a step at a time: by workers, and by handlers before they serve a fault.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use sys::futex;

use crate::accounts::Counter;
use crate::pages::{now_ms, Compressed, EXTENT_PAGES, EXTENT_SLOTS};
use crate::units::{bytes_of, ALL_PAGES, BLOCK_BYTES, BLOCK_PAGES, FOLIO_BLOCKS, FOLIO_PAGES};

use super::clock::FOLIO;
use super::free_list::{STREAM_PAGES_LEFT, STREAM_PAGES_MIN};
use super::promotion::PROMOTE_MS;
use super::watermarks::{next_action, Action, Figures, Stream};
use super::Reclaimer;

/// Pages that a handler makes ready at a time: enough to spread the cost, few enough to bound the
/// wait.
const RESTOCK_PAGES: usize = 16;
/// Pages that handlers bring in between two looks of another thread when they measure more often
/// than it does.
const SEEN_PAGES: u64 = 4 * RESTOCK_PAGES as u64;
/// How long no thread looks for something to move out after there was nothing anywhere, in
/// milliseconds: to look means two rounds through the whole address space. Doubled each time, up to
/// the most; over when as many pages came in as below.
const BACKOFF_MS: u32 = 2;
const BACKOFF_MS_MAX: u32 = 32;
const BACKOFF_PAGES: u64 = 512;
/// A look for something to move out that takes longer than this is not repeated at once.
const LOOK_NS_MAX: u64 = 1_000_000;
/// And so much longer for each page that could have gone and that the policy spared: that is no
/// sign of memory that cannot go.
const LOOK_NS_PAGE: u64 = 1_000;
/// Slots that a handler compresses at most before it does without an extent.
const HELP_SLOTS: usize = 2 * EXTENT_SLOTS;

/// All of what went, for [`Reclaim::by_extent`].
const ALL: u32 = 1 << 16;

/// What those who reclaim share.
pub(crate) struct Reclaim {
    /// Raised when there may be something to reclaim; workers sleep on it.
    pressure: AtomicU32,
    /// Reclaim workers that run.
    workers: AtomicU32,
    /// Workers that are awake.
    working: AtomicU32,
    /// Handlers that are reclaiming.
    direct_reclaimers: AtomicU32,
    /// Runs of pages come in, and a worker is to compress what goes out for them.
    streaming: AtomicBool,
    /// How many of the blocks that went lately went by the extent, of [`ALL`].
    by_extent: AtomicU32,
    /// When nothing was found anywhere that could be moved out, in milliseconds, and for how long
    /// no thread looks.
    backoff_since_ms: AtomicU32,
    backoff_ms: AtomicU32,
    /// Pages that came in, ever, and by then.
    arrived: AtomicU64,
    arrived_then: AtomicU64,
    /// Present pages that the policy was asked about.
    looked_at: AtomicU64,
}

impl Reclaim {
    pub fn new() -> Self {
        Reclaim {
            pressure: AtomicU32::new(0),
            workers: AtomicU32::new(0),
            working: AtomicU32::new(0),
            direct_reclaimers: AtomicU32::new(0),
            streaming: AtomicBool::new(false),
            by_extent: AtomicU32::new(0),
            backoff_since_ms: AtomicU32::new(0),
            backoff_ms: AtomicU32::new(0),
            arrived: AtomicU64::new(0),
            arrived_then: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
        }
    }

    /// In a forked child, which has none of the threads.
    pub fn reset(&self) {
        for count in [&self.workers, &self.working, &self.direct_reclaimers, &self.backoff_ms] {
            count.store(0, Ordering::Relaxed);
        }
        self.streaming.store(false, Ordering::Relaxed);
    }

    /// Workers there are.
    pub fn workers(&self) -> u32 {
        self.workers.load(Ordering::SeqCst)
    }

    /// Waits until no handler reclaims. The halt forbids that others begin.
    pub fn wait_for_direct_reclaim(&self) {
        while self.direct_reclaimers.load(Ordering::SeqCst) > 0 {
            sys::thread::sleep_ns(20_000);
        }
    }

    /// Has all workers look whether they are to stand still.
    pub fn wake_all(&self) {
        self.pressure.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.pressure, i32::MAX);
    }

    /// Notes pages that came in, any of which may go out again.
    pub fn note_arrivals(&self, pages: usize) {
        self.arrived.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Pages that ever came in.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Notes pages that the policy was asked about.
    pub fn note_looked_at(&self, pages: u64) {
        self.looked_at.fetch_add(pages, Ordering::Relaxed);
    }

    /// Notes that an extent went, or that one block did by itself.
    fn note_gone(&self, is_extent: bool) {
        let share = self.by_extent.load(Ordering::Relaxed);
        let share = if is_extent { share + (ALL - share) / 8 } else { share - share.div_ceil(64) };
        self.by_extent.store(share, Ordering::Relaxed);
    }

    /// Whether most of what goes goes by the extent, so that compressing it makes frames for runs.
    pub fn goes_by_extents(&self) -> bool {
        self.by_extent.load(Ordering::Relaxed) > ALL / 2
    }

    /// There are new mappings: looking for something to move out may be worth its while.
    pub fn look_again(&self) {
        self.backoff_ms.store(0, Ordering::Relaxed);
    }

    /// Nothing was found anywhere.
    fn back_off(&self) {
        let ms = (self.backoff_ms.load(Ordering::Relaxed) * 2).clamp(BACKOFF_MS, BACKOFF_MS_MAX);
        self.backoff_ms.store(ms, Ordering::Relaxed);
        self.backoff_since_ms.store(now_ms(), Ordering::Relaxed);
        self.arrived_then.store(self.arrived(), Ordering::Relaxed);
    }

    /// Something was found, but looking for it took long: memory is full of what cannot be moved
    /// out. Looking takes a small part of the time only.
    fn found_late(&self, ns: u64) {
        let ms = (ns * 8 / 1_000_000) as u32;
        self.backoff_ms.store(ms.clamp(BACKOFF_MS, 8 * BACKOFF_MS_MAX), Ordering::Relaxed);
        self.backoff_since_ms.store(now_ms(), Ordering::Relaxed);
        self.arrived_then.store(self.arrived(), Ordering::Relaxed);
    }

    /// Something was found.
    fn found(&self) {
        if self.backoff_ms.load(Ordering::Relaxed) != 0 {
            self.backoff_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Whether it is too early to look again after nothing was found.
    fn backs_off(&self) -> bool {
        let ms = self.backoff_ms.load(Ordering::Relaxed);
        ms != 0
            && now_ms().wrapping_sub(self.backoff_since_ms.load(Ordering::Relaxed)) < ms
            && self.arrived().wrapping_sub(self.arrived_then.load(Ordering::Relaxed)) < BACKOFF_PAGES
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

impl Reclaimer<'_> {
    /// A reclaim worker: sleeps until there is pressure, then evicts and compresses until there is
    /// none.
    pub(crate) fn run(&self) {
        self.reclaim.workers.fetch_add(1, Ordering::AcqRel);
        self.pages.add_own_thread();
        let (mut asked, mut arrived) = (0, 0);
        loop {
            let seen = self.reclaim.pressure.load(Ordering::Acquire);
            let came_in = self.arrived().wrapping_sub(std::mem::replace(&mut arrived, self.arrived()));
            let is_idle = std::mem::replace(&mut asked, seen) == seen && self.is_seen(came_in);
            if !self.quiesce.worker_enters() {
                return;
            }
            self.reclaim.working.fetch_add(1, Ordering::AcqRel);
            let worked = !is_idle && self.reclaim_until_low();
            // However that ended: a handler that wants more says so again, and wakes a worker.
            self.reclaim.streaming.store(false, Ordering::Relaxed);
            self.reclaim.working.fetch_sub(1, Ordering::AcqRel);
            // Not counted as working: a thread with something urgent wakes another.
            let more = !worked && self.promote_cold();
            self.quiesce.worker_leaves();
            if !worked {
                let ns = if more { PROMOTE_MS * 1_000_000 } else { 50_000_000 };
                futex::wait(&self.reclaim.pressure, seen, Some(u64::from(ns)));
            }
        }
    }

    /// Whether handlers, which brought in so many pages lately, see all that this process grows by.
    /// They measure as they make room, more often than others look. Who makes room beside them, on
    /// another CPU, has every page that moves interrupt it: a worker and the control thread that
    /// ran for 7 % of the time took 9 to 14 % of a handler's.
    pub fn is_seen(&self, came_in: u64) -> bool {
        came_in >= SEEN_PAGES && !self.gauge.grows_unseen()
    }

    /// Works while there is something to do; false when there was nothing.
    fn reclaim_until_low(&self) -> bool {
        let mut worked = false;
        let mut total = self.measure();
        let mut turn = 0u32;
        while !self.quiesce.is_on() {
            turn += 1;
            if self.is_backed_up() {
                // What does not compress, or little, is no gain before it is on disk.
                self.request_writeback();
                sys::thread::sleep_ns(200_000);
                total = self.measure();
                continue;
            }
            if turn.is_multiple_of(8) {
                total = self.measure();
                if total > self.accounts.budget()
                    && self.reclaim.working.load(Ordering::Relaxed)
                        < self.reclaim.workers.load(Ordering::Relaxed)
                {
                    futex::wake(&self.reclaim.pressure, 1);
                }
            }
            let figures = self.figures(total);
            match next_action(&figures) {
                Action::GiveBack => {
                    let given = bytes_of(self.give_back_ready(figures.stream.is_some()));
                    total = total.saturating_sub(given as u64);
                }
                Action::Compress => {
                    self.compress_oldest();
                }
                Action::MakeExtent => match self.pages.staging().make_fresh_extent() {
                    true => total += bytes_of(EXTENT_PAGES) as u64,
                    false => return worked,
                },
                Action::Reclaim => {
                    if self.step(Role::Worker) == Step::Nothing {
                        self.swap.note_nothing_left();
                        self.request_writeback();
                        self.note_stuck(total);
                        return worked;
                    }
                }
                Action::Rest => return worked,
            }
            worked = true;
        }
        worked
    }

    /// The figures that decide what a worker does next. Those of a stream take locks, and are asked
    /// for while there is one.
    fn figures(&self, total_bytes: u64) -> Figures {
        let stream = self.reclaim.streaming.load(Ordering::Relaxed).then(|| Stream {
            left_pages: STREAM_PAGES_LEFT,
            is_fragmented: self.reclaim.goes_by_extents()
                && self.scattered() > self.scattered_max()
                && !self.pages.staging().has_room_for_extent(),
            lacks_extents: self.lacks_extents(),
            queued_slots: self.pages.staging().queued_slots(),
        });
        Figures {
            total_bytes,
            low_bytes: self.low_water(),
            headroom_bytes: self.headroom(),
            ready_pages: self.free_pages(),
            reserve_pages: self.ready_reserve(),
            stream,
        }
    }

    /// Bytes under the low water mark within which ready pages are kept.
    fn headroom(&self) -> u64 {
        bytes_of(self.pages.staging().pages_max()) as u64
    }

    /// Called by handlers before a fault is served, for the `pages` that the last one brought in:
    /// makes as many ready.
    ///
    /// For single pages on the spot, not by a worker on another CPU: while one runs, every page
    /// that moves, in or out, interrupts the other CPU for the TLB's sake, which in a virtual
    /// machine costs more than compressing the page. A random walk through a heap of 133 MiB in 80
    /// took 27 s of system time with a worker beside it and 9 s on one CPU (2-CPU VM, November
    /// 2026). Runs of pages move by one system call and one interrupt: see
    /// [`Reclaimer::evict_for_run`]. Beside that, workers are for what handlers do not see: memory
    /// that grows without faults.
    ///
    /// `read_on` reads events while this waits for the disk.
    pub(crate) fn direct_reclaim(&self, pages: usize, read_on: &dyn Fn()) {
        let (low, budget) = (self.low_water(), self.accounts.budget());
        let total = self.accounts.total();
        if total + self.headroom() < low {
            if pages >= EXTENT_PAGES / 2 && self.may_share() {
                self.request_free_pages();
            }
            return;
        }
        if pages >= BLOCK_PAGES && total <= budget && self.evict_for_run(pages) {
            return;
        }
        // Single pages and short runs are paid for sixteen at a time, which is cheaper and leaves
        // most faults alone.
        let (floor, enough) = match pages {
            0..BLOCK_PAGES => (self.handlers.max(pages), RESTOCK_PAGES),
            _ => (self.ready_reserve(), self.ready_reserve()),
        };
        if self.free_pages() >= floor && total <= budget {
            return;
        }
        // A folio that was compressed leaves no frames for single pages: it is given back as a
        // whole, and the kernel makes others below the low water mark.
        if self.pages.moves_folios() && total + bytes_of(floor as u64) <= low {
            return;
        }
        // Twice: once out of the program, once into the pool.
        for _ in 0..2 * pages.max(RESTOCK_PAGES).div_ceil(BLOCK_PAGES) + 2 {
            let is_ready = match pages >= FOLIO_PAGES {
                true => self.pages.staging().ready_folios() > 0,
                false => self.free_pages() >= enough,
            };
            if is_ready && total <= budget || !self.reclaim_step() {
                break;
            }
        }
        let total = self.measure();
        if pages < BLOCK_PAGES && total > self.gauge.pressure_mark() {
            self.give_back_some(enough);
        }
        if total > budget {
            self.reclaim_over_budget(budget);
            self.wait_for_disk(read_on);
        }
    }

    /// Some steps on behalf of a handler while the budget is exceeded. A worker is woken when they
    /// are not enough.
    fn reclaim_over_budget(&self, budget: u64) {
        for _ in 0..4 {
            if !self.reclaim_step() {
                self.request_reclaim();
                self.throttle();
                return;
            }
            if self.measure() <= budget {
                return;
            }
        }
        self.request_reclaim();
    }

    /// Gives some frames back to the system beside the `kept` ones that are ready: the pool has
    /// grown, as it does when less dense pages went than came.
    fn give_back_some(&self, kept: usize) {
        for _ in 0..2 * RESTOCK_PAGES.div_ceil(BLOCK_PAGES) + 2 {
            if self.free_pages() > kept {
                self.give_back_ready(false);
                return;
            }
            if !self.reclaim_step() {
                return;
            }
        }
    }

    /// Whether something may be moved out, or wait to be compressed: not when a look has just found
    /// nothing, and not where moves would take pages from under a device.
    pub(crate) fn can_move_out(&self) -> bool {
        !self.pages.is_held(&self.files.maps)
            && (!self.reclaim.backs_off() || self.pages.staging().queued_slots() > 0)
    }

    /// Lets the workers do what a handler cannot, the longer the more the budget is exceeded: 0.2
    /// ms from 8 MiB on. Not when nothing can go: two hundred MiB that are read-only cost a
    /// collector's write barrier twenty seconds of such waits.
    fn throttle(&self) {
        if !self.can_move_out() {
            return;
        }
        let over = self.accounts.total().saturating_sub(self.accounts.budget());
        sys::thread::sleep_ns((over / 40).min(200_000));
    }

    /// Moves as many pages out as a run brought in, for a worker to compress while the program and
    /// this handler go on. False when the workers cannot keep up, or there is none on another CPU.
    fn evict_for_run(&self, pages: usize) -> bool {
        if !self.may_share() {
            return false;
        }
        self.evict_run(pages);
        self.request_free_pages();
        self.compress_to_an_extent(pages) || self.free_pages() >= STREAM_PAGES_MIN
    }

    /// Whether runs can be shared out between a handler and a worker on another CPU.
    fn may_share(&self) -> bool {
        self.pages.moves_frames() && self.handlers > 1 && self.reclaim.workers.load(Ordering::Relaxed) > 0
    }

    /// Has a worker see to it that there are pages for runs.
    fn request_free_pages(&self) {
        if self.lacks_extents() && !self.reclaim.streaming.swap(true, Ordering::Relaxed) {
            self.wake_workers();
        }
    }

    /// Wakes a worker, unless there was nothing to move out a moment ago.
    pub(crate) fn request_reclaim(&self) {
        if !self.reclaim.backs_off() {
            self.wake_workers();
        }
    }

    /// Wakes one worker if all sleep.
    pub(crate) fn wake_workers(&self) {
        self.reclaim.pressure.fetch_add(1, Ordering::Release);
        if self.reclaim.working.load(Ordering::Acquire) == 0 {
            futex::wake(&self.reclaim.pressure, 1);
        }
    }

    /// One step of reclaim on behalf of a handler; false when there is nothing to reclaim.
    pub(crate) fn reclaim_step(&self) -> bool {
        self.if_direct_reclaim_is_allowed(|| self.direct_reclaim_step())
    }

    /// Has a handler reclaim unless a halt forbids it; false then.
    pub(crate) fn if_direct_reclaim_is_allowed(&self, help: impl FnOnce() -> bool) -> bool {
        // Announced before the halt is looked at, as the halt is raised before this is looked at.
        self.reclaim.direct_reclaimers.fetch_add(1, Ordering::SeqCst);
        let progress = self.quiesce.allows_direct_reclaim() && help();
        self.reclaim.direct_reclaimers.fetch_sub(1, Ordering::SeqCst);
        progress
    }

    fn direct_reclaim_step(&self) -> bool {
        if self.is_backed_up() {
            self.request_writeback();
            return false;
        }
        let is_rich = self.accounts.total() > self.low_water() && self.free_pages() > self.ready_reserve();
        let streaming = self.reclaim.streaming.load(Ordering::Relaxed);
        is_rich && self.give_back_ready(streaming) != 0 || self.step(Role::Handler) == Step::Progress
    }

    /// Moves one block out on behalf of a handler, as far as staging has room.
    pub(crate) fn evict_step(&self) -> bool {
        self.if_direct_reclaim_is_allowed(|| {
            self.room().is_some_and(|slot| self.evict_into(slot, Role::Handler))
        })
    }

    /// A slot to move a block into, if that many pages may be staged yet.
    pub(crate) fn room(&self) -> Option<u32> {
        let room = self.pages.staging().pages_max().saturating_sub(self.pages.staging().pages());
        if room >= BLOCK_PAGES {
            self.pages.staging().take_empty()
        } else {
            None
        }
    }

    /// Moves one block out, or compresses the oldest that was moved out. Workers, and handlers
    /// while a stream comes in, move an extent at a time, or wait for room for as many: a block at
    /// a time costs eight times the calls and interrupts.
    fn step(&self, role: Role) -> Step {
        let wide = role == Role::Worker || self.reclaim.streaming.load(Ordering::Relaxed);
        if wide && self.pages.moves_frames() {
            let progress = if self.has_room() {
                self.evict_neighbours(role) > 0
            } else {
                self.compress_oldest() == Step::Progress
            };
            if progress {
                return Step::Progress;
            }
        }
        // The queue is kept as long as staging allows: the longer it is, the better second chances
        // tell hot from cold.
        match self.room() {
            Some(slot) if self.evict_into(slot, role) => Step::Progress,
            _ => self.compress_oldest(),
        }
    }

    /// Whether as many pages may be staged yet as go with one call. Ready folios make way when
    /// there is nothing to compress.
    fn has_room(&self) -> bool {
        let staging = self.pages.staging();
        match self.pages.moves_folios() {
            true => {
                if !staging.has_room_for_folio() && staging.queued_slots() == 0 {
                    staging.give_back_folios();
                }
                staging.has_room_for_folio()
            }
            false => staging.has_room_for_extent(),
        }
    }

    /// Moves a folio out; false when it cannot go as a whole.
    fn evict_folio(&self, base: usize) -> bool {
        !self.pages.is_held(&self.files.maps) && self.pages.evict_folio(base)
    }

    /// Moves the next block out, into an empty slot if it has none; false when there is none that
    /// can be moved.
    fn evict_into(&self, slot: u32, role: Role) -> bool {
        let mut spare = Some(slot);
        let mut evicted = false;
        if !self.reclaim.backs_off() {
            let began = self.begin_look();
            for _ in 0..64 {
                let Some((base, mask)) = self.next_candidate() else {
                    self.reclaim.back_off();
                    break;
                };
                if mask == FOLIO && !self.has_room() {
                    self.offer_again((base, mask));
                    break;
                }
                evicted = mask == FOLIO && self.evict_folio(base)
                    || self.evict(&mut spare, base, mask & ALL_PAGES, role);
                if evicted {
                    break;
                }
            }
            self.note_look(began, evicted);
        }
        if let Some(slot) = spare {
            self.pages.staging().give(slot);
        }
        evicted
    }

    fn note_stuck(&self, total: u64) {
        if total > self.accounts.budget() {
            self.accounts.add(Counter::OverBudget, 1);
        }
    }

    /// Compresses the slot that has waited longest; its pages become ready pages.
    pub(crate) fn compress_oldest(&self) -> Step {
        let before = self.pages.settled_ns(&self.files.maps);
        match self.pages.compress_oldest_moved_before(before) {
            // What was refused went back and is left alone: that makes room for others, too.
            Compressed::Stored | Compressed::Refused => Step::Progress,
            Compressed::Blocked | Compressed::Nothing => Step::Nothing,
        }
    }

    /// Moves out about as many pages as came in, an extent at a time where the clock offers
    /// neighbours.
    fn evict_run(&self, pages: usize) {
        let mut left = pages.div_ceil(BLOCK_PAGES);
        if left < EXTENT_SLOTS {
            for _ in 0..left {
                if !self.evict_step() {
                    return;
                }
            }
            return;
        }
        // What finds no room waits until there is room for an extent: one block at a time they
        // would cost eight times the calls and interrupts. So what lies before a gap does not end
        // it, though it come to some blocks more.
        // A folio more waits in the queue: a worker compresses it while the program uses the last.
        let is_ahead = || self.pages.staging().queued_slots() >= 2 * FOLIO_BLOCKS;
        while (left > 0 || pages >= FOLIO_PAGES && !is_ahead()) && self.has_room() {
            let mut went = 0;
            self.if_direct_reclaim_is_allowed(|| {
                went = self.evict_neighbours(Role::Handler);
                went > 0
            });
            if went == 0 && left == 0 {
                return;
            }
            left = left.saturating_sub(went.max(1));
        }
    }

    /// Compresses until as many pages can be brought in with one call as an extent has, or a folio
    /// after a folio, when workers alone do not keep up; false when it does not come to that.
    fn compress_to_an_extent(&self, pages: usize) -> bool {
        let (staging, is_folio) = (self.pages.staging(), pages >= FOLIO_PAGES);
        let has_extent = || match is_folio {
            // The kernel zeroes what it makes, so frames that others leave soon are waited for.
            true => staging.ready_folios() > 0 || staging.queued_slots() == 0 && staging.has_room_for_folio(),
            false => staging.ready_extents() > 0 || staging.has_room_for_extent(),
        };
        for _ in 0..if is_folio { 2 * FOLIO_BLOCKS } else { HELP_SLOTS } {
            if has_extent() {
                return true;
            }
            if !self.if_direct_reclaim_is_allowed(|| self.compress_oldest() == Step::Progress) {
                return false;
            }
        }
        has_extent()
    }

    /// Moves the next candidates out: an extent's worth with one call where they lie side by side,
    /// else those before a gap, one by one. Returns how many they were, 0 when none could be moved.
    pub(crate) fn evict_neighbours(&self, role: Role) -> usize {
        if self.reclaim.backs_off() {
            return 0;
        }
        let began = self.begin_look();
        let Some((base, mask)) = self.next_candidate() else {
            self.reclaim.back_off();
            return 0;
        };
        if mask == FOLIO && self.evict_folio(base) {
            self.note_look(began, true);
            return FOLIO_BLOCKS;
        }
        // What does not go as a whole is split by the first block that goes.
        let mask = mask & ALL_PAGES;
        let mut count = 1;
        while mask == ALL_PAGES && count < EXTENT_SLOTS {
            let Some(candidate) = self.next_candidate() else { break };
            if candidate != (base + count * BLOCK_BYTES, ALL_PAGES) {
                // It may be the first of as many.
                self.offer_again(candidate);
                break;
            }
            count += 1;
        }
        let mut evicted = count == EXTENT_SLOTS && self.pages.evict_extent(base);
        if evicted {
            self.reclaim.note_gone(true);
        } else {
            for index in 0..count {
                let mut spare = self.room();
                if spare.is_none() {
                    break;
                }
                evicted |= self.evict(&mut spare, base + index * BLOCK_BYTES, mask, role);
                if let Some(slot) = spare {
                    self.pages.staging().give(slot);
                }
            }
        }
        self.note_look(began, evicted);
        if evicted {
            count
        } else {
            0
        }
    }

    /// When a look begins, and how many pages had been looked at by then.
    fn begin_look(&self) -> (u64, u64) {
        (sys::now_ns(), self.reclaim.looked_at.load(Ordering::Relaxed))
    }

    /// Notes how a look for candidates went.
    fn note_look(&self, (began_ns, looked_at): (u64, u64), evicted: bool) {
        let pages = self.reclaim.looked_at.load(Ordering::Relaxed) - looked_at;
        match sys::now_ns() - began_ns {
            ns if ns > LOOK_NS_MAX + pages * LOOK_NS_PAGE => self.reclaim.found_late(ns),
            _ if evicted => self.reclaim.found(),
            _ => {}
        }
    }

    /// Moves the pages of one block out, if nothing forbids that now.
    fn evict(&self, spare: &mut Option<u32>, base: usize, mask: u32, role: Role) -> bool {
        if self.pages.is_held(&self.files.maps) {
            return false;
        }
        let _registrations = match self.pages.keeps_mappings().then(|| self.registrations.try_lock()) {
            None => None,
            Some(Ok(guard)) => Some(guard),
            Some(Err(_)) => return false,
        };
        let evicted = self.pages.evict(spare, base, mask, role == Role::Worker);
        if evicted {
            self.reclaim.note_gone(false);
        }
        evicted
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use sys::PAGE_SIZE;

    use super::*;
    use crate::trial::{blocks, pager};

    /// Blocks of which the fourth lacks a page.
    fn blocks_with_a_gap(count: usize) -> usize {
        let base = blocks(count);
        // SAFETY: this test's mapping.
        unsafe { libc::madvise((base + 3 * BLOCK_BYTES) as *mut _, PAGE_SIZE, libc::MADV_DONTNEED) };
        base
    }

    #[test]
    fn ready_pages_are_given_back_by_the_extent() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(8);
        let staging = pager.pages().staging();
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert_eq!(pager.reclaimer().give_back_ready(false), 0);
        assert!(pager.reclaimer().evict_neighbours(Role::Worker) > 0);
        assert_eq!(staging.queued_slots(), 8, "eight blocks went");
        assert!(pager.reclaimer().evict_neighbours(Role::Worker) == 0, "nothing is left");
        let room = staging.pages_max() - staging.pages();
        for _ in 0..8 {
            assert_eq!(pager.reclaimer().compress_oldest(), Step::Progress);
        }
        assert_eq!(staging.ready_extents(), 1);
        assert_eq!((pager.reclaimer().give_back_ready(false), staging.pages()), (EXTENT_PAGES, 0));
        assert_eq!(staging.pages_max() - staging.pages(), room + EXTENT_PAGES);
    }

    #[test]
    fn frames_that_lie_scattered_are_no_stock_for_runs() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(32);
        let staging = pager.pages().staging();
        pager.register(base..base + 32 * BLOCK_BYTES);
        for _ in 0..12 {
            pager.reclaimer().look_again();
            assert!(pager.reclaimer().evict_step());
            assert_eq!(pager.reclaimer().compress_oldest(), Step::Progress);
        }
        assert_eq!(
            (staging.ready_pages(), staging.ready_extents(), pager.reclaimer().scattered()),
            (192, 0, 192)
        );
        assert!(!pager.reclaimer().lacks_extents(), "blocks go one by one: more would be no extents either");
        (0..8).for_each(|_| pager.reclaimer().reclaim.note_gone(true));
        assert!(
            pager.reclaimer().lacks_extents(),
            "though more is ready than the {} kept",
            pager.reclaimer().stream_reserve()
        );
        while pager.pages().staging().has_room_for_extent() {
            pager.reclaimer().look_again();
            assert!(pager.reclaimer().evict_neighbours(Role::Handler) > 0);
        }
        assert_eq!(staging.queued_slots(), 16, "two extents");
        pager.reclaimer().reclaim.streaming.store(true, Ordering::Relaxed);
        assert!(pager.reclaimer().reclaim_until_low());
        assert!(!pager.reclaimer().lacks_extents() && staging.ready_extents() == 1, "one was compressed");
        assert!(
            pager.reclaimer().scattered() <= pager.reclaimer().scattered_max()
                || pager.pages().staging().has_room_for_extent()
        );
        let (ready, scattered) = (staging.ready_pages(), pager.reclaimer().scattered());
        assert!(scattered > 0);
        assert_eq!(
            pager.reclaimer().give_back_ready(true),
            BLOCK_PAGES,
            "scattered frames go before extents"
        );
        assert_eq!(
            (staging.ready_pages(), pager.reclaimer().scattered()),
            (ready - BLOCK_PAGES, scattered - BLOCK_PAGES)
        );
        assert_eq!(
            (pager.reclaimer().give_back_ready(false), staging.ready_extents()),
            (EXTENT_PAGES, 0),
            "with one call"
        );
    }

    #[test]
    fn growth_that_no_handler_sees_is_remembered_for_a_while() {
        let Some(pager) = pager(false) else { return };
        let reclaimer = pager.reclaimer();
        let is_seen = || [SEEN_PAGES - 1, SEEN_PAGES].map(|pages| reclaimer.is_seen(pages));
        assert_eq!(is_seen(), [false, true], "with few faults handlers hardly measure");
        reclaimer.gauge.note_growth(1 << 20);
        for _ in 0..64 {
            assert_eq!(is_seen(), [false; 2]);
            reclaimer.gauge.note_growth(0);
        }
        (0..1000).for_each(|_| reclaimer.gauge.note_growth(0));
        assert_eq!(is_seen(), [false, true]);
    }

    #[test]
    fn a_handler_gives_frames_back_and_keeps_some() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(8);
        pager.register(base..base + 8 * BLOCK_BYTES);
        let (reclaimer, staging) = (pager.reclaimer(), pager.pages().staging());
        while staging.ready_pages() < 3 * BLOCK_PAGES {
            reclaimer.look_again();
            assert!(reclaimer.evict_step() && reclaimer.compress_oldest() == Step::Progress);
        }
        reclaimer.give_back_some(RESTOCK_PAGES);
        assert_eq!(staging.ready_pages(), 2 * BLOCK_PAGES);
        reclaimer.give_back_some(RESTOCK_PAGES);
        assert_eq!(staging.ready_pages(), BLOCK_PAGES);
        // It makes more before it gives some back.
        reclaimer.look_again();
        reclaimer.give_back_some(RESTOCK_PAGES);
        assert_eq!(staging.ready_pages(), BLOCK_PAGES);
        assert!(pager.pages().pages_out() > 3 * BLOCK_PAGES);
    }

    #[test]
    fn what_lies_behind_a_gap_goes_as_a_whole() {
        let Some(pager) = pager(false) else { return };
        let base = blocks_with_a_gap(16);
        pager.register(base..base + 16 * BLOCK_BYTES);
        let evict = |_| {
            // However long the last look took.
            pager.reclaimer().look_again();
            pager.reclaimer().evict_neighbours(Role::Worker)
        };
        let went: Vec<usize> = (0..4).map(evict).collect();
        assert_eq!(went, [3, 1, 8, 4], "before the gap, the block that has one, an extent, the rest");
        assert_eq!(pager.pages().staging().pages(), 16 * BLOCK_PAGES - 1);
    }

    #[test]
    fn nobody_looks_again_for_a_while_when_there_is_nothing_to_move_out() {
        let Some(pager) = pager(false) else { return };
        assert!(!pager.reclaimer().reclaim.backs_off());
        assert!(pager.reclaimer().evict_neighbours(Role::Worker) == 0);
        assert!(pager.reclaimer().reclaim.backs_off());
        let base = blocks(8);
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert!(!pager.reclaimer().reclaim.backs_off(), "there is a new mapping");
        assert!(pager.reclaimer().evict_neighbours(Role::Worker) > 0);
        assert!(
            pager.reclaimer().evict_neighbours(Role::Worker) == 0 && pager.reclaimer().reclaim.backs_off()
        );
        pager.reclaimer().reclaim.note_arrivals(BACKOFF_PAGES as usize);
        assert!(!pager.reclaimer().reclaim.backs_off(), "pages came in that can go out");
    }

    #[test]
    fn pages_that_do_not_compress_come_back_and_are_left_alone() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(8);
        let mut word = 88_172_645_463_325_252u64;
        let values: Vec<u64> = (0..8 * BLOCK_BYTES / 8)
            .map(|_| {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                word
            })
            .collect();
        // SAFETY: eight blocks of this test's.
        let memory = unsafe { std::slice::from_raw_parts_mut(base as *mut u64, values.len()) };
        memory.copy_from_slice(&values);
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert!(pager.reclaimer().evict_neighbours(Role::Worker) > 0);
        while pager.pages().staging().queued_slots() > 0 {
            assert_eq!(pager.reclaimer().compress_oldest(), Step::Progress, "all are refused, and back");
        }
        assert_eq!(pager.pages().pages_out(), 0);
        assert!(memory == values);
        assert!(pager.reclaimer().evict_neighbours(Role::Worker) == 0, "they are not tried again");
    }

    #[test]
    fn a_worker_makes_pages_for_runs_of_first_touches_while_there_is_room() {
        let Some(pager) = pager(false) else { return };
        pager.reclaimer().direct_reclaim(1, &|| {});
        pager.reclaimer().direct_reclaim(EXTENT_PAGES, &|| {});
        assert!(!pager.reclaimer().reclaim.streaming.load(Ordering::Relaxed), "there is no worker");
        pager.reclaimer().reclaim.workers.store(1, Ordering::Relaxed);
        pager.reclaimer().direct_reclaim(1, &|| {});
        assert!(
            !pager.reclaimer().reclaim.streaming.load(Ordering::Relaxed),
            "single pages are had from the kernel"
        );
        pager.reclaimer().direct_reclaim(EXTENT_PAGES, &|| {});
        assert!(pager.reclaimer().reclaim.streaming.load(Ordering::Relaxed));
        assert!(pager.reclaimer().reclaim_until_low());
        let ready = pager.pages().staging().ready_pages();
        assert!(ready >= pager.reclaimer().stream_reserve() && ready.is_multiple_of(EXTENT_PAGES), "{ready}");
        assert!(pager.pages().staging().ready_extents() > 0);
        assert!(!pager.reclaimer().reclaim_until_low(), "that is enough");
    }

    #[test]
    fn a_run_with_a_gap_goes_by_extents_behind_it() {
        let Some(pager) = pager(false) else { return };
        let base = blocks_with_a_gap(32);
        pager.register(base..base + 32 * BLOCK_BYTES);
        pager.reclaimer().evict_run(EXTENT_PAGES);
        assert_eq!(
            pager.pages().staging().queued_slots(),
            3 + 1 + 8,
            "an extent, though four blocks were left to move"
        );
    }

    #[test]
    fn a_handler_compresses_until_there_is_an_extent() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(32);
        let staging = pager.pages().staging();
        pager.register(base..base + 32 * BLOCK_BYTES);
        while pager.pages().staging().has_room_for_extent() {
            // However long the last look took.
            pager.reclaimer().look_again();
            assert!(pager.reclaimer().evict_neighbours(Role::Handler) > 0);
        }
        assert_eq!((staging.queued_slots(), staging.ready_extents() > 0), (32, false));
        assert!(pager.reclaimer().compress_to_an_extent(EXTENT_PAGES));
        assert_eq!((staging.queued_slots(), staging.ready_extents() > 0), (24, true));
        assert!(pager.reclaimer().compress_to_an_extent(EXTENT_PAGES), "there is one");
        assert_eq!(staging.queued_slots(), 24);
    }
}
