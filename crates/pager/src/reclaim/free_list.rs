//! The free list: frames ready for pages to come in. Single pages use scattered frames; runs need
//! whole extents.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use address_space::units::{bytes_of, pages_in, BLOCK_PAGES, EXTENT_PAGES};

use crate::process::Process;

/// The whole of the blocks, for [`FreeList::goes_by_extents`].
const ALL: u32 = 1 << 16;
const READY_PER_HANDLER: usize = 3 * BLOCK_PAGES;
/// Ready pages in whole extents that a worker keeps for runs, at most a quarter of staging. A
/// worker compresses this number in a millisecond.
const RUN_PAGES: usize = 512;
/// Ready pages (two blocks) below which a handler does not rely on a worker.
pub(crate) const RUN_PAGES_MIN: usize = 2 * BLOCK_PAGES;
/// Ready pages that a worker leaves for runs. With fewer, handlers would soon have the kernel
/// allocate the returned extents again.
pub(crate) const RUN_PAGES_LEFT: usize = RUN_PAGES_MIN + 4 * EXTENT_PAGES;

/// Where single blocks leave, staging uses 1/4 of its pages, and at least `SINGLES_MIN`.
const SINGLES_PART: usize = 4;
const SINGLES_MIN: usize = 8 * BLOCK_PAGES;

/// Frames that are ready, and the share of blocks that leave by the extent, which decides whether
/// scattered frames count.
pub(crate) struct FreeList {
    process: Arc<Process>,
    /// Share of recently evicted blocks that left by the extent, of [`ALL`].
    by_extent: AtomicU32,
}

impl FreeList {
    pub(super) fn new(process: Arc<Process>) -> Self {
        FreeList { process, by_extent: AtomicU32::new(0) }
    }

    pub fn note_gone(&self, is_extent: bool) {
        let share = self.by_extent.load(Ordering::Relaxed);
        let share = if is_extent { share + (ALL - share) / 8 } else { share - share.div_ceil(64) };
        self.by_extent.store(share, Ordering::Relaxed);
    }

    /// Whether most blocks leave by the extent, so that compressing them makes frames for runs.
    pub fn goes_by_extents(&self) -> bool {
        self.by_extent.load(Ordering::Relaxed) > ALL / 2
    }

    /// Pages that may come in before others must leave: ready frames, or, if the kernel allocates
    /// frames, room under the low water mark.
    pub(crate) fn free_pages(&self) -> usize {
        match self.process.pages.staging.recycles() {
            true => self.process.pages.staging.ready_pages(),
            false => pages_in(self.process.low_water().saturating_sub(self.process.measure()) as usize),
        }
    }

    /// Bytes below the low water mark within which ready pages are kept: the size of the reserve,
    /// for runs or for single pages. Further below, the kernel allocates frames and nothing need
    /// leave: reserving there would take memory from the program.
    pub(super) fn headroom(&self, for_runs: bool) -> u64 {
        let pages = match for_runs {
            true => self.process.pages.staging.pages_max(),
            false => self.ready_reserve(),
        };
        bytes_of(pages) as u64
    }

    /// Pages that may be staged now, waiting or ready. Few where single blocks leave: the longer
    /// those wait, the more of their pages are needed again, and ready frames take memory from the
    /// program.
    pub(crate) fn staged_max(&self) -> usize {
        let most = self.process.pages.staging.pages_max();
        match self.goes_by_extents() {
            true => most,
            false => (most / SINGLES_PART).max(SINGLES_MIN).min(most),
        }
    }

    pub(crate) fn ready_reserve(&self) -> usize {
        (self.process.config.handlers * READY_PER_HANDLER).min(self.staged_max() / 4)
    }

    pub(crate) fn run_reserve(&self) -> usize {
        RUN_PAGES.min(self.process.pages.staging.pages_max() / 4)
    }

    /// Whether a worker must provide frames for runs. When whole extents are evicted, fragmented
    /// frames do not count towards the reserve. When blocks leave one by one, compressing makes no
    /// extents, and a long queue is better. If half of staging is ready, the queue is not emptied
    /// for extents.
    pub(crate) fn lacks_extents(&self) -> bool {
        let ready = self.free_pages();
        let of_use = match self.goes_by_extents() && ready < self.process.pages.staging.pages_max() / 2 {
            true => ready.saturating_sub(self.scattered()),
            false => ready,
        };
        of_use < self.run_reserve()
    }

