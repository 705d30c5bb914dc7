//! What evictions came to lately: whether blocks go by the extent, and whether looking for more is
//! worth its while.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::pages::now_ms;

/// How long no thread looks for something to move out after there was nothing anywhere, in
/// milliseconds: to look means two rounds through the whole address space. Doubled each time, up to
/// the most; over when as many pages came in as below.
const BACKOFF_MS: u32 = 2;
const BACKOFF_MS_MAX: u32 = 32;
pub(super) const BACKOFF_PAGES: u64 = 512;
/// A look that took longer, and came by more pages that could not go, is not repeated at once.
const LOOK_NS_MAX: u64 = 1_000_000;
const BARRED_PAGES: u64 = 1024;
/// The part of the time that looks may take which are not worth their while.
const LOOK_PART: u64 = 8;
const LOOK_BACKOFF_MS_MAX: u32 = 8 * BACKOFF_MS_MAX;
/// All of what went, for [`Evictions::by_extent`].
const ALL: u32 = 1 << 16;

/// Counts that those who evict share.
pub(super) struct Evictions {
    /// How many of the blocks that went lately went by the extent, of [`ALL`].
    by_extent: AtomicU32,
    /// When nothing was found anywhere that could be moved out, in milliseconds, and for how long
    /// no thread looks.
    backoff_since_ms: AtomicU32,
    backoff_ms: AtomicU32,
    /// Pages that came in, ever, and by then.
    arrived: AtomicU64,
    arrived_then: AtomicU64,
    /// Present pages that the policy was asked about, and those that could not go.
    looked_at: AtomicU64,
    barred: AtomicU64,
}

/// What a look for something to move out came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It went.
    Evicted,
    /// It could not go.
    Barred,
    /// Nowhere was anything.
    Nothing,
}

/// How far the counts had come when a look began.
pub(super) struct Look {
    began_ns: u64,
    looked_at: u64,
    barred: u64,
}

impl Evictions {
    pub fn new() -> Self {
        Evictions {
            by_extent: AtomicU32::new(0),
            backoff_since_ms: AtomicU32::new(0),
            backoff_ms: AtomicU32::new(0),
            arrived: AtomicU64::new(0),
            arrived_then: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            barred: AtomicU64::new(0),
        }
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

    /// Notes pages that a look came by and that could not go, or mappings that it looked through
    /// in vain, as so many pages.
    pub fn note_barred(&self, pages: u64) {
        self.barred.fetch_add(pages, Ordering::Relaxed);
    }

    /// A look for something to move out begins.
    pub fn begin_look(&self) -> Look {
        Look {
            began_ns: sys::now_ns(),
            looked_at: self.looked_at.load(Ordering::Relaxed),
            barred: self.barred.load(Ordering::Relaxed),
        }
    }

    /// Notes how a look ended. One that took long is not repeated at once if it was what could not
    /// go that took the time: memory is full of that, and looking takes a small part of the time
    /// only. On a slow or busy machine looks take long, too, and have to go on: the budget is held
    /// by them.
    pub fn end_look(&self, look: &Look, found: Found) {
        let ns = sys::now_ns() - look.began_ns;
        let looked_at = self.looked_at.load(Ordering::Relaxed) - look.looked_at;
        let barred = self.barred.load(Ordering::Relaxed) - look.barred;
        let long_ms = ((ns * LOOK_PART / 1_000_000) as u32).min(LOOK_BACKOFF_MS_MAX);
        if found == Found::Nothing {
            let longer_ms = self.backoff_ms.load(Ordering::Relaxed) * 2;
            self.back_off(longer_ms.clamp(BACKOFF_MS, BACKOFF_MS_MAX).max(long_ms));
        } else if ns > LOOK_NS_MAX && barred > BARRED_PAGES.max(looked_at / 4) {
            self.back_off(long_ms.max(BACKOFF_MS));
        } else if found == Found::Evicted {
            self.note_found();
        }
    }

    /// Notes that an extent went, or that one block did by itself.
    pub fn note_gone(&self, is_extent: bool) {
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

    fn back_off(&self, ms: u32) {
        self.backoff_ms.store(ms, Ordering::Relaxed);
        self.backoff_since_ms.store(now_ms(), Ordering::Relaxed);
        self.arrived_then.store(self.arrived(), Ordering::Relaxed);
    }

    /// Something was found.
    fn note_found(&self) {
        if self.backoff_ms.load(Ordering::Relaxed) != 0 {
            self.backoff_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Whether it is too early to look again after nothing was found.
    pub fn backs_off(&self) -> bool {
        let ms = self.backoff_ms.load(Ordering::Relaxed);
        ms != 0
            && now_ms().wrapping_sub(self.backoff_since_ms.load(Ordering::Relaxed)) < ms
            && self.arrived().wrapping_sub(self.arrived_then.load(Ordering::Relaxed)) < BACKOFF_PAGES
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn looks_that_take_long_go_on_unless_what_cannot_go_took_the_time() {
        let evictions = Evictions::new();
        let backs_off = |looked_at: u64, barred: u64| {
            let look = evictions.begin_look();
            evictions.note_looked_at(looked_at);
            evictions.note_barred(barred);
            let began_ns = look.began_ns - 10 * LOOK_NS_MAX;
            evictions.end_look(&Look { began_ns, ..look }, Found::Evicted);
            evictions.backoff_ms.swap(0, Ordering::Relaxed) != 0
        };
        assert!(!backs_off(100_000, 0), "a slow machine");
        assert!(!backs_off(100_000, 25_000));
        assert!(!backs_off(1, BARRED_PAGES));
        assert!(backs_off(100_000, 25_001));
    }

    #[test]
    fn to_find_nothing_takes_a_small_part_of_the_time() {
        let evictions = Evictions::new();
        let backs_off_for = |ns: u64| {
            let look = evictions.begin_look();
            evictions.end_look(&Look { began_ns: look.began_ns - ns, ..look }, Found::Nothing);
            evictions.backoff_ms.load(Ordering::Relaxed)
        };
        assert_eq!(backs_off_for(0), BACKOFF_MS);
        assert_eq!(backs_off_for(0), 2 * BACKOFF_MS, "twice as long each time");
        let long_ms = backs_off_for(20_000_000);
        assert!((160..=LOOK_BACKOFF_MS_MAX).contains(&long_ms), "{long_ms}");
        assert_eq!(backs_off_for(0), BACKOFF_MS_MAX);
        assert_eq!(backs_off_for(10_000_000_000), LOOK_BACKOFF_MS_MAX);
    }
}
