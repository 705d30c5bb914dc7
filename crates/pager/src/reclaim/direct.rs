//! Room that handlers make, before they serve a fault.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use address_space::units::{BLOCK_PAGES, EXTENT_PAGES, EXTENT_SLOTS};
use address_space::Counter;

use super::free_list::RUN_PAGES_MIN;
use super::steps::Role;
use super::Reclaimer;

/// Pages that a handler makes ready at a time: many to spread the cost, few to bound the wait.
pub(super) const RESTOCK_PAGES: usize = 16;
/// Steps of a handler over budget, before it leaves the rest to a worker.
const OVER_BUDGET_STEPS: u32 = 4;
/// Slots that a handler compresses at most to gain an extent.
const HELP_SLOTS: usize = 2 * EXTENT_SLOTS;
/// Longest wait of a fault for the disk while slightly over budget, and time between checks.
const WAIT_NS_MAX: u64 = 20_000_000;
const WAIT_LOOK_NS: u64 = 500_000;
/// Fruitless checks in a row after which waiting for the writer is useless.
const IN_VAIN_MAX: u32 = 4;

#[derive(Default)]
pub(crate) struct DirectReclaim {
    running: AtomicU32,
    /// Value of [`super::evictions::Evictions::arrived`] when a handler last measured.
    measured_at: AtomicU64,
}

impl DirectReclaim {
    pub fn reset(&self) {
        self.running.store(0, Ordering::Relaxed);
    }

    /// Waits until no handler reclaims. A halt prevents others from starting.
    pub fn wait(&self) {
        while self.running.load(Ordering::SeqCst) > 0 {
            sys::thread::sleep_ns(20_000);
        }
    }
}

impl Reclaimer {
    /// Called by handlers before they serve a fault: makes as many pages ready as the last fault
    /// brought in (`pages`).
    ///
    /// Single pages are not left to a worker on another CPU: while it runs, every moved page
    /// interrupts the other CPU to flush its TLB, which in a virtual machine costs more than
    /// compressing the page. A random walk through a heap of 133 MiB in 80 took 27 s of system time
    /// with a worker, and 9 s on one CPU (2-CPU VM, November 2026). A run moves with one system
    /// call and one interrupt: see [`Reclaimer::evict_for_run`]. Workers also handle what handlers
    /// do not see: memory that grows without faults.
    ///
    /// `read_on` reads events while this waits for the disk.
    pub(crate) fn direct_reclaim(&self, pages: usize, read_on: &dyn Fn()) {
        let (low, budget) = (self.process.low_water(), self.process.accounts.budget());
        let mut total = self.process.accounts.total();
        if total + self.frames.headroom(true) >= low {
            total = self.measure_after(RESTOCK_PAGES as u64);
        }
        if total + self.frames.headroom(pages >= BLOCK_PAGES) < low {
            if pages >= EXTENT_PAGES / 2 && self.may_share() {
                self.request_free_pages();
            }
            return;
        }
        if pages >= BLOCK_PAGES && total <= budget && self.evict_for_run(pages) {
            return;
        }
        // Single pages and short runs are paid for sixteen at a time, which is cheaper.
        let (floor, enough) = match pages {
            0..BLOCK_PAGES => (self.process.config.handlers.max(pages), RESTOCK_PAGES),
            _ => (self.frames.ready_reserve(), self.frames.ready_reserve()),
        };
        if self.frames.free_pages() >= floor && total <= budget {
            return;
        }
        // Each page takes two steps: out of the program, and into the pool.
        for _ in 0..2 * pages.max(RESTOCK_PAGES).div_ceil(BLOCK_PAGES) + 2 {
            if self.frames.free_pages() >= enough && total <= budget || !self.reclaim_step() {
                break;
            }
        }
        let total = self.measure_after(0);
        if pages < BLOCK_PAGES && total > self.process.gauge.pressure_mark() {
            self.give_back_some(enough);
        }
        if total > budget {
            let mut steps = 0..OVER_BUDGET_STEPS;
            let found = self.reclaim_over_budget(|| steps.next().is_some());
            if self.process.accounts.total() > budget {
                self.request_reclaim();
            }
            if !found {
                self.throttle();
            }
            self.wait_for_disk(read_on);
        }
    }

    /// The total of all processes, measured again if `pages` came in since a handler did. Relying
    /// on another thread's measurement, milliseconds old, could exceed the budget.
    fn measure_after(&self, pages: u64) -> u64 {
        let arrived = self.evictions.arrived();
        if arrived.wrapping_sub(self.direct.measured_at.load(Ordering::Relaxed)) < pages {
            return self.process.accounts.total();
        }
        self.direct.measured_at.store(arrived, Ordering::Relaxed);
        self.process.measure()
    }

