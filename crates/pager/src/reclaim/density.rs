//! Whether pages are stored in the compressor's second tier at once, once cold, or never.
//!
//! A dense object is slower to make and read, but leaves memory to the program: how much follows
//! from samples in both tiers. Its value follows from how soon pages return: a page that was out
//! while fewer pages came in than the additional memory holds would have stayed in memory. That is
//! nine tenths of SQLite's pages in two thirds of its memory, and 4 % of a dictionary's. For random
//! access to twice the memory, the dense tier takes 1.1 to 1.6 times as long.
//!
//! Returns depend on the memory that the present tier leaves. So the other tier is tried from time
//! to time, less often the more often it was worse.

use std::sync::atomic::{AtomicBool, Ordering};

use address_space::AddressSpace;
use replacement::policy::TICKS;
use sys::PAGE_SIZE;
use zswap::TierSample;

/// Sampled pages needed for a decision.
const SAMPLED_MIN: u64 = 32;
/// Decisions for each memory's worth of returned pages.
const DECIDED_PER_MEMORY: u64 = 8;
const AVERAGED: u64 = 4;
/// Per cent of returning pages to spare: to choose the dense tier, and to keep it.
const SPARED_PERCENT: [u64; 2] = [24, 12];
/// Decisions for which the dense tier is kept: the first time, and at most.
const KEPT: u64 = 8 * DECIDED_PER_MEMORY;
const KEPT_MAX: u64 = 8 * KEPT;
/// Per cent that the dense tier must add to resident pages to promote cold ones at rest.
const COLD_GAIN_PERCENT: u64 = 6;
/// A program rests if fewer pages came in since a worker last looked, some ten milliseconds before.
/// Otherwise every moved page interrupts the worker that promotes on another CPU.
const AT_REST_PAGES: u64 = 16;

pub(crate) struct Density {
    has_tiers: bool,
    is_dense: AtomicBool,
    cold_gains: AtomicBool,
}

/// The figures behind a decision, used by one thread.
#[derive(Debug, Default)]
pub(crate) struct DensityFigures {
    /// Pages loaded, stored and returned on demand at the last decision.
    loaded: u64,
    stored: u64,
    returned: u64,
    returned_after: [u64; TICKS as usize],
    /// Average per cent of returned pages that would have stayed, and of how many decisions.
    spared: u64,
    averaged: u64,
    /// Remaining decisions that keep the dense tier, and their number when it was last chosen.
    left: u64,
    kept: u64,
}

impl Density {
    pub(crate) fn new(has_tiers: bool) -> Self {
        Density { has_tiers, is_dense: AtomicBool::new(false), cold_gains: AtomicBool::new(false) }
    }

    /// Whether to promote cold pages: other pages are stored densely, or the program, for which
    /// `came_in` pages came in lately, rests.
    pub fn promotes_cold(&self, came_in: u64) -> bool {
        let rests = || came_in < AT_REST_PAGES && self.cold_gains.load(Ordering::Relaxed);
        self.has_tiers && (self.is_dense.load(Ordering::Relaxed) || rests())
    }
}

impl DensityFigures {
    /// Decides whether to use the dense tier. `is_dense` is the present tier, `spared` the per cent
    /// of returning pages that would stay. `suits` says whether the tier is usable.
    fn decide(&mut self, is_dense: bool, spared: u64, suits: bool) -> bool {
        if !suits {
            (self.averaged, self.left, self.kept) = (0, 0, 0);
            return false;
        }
        if is_dense {
            self.averaged = 0;
            let stays = self.left > 0;
            self.left = self.left.saturating_sub(1);
            return stays;
        }
        self.averaged = (self.averaged + 1).min(AVERAGED);
        self.spared = (self.spared * (self.averaged - 1) + spared) / self.averaged;
        if self.averaged < AVERAGED {
            // Until enough is known, new pages are stored quickly.
            return false;
        }
        let was_chosen = self.kept > 0;
        if self.spared < SPARED_PERCENT[usize::from(was_chosen)] {
            self.kept = 0;
            return false;
        }
        self.kept = (self.kept * 2).clamp(KEPT, KEPT_MAX);
        self.left = self.kept;
        true
    }
}

