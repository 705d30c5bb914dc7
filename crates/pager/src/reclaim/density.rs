//! Density: whether pages are stored in the compressor's second tier at once, or when they have
//! become cold, or never, where it has one.
//!
//! A dense object takes longer to make and to read, and the pool leaves more memory to the program.
//! How much that is follows from what both tiers made of samples. It is worth the time of every
//! page where they keep coming back and much more of them would stay; where they go once through
//! memory it is not.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sys::PAGE_SIZE;
use zswap::TierSample;

use super::Reclaimer;

/// Sampled pages without which nothing is decided.
const SAMPLED_MIN: u64 = 32;
/// Pages that have come back, beside which the decision stands until as many have again, as a part
/// of a memory's.
const CAME_BACK_PART: u64 = 8;
/// By how many per cent of the pages that stay the dense tier must add to them to be chosen, and to
/// be kept: a pool that is dense has less to gain.
const GAIN_PERCENT: [u64; 2] = [14, 6];
/// The same for cold pages to be promoted, by a thread that has nothing else to do.
const COLD_GAIN_PERCENT: u64 = 6;

/// Which tier pages are stored in, and what decided that.
pub(crate) struct Density {
    has_tiers: bool,
    is_dense: AtomicBool,
    /// What could be gained lately, in per cent.
    gain: AtomicU64,
    /// Pages loaded and stored when it was last decided.
    loaded: AtomicU64,
    stored: AtomicU64,
}

impl Density {
    pub(crate) fn new(has_tiers: bool) -> Self {
        let (gain, loaded, stored) = Default::default();
        Density { has_tiers, is_dense: AtomicBool::new(false), gain, loaded, stored }
    }

    /// Whether cold pages are to be promoted.
    pub fn promotes_cold(&self) -> bool {
        self.has_tiers && self.gain.load(Ordering::Relaxed) >= COLD_GAIN_PERCENT
    }
}

impl Reclaimer<'_> {
    /// Decides which tier pages are stored in, for a process that has `memory` bytes. Called several
    /// times a second by one thread.
    pub(crate) fn choose_density(&self, memory: u64) {
        let Density { has_tiers, is_dense, gain, loaded, stored } = self.density;
        if !has_tiers {
            return;
        }
        let store = self.pages.store();
        let now = gain_percent(memory, store.pool_bytes(), store.stored_pages(), store.tier_sample());
        gain.store(now, Ordering::Relaxed);
        let counters = store.counters();
        let back = counters.zswpin - loaded.load(Ordering::Relaxed);
        if back < memory / PAGE_SIZE as u64 / CAME_BACK_PART {
            return;
        }
        let out = counters.zswpout - stored.load(Ordering::Relaxed);
        loaded.store(counters.zswpin, Ordering::Relaxed);
        stored.store(counters.zswpout, Ordering::Relaxed);
        let before = is_dense.load(Ordering::Relaxed);
        let dense = now >= GAIN_PERCENT[usize::from(before)]
            && back * 2 >= out
            && !self.evictions.goes_by_extents()
            && !self.pages.moves_folios();
        if dense != before {
            is_dense.store(dense, Ordering::Relaxed);
            store.set_dense(dense);
        }
    }
}

/// By how many per cent more pages stay in `memory` bytes if the `stored` ones, which take `pool`
/// bytes, become as dense as samples did.
fn gain_percent(memory: u64, pool: u64, stored: u64, sample: Option<TierSample>) -> u64 {
    let Some(sample) = sample.filter(|sample| sample.pages >= SAMPLED_MIN) else { return 0 };
    let saved = pool as u128 * sample.quick_bytes.saturating_sub(sample.dense_bytes) as u128
        / u128::from(sample.quick_bytes.max(1));
    // Each page that stays is one object less.
    let page = PAGE_SIZE as u64;
    let object = (pool - saved as u64) / stored.max(1);
    let more = saved * u128::from(page) / u128::from(page.saturating_sub(object).max(page / 4));
    let stays = memory.saturating_sub(pool).max(memory / 16);
    (more * 100 / u128::from(stays)) as u64
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn gain(memory: u64, pool: u64, ratio: (u64, u64), dense_percent: u64) -> u64 {
        let stored = pool * ratio.0 / ratio.1 / PAGE_SIZE as u64;
        let sample = TierSample { pages: 100, quick_bytes: 100_000, dense_bytes: 1000 * dense_percent };
        gain_percent(memory, pool, stored, Some(sample))
    }

    #[test]
    fn a_large_pool_gains_much_and_a_small_one_little() {
        assert_eq!(gain(57 * MIB, 21 * MIB, (24, 10), 72), 23);
        assert_eq!(gain(47 * MIB, 7 * MIB, (41, 10), 78), 4);
        assert_eq!(gain(57 * MIB, 21 * MIB, (24, 10), 100), 0);
        assert_eq!(gain(57 * MIB, 21 * MIB, (24, 10), 120), 0, "some pages are better off as they are");
    }

    #[test]
    fn nothing_is_gained_from_what_is_not_known() {
        assert_eq!(gain_percent(MIB, MIB, 1, None), 0);
        let few = TierSample { pages: SAMPLED_MIN - 1, quick_bytes: 2, dense_bytes: 1 };
        assert_eq!(gain_percent(MIB, MIB, 1, Some(few)), 0);
        let all = TierSample { pages: SAMPLED_MIN, quick_bytes: 2, dense_bytes: 1 };
        assert!(gain_percent(MIB, 2 * MIB, 0, Some(all)) > 100, "a pool beyond the memory");
    }
}