    /// Makes room while over budget and `goes_on` is true. Returns false if nothing was left.
    pub fn reclaim_over_budget(&self, mut goes_on: impl FnMut() -> bool) -> bool {
        let budget = self.process.accounts.budget();
        while self.process.accounts.total() > budget && goes_on() {
            if !self.reclaim_step() {
                return false;
            }
            self.process.measure();
        }
        true
    }

    /// Returns some frames beyond the `kept` ready ones to the system: the pool grows when the
    /// evicted pages compress worse than the pages that came in.
    fn give_back_some(&self, kept: usize) {
        for _ in 0..2 * RESTOCK_PAGES.div_ceil(BLOCK_PAGES) + 2 {
            if self.frames.free_pages() > kept {
                self.frames.give_back_ready(false);
                return;
            }
            if !self.reclaim_step() {
                return;
            }
        }
    }

    /// Waits for the workers, longer the more the budget is exceeded: 0.2 ms from 8 MiB on. Does
    /// not wait if nothing can leave: 200 MiB of read-only memory cost a collector's write barrier
    /// twenty seconds of such waits.
    fn throttle(&self) {
        if !self.can_move_out() {
            return;
        }
        let over = self.process.accounts.total().saturating_sub(self.process.accounts.budget());
        sys::thread::sleep_ns((over / 40).min(200_000));
    }

    /// Moves out as many pages as a run brought in. A worker compresses them while the program and
    /// this handler run. Returns false if workers cannot keep up, or none runs on another CPU.
    fn evict_for_run(&self, pages: usize) -> bool {
        if !self.may_share() {
            return false;
        }
        self.evict_run(pages);
        self.request_free_pages();
        self.compress_to_an_extent() || self.frames.free_pages() >= RUN_PAGES_MIN
    }

    /// Whether a handler and a worker on another CPU can share the work on runs.
    fn may_share(&self) -> bool {
        self.process.config.handlers > 1 && self.workers.count() > 0
    }

