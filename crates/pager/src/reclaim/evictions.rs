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
    /// Present pages that the policy was asked about.
    looked_at: AtomicU64,
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

    /// Pages that the policy was ever asked about.
    pub fn looked_at(&self) -> u64 {
        self.looked_at.load(Ordering::Relaxed)
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

    /// Nothing was found anywhere.
    pub fn note_nothing(&self) {
        self.back_off((self.backoff_ms.load(Ordering::Relaxed) * 2).clamp(BACKOFF_MS, BACKOFF_MS_MAX));
    }

    /// Something was found, but looking for it took long: memory is full of what cannot be moved
    /// out. Looking takes a small part of the time only.
    pub fn note_found_late(&self, ns: u64) {
        let ms = (ns * 8 / 1_000_000) as u32;
        self.back_off(ms.clamp(BACKOFF_MS, 8 * BACKOFF_MS_MAX));
    }

    fn back_off(&self, ms: u32) {
        self.backoff_ms.store(ms, Ordering::Relaxed);
        self.backoff_since_ms.store(now_ms(), Ordering::Relaxed);
        self.arrived_then.store(self.arrived(), Ordering::Relaxed);
    }

    /// Something was found.
    pub fn note_found(&self) {
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