impl Density {
    /// Chooses the tier for a process that has `memory` bytes. Call several times a second.
    pub(super) fn choose(
        &self,
        pages: &AddressSpace,
        figures: &mut DensityFigures,
        memory: u64,
        goes_by_extents: bool,
    ) {
        let Density { has_tiers, is_dense, cold_gains } = self;
        if !has_tiers {
            return;
        }
        let (store, policy) = (&pages.store, &pages.policy);
        let pool = store.pool_bytes();
        let more = pages_more(pool, store.stored_pages(), store.tier_sample());
        let stay = memory.saturating_sub(pool) / PAGE_SIZE as u64;
        cold_gains.store(more * 100 >= stay * COLD_GAIN_PERCENT, Ordering::Relaxed);
        let counters = store.counters();
        let back = counters.zswpin.saturating_sub(figures.loaded);
        let memory_pages = memory / PAGE_SIZE as u64;
        if back < memory_pages / DECIDED_PER_MEMORY {
            return;
        }
        let out = counters.zswpout.saturating_sub(figures.stored);
        let (returned, after) = (policy.all_returned(), policy.returned_after());
        let lately = std::array::from_fn(|ticks| after[ticks].saturating_sub(figures.returned_after[ticks]));
        let spared = spared_percent(&lately, returned.saturating_sub(figures.returned), more, memory_pages);
        (figures.loaded, figures.stored) = (counters.zswpin, counters.zswpout);
        (figures.returned, figures.returned_after) = (returned, after);
        let before = is_dense.load(Ordering::Relaxed);
        let suits = back * 2 >= out && !goes_by_extents;
        let dense = figures.decide(before, spared, suits);
        if dense != before {
            is_dense.store(dense, Ordering::Relaxed);
            store.set_dense(dense);
        }
    }
}

/// Number of additional resident pages if the `stored` pages, of `pool` bytes, become as dense as
/// the samples, net of the dense tier's own memory.
fn pages_more(pool: u64, stored: u64, sample: Option<TierSample>) -> u64 {
    let Some(sample) = sample.filter(|sample| sample.pages >= SAMPLED_MIN) else { return 0 };
    let quick = u128::from(sample.quick_bytes.max(1));
    let saved = u128::from(pool) * u128::from(sample.quick_bytes.saturating_sub(sample.dense_bytes)) / quick;
    // Each additional resident page is one object less.
    let (saved, page) = ((saved as u64).saturating_sub(sample.memory_bytes), PAGE_SIZE as u64);
    let object = pool.saturating_sub(saved) / stored.max(1);
    saved / page.saturating_sub(object).max(page / 4)
}