    /// Moves out about `pages` pages, an extent at a time if the clock offers neighbours.
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
        // Wait for room for an extent: single blocks cost eight times the calls and interrupts. So
        // a gap among the candidates does not end an extent, although a few blocks more leave.
        while left > 0 && self.process.pages.staging.has_room_for_extent() {
            let mut went = 0;
            self.if_direct_reclaim_is_allowed(|| {
                went = self.evict_neighbours(Role::Handler);
                went > 0
            });
            left = left.saturating_sub(went.max(1));
        }
    }

    /// If workers do not keep up, compresses until an extent's worth of pages can be brought in
    /// with one call. Returns false if that is not reached.
    fn compress_to_an_extent(&self) -> bool {
        let staging = &self.process.pages.staging;
        let has_extent = || staging.ready_extents() > 0 || staging.has_room_for_extent();
        for _ in 0..HELP_SLOTS {
            if has_extent() {
                return true;
            }
            if !self.if_direct_reclaim_is_allowed(|| self.compress_oldest()) {
                return false;
            }
        }
        has_extent()
    }

    /// Called before pages come in while the budget is exceeded: waits until the writer's work is
    /// on disk. If the budget is exceeded slightly, stops waiting after a timeout. If it is
    /// exceeded by more, waits until there is room or writing makes no progress.
    pub(crate) fn wait_for_disk(&self, read_on: &dyn Fn()) {
        if !self.swap.is_on() {
            return;
        }
        let budget = self.process.accounts.budget();
        let (some, much) = (budget / 256 + (1 << 20), budget / 64 + (4 << 20));
        let began_ns = sys::now_ns();
        let (mut seen, mut in_vain) = (self.swap.checks_done(), 0);
        loop {
            let over = self.process.measure().saturating_sub(budget);
            let waited_ns = sys::now_ns() - began_ns;
            if over <= some || self.swap.is_paused() || self.process.quiesce.is_on() {
                break;
            }
            if over <= much && waited_ns > WAIT_NS_MAX {
                break;
            }
            let looks = self.swap.checks_done();
            if looks != seen {
                seen = looks;
                in_vain = if self.swap.progresses() { 0 } else { in_vain + 1 };
            }
            if self.reclaim_step() {
                in_vain = 0;
                continue;
            }
            if !self.swap.is_backed_up() {
                self.swap.note_nothing_left();
            }
            self.swap.request_writeback();
            // If nothing can leave, do not make each fault wait for the writer to find that again.
            let is_no_use = !self.swap.progresses() && !self.can_move_out();
            if in_vain >= IN_VAIN_MAX || is_no_use {
                break;
            }
            self.request_reclaim();
            sys::thread::sleep_ns(WAIT_LOOK_NS);
            read_on();
        }
        self.process.accounts.add(Counter::SwapWaitNs, sys::now_ns() - began_ns);
    }

    pub(crate) fn reclaim_step(&self) -> bool {
        self.if_direct_reclaim_is_allowed(|| self.direct_reclaim_step())
    }

    /// Runs `help` unless a halt forbids it. Returns false then.
    pub(crate) fn if_direct_reclaim_is_allowed(&self, help: impl FnOnce() -> bool) -> bool {
        // Announce first, then check for a halt. The halt is raised first, then checks this count.
        self.direct.running.fetch_add(1, Ordering::SeqCst);
        let progress = self.process.quiesce.allows_direct_reclaim() && help();
        self.direct.running.fetch_sub(1, Ordering::SeqCst);
        progress
    }

    fn direct_reclaim_step(&self) -> bool {
        if self.swap.is_backed_up() {
            self.swap.request_writeback();
            return false;
        }
        let is_rich = self.process.accounts.total() > self.process.low_water()
            && self.frames.free_pages() > self.frames.ready_reserve();
        let feeds_runs = self.workers.feeds_runs();
        is_rich && self.frames.give_back_ready(feeds_runs) != 0 || self.step(Role::Handler)
    }

    /// Moves one block out on behalf of a handler, if staging has room.
    pub(crate) fn evict_step(&self) -> bool {
        self.if_direct_reclaim_is_allowed(|| {
            self.room().is_some_and(|slot| self.evict_into(slot, Role::Handler))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{pager, pager_with, pager_with_gap};

    #[test]
    fn a_handler_gives_frames_back_and_keeps_some() {
        let Some((pager, _)) = pager_with(8) else { return };
        let (reclaimer, staging) = (&*pager.reclaimer, &pager.process.pages.staging);
        while staging.ready_pages() < 3 * BLOCK_PAGES {
            reclaimer.evictions.look_again();
            assert!(reclaimer.evict_step() && reclaimer.compress_oldest());
        }
        reclaimer.give_back_some(RESTOCK_PAGES);
        assert_eq!(staging.ready_pages(), 2 * BLOCK_PAGES);
        reclaimer.give_back_some(RESTOCK_PAGES);
        assert_eq!(staging.ready_pages(), BLOCK_PAGES);
        reclaimer.evictions.look_again();
        reclaimer.give_back_some(RESTOCK_PAGES);
        assert_eq!(staging.ready_pages(), BLOCK_PAGES);
        assert!(pager.process.pages.pages_out() > 3 * BLOCK_PAGES);
    }

    #[test]
    fn pages_that_came_in_near_the_mark_are_measured() {
        let Some(pager) = pager() else { return };
        let (reclaimer, pages) = (&*pager.reclaimer, RESTOCK_PAGES as u64);
        let measured_at = || reclaimer.direct.measured_at.load(Ordering::Relaxed);
        reclaimer.evictions.note_arrivals(RESTOCK_PAGES - 1);
        reclaimer.measure_after(pages);
        assert_eq!(measured_at(), 0);
        reclaimer.evictions.note_arrivals(1);
        reclaimer.measure_after(pages);
        assert_eq!(measured_at(), pages);
        reclaimer.evictions.note_arrivals(1);
        reclaimer.measure_after(pages);
        assert_eq!(measured_at(), pages, "a moment ago");
        reclaimer.measure_after(0);
        assert_eq!(measured_at(), pages + 1, "asked to");
    }

    #[test]
    fn a_run_with_a_gap_goes_by_extents_behind_it() {
        let Some((pager, _)) = pager_with_gap(32, 48..49) else { return };
        pager.reclaimer.evict_run(EXTENT_PAGES);
        let queued = pager.process.pages.staging.queued_slots();
        assert_eq!(queued, 3 + 1 + 8, "an extent, though four blocks were left to move");
    }

    #[test]
    fn a_handler_compresses_until_there_is_an_extent() {
        let Some((pager, _)) = pager_with(32) else { return };
        let staging = &pager.process.pages.staging;
        while staging.has_room_for_extent() {
            pager.reclaimer.evictions.look_again();
            assert!(pager.reclaimer.evict_neighbours(Role::Handler) > 0);
        }
        assert_eq!((staging.queued_slots(), staging.ready_extents() > 0), (32, false));
        assert!(pager.reclaimer.compress_to_an_extent());
        assert_eq!((staging.queued_slots(), staging.ready_extents() > 0), (24, true));
        assert!(pager.reclaimer.compress_to_an_extent(), "there is one");
        assert_eq!(staging.queued_slots(), 24);
    }
}
