//! Workers: threads that make room beside the handlers.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use address_space::units::{bytes_of, EXTENT_PAGES};
use address_space::Counter;
use sys::futex;

use super::direct::RESTOCK_PAGES;
use super::free_list::RUN_PAGES_LEFT;
use super::promotion::PROMOTE_MS;
use super::steps::Role;
use super::watermarks::{next_action, Action, Figures, RunFigures};
use super::Reclaimer;

/// Pages that handlers bring in between two looks of another thread, if they measure more often.
const SEEN_PAGES: u64 = 4 * RESTOCK_PAGES as u64;
const SLEEP_NS: u64 = 50_000_000;

#[derive(Default)]
pub(super) struct Workers {
    /// A futex, raised when there may be work.
    pressure: AtomicU32,
    count: AtomicU32,
    working: AtomicU32,
    /// Runs come in: a worker should compress the pages evicted for them.
    feeds_runs: AtomicBool,
}

impl Workers {
    pub fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.working.store(0, Ordering::Relaxed);
        self.feeds_runs.store(false, Ordering::Relaxed);
    }

    pub fn begin(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Wakes all workers, so that they check for a halt.
    pub fn wake_all(&self) {
        self.pressure.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.pressure, i32::MAX);
    }

    /// Wakes one worker if all sleep.
    pub fn wake(&self) {
        self.pressure.fetch_add(1, Ordering::Release);
        if self.working.load(Ordering::Acquire) == 0 {
            futex::wake(&self.pressure, 1);
        }
    }

    /// Wakes another worker, because those awake do not keep up.
    fn wake_another(&self) {
        if self.working.load(Ordering::Relaxed) < self.count.load(Ordering::Relaxed) {
            futex::wake(&self.pressure, 1);
        }
    }

    fn asked(&self) -> u32 {
        self.pressure.load(Ordering::Acquire)
    }

    /// Starts to make extents ready. Returns whether no worker did.
    pub fn feed_runs(&self) -> bool {
        !self.feeds_runs.swap(true, Ordering::Relaxed)
    }

    pub fn feeds_runs(&self) -> bool {
        self.feeds_runs.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Woken {
    asked: u32,
    arrived: u64,
}

impl Reclaimer {
    /// A worker: sleeps until there is pressure, evicts and compresses until there is none.
    pub(crate) fn run(&self) {
        self.workers.begin();
        self.process.pages.own_threads.add();
        let mut last = Woken::default();
        loop {
            let (seen, arrived) = (self.workers.asked(), last.arrived);
            let is_wanted = self.is_wanted(seen, &mut last);
            let came_in = last.arrived.wrapping_sub(arrived);
            if !self.process.quiesce.worker_enters() {
                return;
            }
            self.workers.working.fetch_add(1, Ordering::AcqRel);
            let worked = is_wanted && self.reclaim_until_low();
            // Clear it in any case: a handler that needs more sets it again and wakes a worker.
            self.workers.feeds_runs.store(false, Ordering::Relaxed);
            self.workers.working.fetch_sub(1, Ordering::AcqRel);
            // Not counted as working, so that urgent work wakes another worker.
            let more =
                !worked && self.density.promotes_cold(came_in) && self.promotion.promote_cold(&self.process);
            self.process.quiesce.worker_leaves();
            if !worked {
                let ns = if more { u64::from(PROMOTE_MS) * 1_000_000 } else { SLEEP_NS };
                futex::wait(&self.workers.pressure, seen, Some(ns));
            }
        }
    }

    /// Whether an awake worker looks for work. False if it woke by timeout and handlers make room.
    fn is_wanted(&self, asked: u32, last: &mut Woken) -> bool {
        let before = std::mem::replace(last, Woken { asked, arrived: self.evictions.arrived() });
        asked != before.asked || !self.is_seen(last.arrived.wrapping_sub(before.arrived))
    }

    /// Whether handlers, which brought in `came_in` pages lately, see all growth of this process.
    /// They measure as they make room, more often than others. A thread that makes room beside them
    /// on another CPU is interrupted by every moved page: a worker and the control thread that ran
    /// for 7 % of the time took 9 to 14 % of a handler's.
    pub fn is_seen(&self, came_in: u64) -> bool {
        came_in >= SEEN_PAGES && !self.process.gauge.grows_unseen()
    }

    /// Works while there is work. Returns false if there was none.
    pub(super) fn reclaim_until_low(&self) -> bool {
        let mut worked = false;
        let mut total = self.process.measure();
        let mut turn = 0u32;
        while !self.process.quiesce.is_on() {
            turn += 1;
            if self.swap.is_backed_up() {
                // Pages that compress badly gain nothing until they are on disk.
                self.swap.request_writeback();
                sys::thread::sleep_ns(200_000);
                total = self.process.measure();
                continue;
            }
            if turn.is_multiple_of(8) {
                total = self.process.measure();
                if total > self.process.accounts.budget() {
                    self.workers.wake_another();
                }
            }
            let figures = self.figures(total);
            match next_action(&figures) {
                Action::GiveBack => {
                    let given = bytes_of(self.frames.give_back_ready(figures.runs.is_some()));
                    total = total.saturating_sub(given as u64);
                }
                Action::Compress => {
                    self.compress_oldest();
                }
                Action::MakeExtent => match self.process.pages.staging.make_fresh_extent() {
                    true => total += bytes_of(EXTENT_PAGES) as u64,
                    false => return worked,
                },
                Action::Reclaim => {
                    if !self.step(Role::Worker) {
                        self.swap.note_nothing_left();
                        self.swap.request_writeback();
                        if total > self.process.accounts.budget() {
                            self.process.accounts.add(Counter::OverBudget, 1);
                        }
                        return worked;
                    }
                }
                Action::Rest => return worked,
            }
            worked = true;
        }
        worked
    }

    /// The figures for the next action. Those for runs take locks and are read only while runs come
    /// in.
    fn figures(&self, total_bytes: u64) -> Figures {
        let runs = self.workers.feeds_runs().then(|| RunFigures {
            left_pages: RUN_PAGES_LEFT,
            is_fragmented: self.frames.goes_by_extents()
                && self.frames.scattered() > self.frames.scattered_max()
                && !self.process.pages.staging.has_room_for_extent(),
            lacks_extents: self.frames.lacks_extents(),
            queued_slots: self.process.pages.staging.queued_slots(),
        });
        Figures {
            total_bytes,
            low_bytes: self.process.low_water(),
            headroom_bytes: self.frames.headroom(runs.is_some()),
            ready_pages: self.frames.free_pages(),
            reserve_pages: self.frames.ready_reserve(),
            runs,
        }
    }

    pub(super) fn request_free_pages(&self) {
        if self.frames.lacks_extents() && self.workers.feed_runs() {
            self.workers.wake();
        }
    }

    /// Wakes a worker, unless there was nothing to move out a moment ago.
    pub(crate) fn request_reclaim(&self) {
        if !self.evictions.backs_off() {
            self.workers.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pager;

    #[test]
    fn growth_that_no_handler_sees_is_remembered_for_a_while() {
        let Some(pager) = pager() else { return };
        let reclaimer = &*pager.reclaimer;
        let is_seen = || [SEEN_PAGES - 1, SEEN_PAGES].map(|pages| reclaimer.is_seen(pages));
        assert_eq!(is_seen(), [false, true], "with few faults handlers hardly measure");
        reclaimer.process.gauge.note_growth(1 << 20);
        for _ in 0..64 {
            assert_eq!(is_seen(), [false; 2]);
            reclaimer.process.gauge.note_growth(0);
        }
        (0..1000).for_each(|_| reclaimer.process.gauge.note_growth(0));
        assert_eq!(is_seen(), [false, true]);
    }

    #[test]
    fn a_worker_leaves_the_room_to_handlers_that_see_all_growth() {
        let Some(pager) = pager() else { return };
        let (reclaimer, mut last) = (&*pager.reclaimer, Woken::default());
        let mut is_wanted = |pages: u64| {
            reclaimer.evictions.note_arrivals(pages as usize);
            reclaimer.is_wanted(reclaimer.workers.asked(), &mut last)
        };
        assert!(is_wanted(0), "no handler looks when nothing comes in");
        assert!(!is_wanted(SEEN_PAGES));
        reclaimer.workers.wake();
        assert!(is_wanted(SEEN_PAGES), "it was woken");
        assert!(!is_wanted(SEEN_PAGES), "once");
        reclaimer.process.gauge.note_growth(1 << 20);
        assert!(is_wanted(SEEN_PAGES), "no handler sees all of it");
    }

    #[test]
    fn a_worker_makes_pages_for_runs_of_first_touches_while_there_is_room() {
        let Some(pager) = pager() else { return };
        let (reclaimer, staging) = (&*pager.reclaimer, &pager.process.pages.staging);
        reclaimer.direct_reclaim(1, &|| {});
        reclaimer.direct_reclaim(EXTENT_PAGES, &|| {});
        assert!(!reclaimer.workers.feeds_runs(), "there is no worker");
        reclaimer.workers.begin();
        reclaimer.direct_reclaim(1, &|| {});
        assert!(!reclaimer.workers.feeds_runs(), "single pages are had from the kernel");
        reclaimer.direct_reclaim(EXTENT_PAGES, &|| {});
        assert!(reclaimer.workers.feeds_runs());
        assert!(reclaimer.reclaim_until_low());
        let ready = staging.ready_pages();
        assert!(ready >= reclaimer.frames.run_reserve() && ready.is_multiple_of(EXTENT_PAGES), "{ready}");
        assert!(staging.ready_extents() > 0);
        assert!(!reclaimer.reclaim_until_low(), "that is enough");
    }
}