    /// Ready frames outside ready extents.
    pub(crate) fn scattered(&self) -> usize {
        let staging = &self.process.pages.staging;
        match self.process.pages.staging.recycles() {
            true => staging.ready_pages().saturating_sub(staging.ready_extents() * EXTENT_PAGES),
            false => 0,
        }
    }

    pub(crate) fn scattered_max(&self) -> usize {
        self.ready_reserve().max(self.process.pages.staging.pages_max() / 8)
    }

    /// Returns ready pages to the system, a whole extent with one call. Returns their number. While
    /// runs come in, scattered frames go first: the next run would need the extent again.
    pub(crate) fn give_back_ready(&self, for_runs: bool) -> usize {
        let staging = &self.process.pages.staging;
        let extent = || {
            staging.discard_extent(staging.take_ready_extent()?);
            Some(EXTENT_PAGES)
        };
        match for_runs {
            true => staging.discard_scattered().or_else(extent),
            false => extent().or_else(|| staging.discard_scattered()),
        }
        .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::steps::Role;
    use super::*;
    use crate::testing::pager_with;

    #[test]
    fn ready_pages_are_given_back_by_the_extent() {
        let Some((pager, _)) = pager_with(8) else { return };
        let (reclaimer, staging) = (&*pager.reclaimer, &pager.process.pages.staging);
        assert_eq!(reclaimer.frames.give_back_ready(false), 0);
        assert!(reclaimer.evict_neighbours(Role::Worker) > 0);
        assert_eq!(staging.queued_slots(), 8, "eight blocks went");
        assert!(reclaimer.evict_neighbours(Role::Worker) == 0, "nothing is left");
        let room = staging.pages_max() - staging.pages();
        for _ in 0..8 {
            assert!(reclaimer.compress_oldest());
        }
        assert_eq!(staging.ready_extents(), 1);
        assert_eq!((reclaimer.frames.give_back_ready(false), staging.pages()), (EXTENT_PAGES, 0));
        assert_eq!(staging.pages_max() - staging.pages(), room + EXTENT_PAGES);
    }

    #[test]
    fn frames_that_lie_scattered_are_no_stock_for_runs() {
        let Some((pager, _)) = pager_with(32) else { return };
        let (reclaimer, staging) = (&*pager.reclaimer, &pager.process.pages.staging);
        for _ in 0..12 {
            reclaimer.evictions.look_again();
            assert!(reclaimer.evict_step());
            assert!(reclaimer.compress_oldest());
        }
        assert_eq!(
            (staging.ready_pages(), staging.ready_extents(), reclaimer.frames.scattered()),
            (192, 0, 192)
        );
        assert!(!reclaimer.frames.lacks_extents(), "blocks go one by one: more would be no extents either");
        (0..8).for_each(|_| reclaimer.frames.note_gone(true));
        assert!(
            reclaimer.frames.lacks_extents(),
            "though more is ready than the {} kept",
            reclaimer.frames.run_reserve()
        );
        while staging.has_room_for_extent() {
            reclaimer.evictions.look_again();
            assert!(reclaimer.evict_neighbours(Role::Handler) > 0);
        }
        assert_eq!(staging.queued_slots(), 16, "two extents");
        reclaimer.workers.feed_runs();
        assert!(reclaimer.reclaim_until_low());
        assert!(!reclaimer.frames.lacks_extents() && staging.ready_extents() == 1, "one was compressed");
        assert!(
            reclaimer.frames.scattered() <= reclaimer.frames.scattered_max() || staging.has_room_for_extent()
        );
        let (ready, scattered) = (staging.ready_pages(), reclaimer.frames.scattered());
        assert!(scattered > 0);
        assert_eq!(reclaimer.frames.give_back_ready(true), BLOCK_PAGES, "scattered frames go before extents");
        assert_eq!(
            (staging.ready_pages(), reclaimer.frames.scattered()),
            (ready - BLOCK_PAGES, scattered - BLOCK_PAGES)
        );
        assert_eq!(
            (reclaimer.frames.give_back_ready(false), staging.ready_extents()),
            (EXTENT_PAGES, 0),
            "with one call"
        );
    }
}
