//! The outcome of recent evictions: whether another look is worthwhile.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use address_space::now_ms;

/// Milliseconds without looks after a look (two rounds through the address space) found nothing.
/// Doubled each time, up to the maximum. Ends early when [`BACKOFF_PAGES`] pages came in.
const BACKOFF_MS: u32 = 2;
const BACKOFF_MS_MAX: u32 = 32;
pub(super) const BACKOFF_PAGES: u64 = 512;
/// A look beyond both limits, in time and in pages that could not leave, is not repeated at once.
const LOOK_NS_MAX: u64 = 1_000_000;
const BARRED_PAGES: u64 = 1024;
/// Fruitless looks may take 1/8 of the time, those of all processes that share pages together.
const LOOK_PART: u64 = 8;
const LOOK_BACKOFF_MS_MAX: u32 = 8 * BACKOFF_MS_MAX;
/// The same where pages are shared: a copy that a process makes can leave, and no arrival tells.
const SHARED_BACKOFF_MS_MAX: u32 = 2 * BACKOFF_MS_MAX;

#[derive(Default)]
pub(crate) struct Evictions {
    /// When a look last found nothing, and for how long no thread looks, in milliseconds.
    backoff_since_ms: AtomicU32,
    backoff_ms: AtomicU32,
    /// Pages that ever came in, and their number at `backoff_since_ms`.
    arrived: AtomicU64,
    arrived_then: AtomicU64,
    /// Present pages that the policy was asked about, and pages that could not leave.
    looked_at: AtomicU64,
    barred: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SearchResult {
    Evicted,
    /// The block could not leave.
    Barred,
    /// No block was found anywhere.
    Nothing,
}

pub(crate) struct Search {
    sharers: u32,
    began_ns: u64,
    looked_at: u64,
    barred: u64,
}

impl Evictions {
    /// Counts pages that came in, any of which may leave again.
    pub fn note_arrivals(&self, pages: usize) {
        self.arrived.fetch_add(pages as u64, Ordering::Relaxed);
    }

    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    pub fn note_looked_at(&self, pages: u64) {
        self.looked_at.fetch_add(pages, Ordering::Relaxed);
    }

    /// Counts pages that could not leave, or an equivalent for mappings scanned in vain.
    pub fn note_barred(&self, pages: u64) {
        self.barred.fetch_add(pages, Ordering::Relaxed);
    }

    /// `sharers` processes look at the same pages; 0 or 1 if none are shared.
    pub fn begin_search(&self, sharers: u32) -> Search {
        Search {
            sharers,
            began_ns: sys::now_ns(),
            looked_at: self.looked_at.load(Ordering::Relaxed),
            barred: self.barred.load(Ordering::Relaxed),
        }
    }

    /// Records how a look ended. A long look is not repeated at once if pages that cannot leave
    /// took the time: memory is full of them, and looks may take only a small part of the time. On
    /// a slow or busy machine looks take long, too, but must continue to hold the budget.
    pub fn end_search(&self, look: &Search, found: SearchResult) {
        let ns = sys::now_ns() - look.began_ns;
        let looked_at = self.looked_at.load(Ordering::Relaxed) - look.looked_at;
        let barred = self.barred.load(Ordering::Relaxed) - look.barred;
        let (parts, most) = match look.sharers {
            0 | 1 => (1, LOOK_BACKOFF_MS_MAX),
            sharers => (u64::from(sharers), SHARED_BACKOFF_MS_MAX),
        };
        let long_ms = ((ns * LOOK_PART * parts / 1_000_000) as u32).min(most);
        if found == SearchResult::Nothing {
            let longer_ms = self.backoff_ms.load(Ordering::Relaxed) * 2;
            self.back_off(longer_ms.clamp(BACKOFF_MS, BACKOFF_MS_MAX).max(long_ms));
        } else if ns > LOOK_NS_MAX && barred > BARRED_PAGES.max(looked_at / 4) {
            self.back_off(long_ms.max(BACKOFF_MS));
        } else if found == SearchResult::Evicted {
            self.look_again();
        }
    }

    /// Ends the backoff, because new mappings, or a block that left, make a look worthwhile.
    pub fn look_again(&self) {
        if self.backoff_ms.load(Ordering::Relaxed) != 0 {
            self.backoff_ms.store(0, Ordering::Relaxed);
        }
    }

    fn back_off(&self, ms: u32) {
        self.backoff_ms.store(ms, Ordering::Relaxed);
        self.backoff_since_ms.store(now_ms(), Ordering::Relaxed);
        self.arrived_then.store(self.arrived(), Ordering::Relaxed);
    }

    pub fn backs_off(&self) -> bool {
        let ms = self.backoff_ms.load(Ordering::Relaxed);
        ms != 0
            && now_ms().wrapping_sub(self.backoff_since_ms.load(Ordering::Relaxed)) < ms
            && self.arrived().wrapping_sub(self.arrived_then.load(Ordering::Relaxed)) < BACKOFF_PAGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_looks_continue_unless_immovable_pages_took_the_time() {
        let evictions = Evictions::default();
        let backs_off = |looked_at: u64, barred: u64| {
            let look = evictions.begin_search(1);
            evictions.note_looked_at(looked_at);
            evictions.note_barred(barred);
            let began_ns = look.began_ns - 10 * LOOK_NS_MAX;
            evictions.end_search(&Search { began_ns, ..look }, SearchResult::Evicted);
            evictions.backoff_ms.swap(0, Ordering::Relaxed) != 0
        };
        assert!(!backs_off(100_000, 0), "a slow machine");
        assert!(!backs_off(100_000, 25_000));
        assert!(!backs_off(1, BARRED_PAGES));
        assert!(backs_off(100_000, 25_001));
    }

    #[test]
    fn to_find_nothing_takes_a_small_part_of_the_time() {
        let evictions = Evictions::default();
        let backs_off_for = |ns: u64| {
            let look = evictions.begin_search(1);
            evictions.end_search(&Search { began_ns: look.began_ns - ns, ..look }, SearchResult::Nothing);
            evictions.backoff_ms.load(Ordering::Relaxed)
        };
        assert_eq!(backs_off_for(0), BACKOFF_MS);
        assert_eq!(backs_off_for(0), 2 * BACKOFF_MS, "twice as long each time");
        let long_ms = backs_off_for(20_000_000);
        assert!((160..=LOOK_BACKOFF_MS_MAX).contains(&long_ms), "{long_ms}");
        assert_eq!(backs_off_for(0), BACKOFF_MS_MAX);
        assert_eq!(backs_off_for(10_000_000_000), LOOK_BACKOFF_MS_MAX);
        let shared = evictions.begin_search(4);
        evictions
            .end_search(&Search { began_ns: shared.began_ns - 1_900_000, ..shared }, SearchResult::Nothing);
        let ms = evictions.backoff_ms.load(Ordering::Relaxed);
        assert!((60..=SHARED_BACKOFF_MS_MAX).contains(&ms), "{ms}: four processes take their turns");
    }
}