/// Per cent of `returned` pages that were out while at most `more` pages came in. `after` counts
/// pages by ticks out, [`TICKS`] ticks per memory's worth of pages.
fn spared_percent(after: &[u64; TICKS as usize], returned: u64, more: u64, memory_pages: u64) -> u64 {
    // Pages out for n ticks were out for n - 1/2 to n + 1/2: count in half ticks.
    let halves = more * 2 * TICKS / memory_pages.max(1);
    let mut spared = 0;
    for (ticks, pages) in (0u64..).zip(after) {
        let (first, len) = if ticks == 0 { (0, 1) } else { (2 * ticks - 1, 2) };
        spared += pages * halves.saturating_sub(first).min(len) / len;
    }
    spared * 100 / returned.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn more(pool: u64, ratio: (u64, u64), dense_percent: u64) -> u64 {
        let stored = pool * ratio.0 / ratio.1 / PAGE_SIZE as u64;
        let sample = TierSample {
            pages: 100,
            quick_bytes: 100_000,
            dense_bytes: 1000 * dense_percent,
            memory_bytes: 0,
        };
        pages_more(pool, stored, Some(sample))
    }

    #[test]
    fn as_many_more_pages_stay_as_the_denser_pool_saves() {
        // 8 MiB; a resident page saves 819 bytes in the pool.
        assert_eq!(more(40 * MIB, (4, 1), 80), 8 * MIB / (4096 - 819));
        assert_eq!(more(40 * MIB, (4, 1), 100), 0);
        assert_eq!(more(40 * MIB, (4, 1), 120), 0, "some pages are better off as they are");
        assert_eq!(pages_more(MIB, 1, None), 0);
        let few = TierSample { pages: SAMPLED_MIN - 1, quick_bytes: 2, dense_bytes: 1, memory_bytes: 0 };
        assert_eq!(pages_more(MIB, 1024, Some(few)), 0);
        let enough = TierSample { pages: SAMPLED_MIN, ..few };
        assert!(pages_more(MIB, 1024, Some(enough)) > 0);
        assert!(pages_more(MIB, 0, Some(enough)) > 0, "nothing is stored any more");
        let takes = |memory_bytes| pages_more(MIB, 1024, Some(TierSample { memory_bytes, ..enough }));
        assert_eq!([takes(0), takes(MIB / 4), takes(MIB)], [146, 78, 0], "what the tier itself takes");
    }

    #[test]
    fn pages_that_return_soon_would_have_stayed() {
        let mut after = [0; TICKS as usize];
        (after[0], after[1], after[2], after[9]) = (100, 200, 100, 500);
        let spared = |more| spared_percent(&after, 1000, more, 32 * 100);
        assert_eq!(spared(0), 0);
        assert_eq!(spared(50), 10, "half a tick");
        assert_eq!(spared(100), 20);
        assert_eq!(spared(150), 30);
        assert_eq!(spared(250), 40);
        assert_eq!(spared(800), 40);
        assert_eq!(spared(100_000), 90, "the others were out for longer than a memory");
        assert_eq!(spared_percent(&[0; TICKS as usize], 0, 1, 0), 0, "nothing returned");
    }

    fn until_other(figures: &mut DensityFigures, is_dense: bool, spared: u64) -> u64 {
        (1..100_000).find(|_| figures.decide(is_dense, spared, true) != is_dense).expect("at some time")
    }

    #[test]
    fn the_dense_tier_is_kept_the_longer_the_more_often_it_was_found_better() {
        let mut figures = DensityFigures::default();
        for kept in [KEPT, 2 * KEPT, 4 * KEPT, KEPT_MAX, KEPT_MAX] {
            assert_eq!(until_other(&mut figures, false, 40), AVERAGED);
            assert_eq!(until_other(&mut figures, true, 40), kept + 1);
        }
        assert!((0..AVERAGED).all(|_| !figures.decide(false, 0, true)));
        assert_eq!(until_other(&mut figures, false, 40), AVERAGED);
        assert_eq!(until_other(&mut figures, true, 40), KEPT + 1);
    }

    #[test]
    fn few_pages_that_return_soon_or_streams_leave_it_at_the_quick_tier() {
        let mut figures = DensityFigures::default();
        assert!((0..1000).all(|_| !figures.decide(false, SPARED_PERCENT[0] - 1, true)));
        assert!((0..1000).all(|_| !figures.decide(false, 100, false)));
        assert_eq!(until_other(&mut figures, false, SPARED_PERCENT[0]), AVERAGED);
        assert!(!figures.decide(true, 100, false), "a stream ends it at once");
        // Once chosen, half the share suffices.
        assert_eq!(until_other(&mut figures, false, SPARED_PERCENT[0]), AVERAGED);
        until_other(&mut figures, true, 0);
        assert_eq!(until_other(&mut figures, false, SPARED_PERCENT[1]), AVERAGED);
    }
}
