//! Promotion: a worker that has nothing else to do has the store make the objects of cold pages
//! denser, a little at a time, where [`super::density`] has it do so.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::accounts::Counter;
use crate::pages::{now_ms, GROUP};

use super::Reclaimer;

/// Leaves of up to sixteen pages promoted at a time: some 0.3 ms, for which a fork or a fault on
/// these pages may wait.
const LEAVES: u64 = 8;
/// Milliseconds from one time to the next: a few per cent of one CPU.
pub(crate) const PROMOTE_MS: u32 = 10;
/// Of the leaves in the pool so many are cold, the oldest ones. Pages leave the pool when they are
/// touched, so that all in it are at rest, and those longest that were stored first.
const COLD_PERCENT: u32 = 50;

/// What the workers know of promotion.
pub(crate) struct Promotion {
    /// Whether some worker is at it.
    busy: AtomicBool,
    /// When one was last, in milliseconds.
    last_ms: AtomicU32,
    /// Bytes saved since the pool was compacted.
    saved: AtomicU64,
}

impl Promotion {
    pub(crate) fn new() -> Self {
        let long_ago = now_ms().wrapping_sub(1 << 16);
        let (busy, last_ms, saved) = (AtomicBool::new(false), AtomicU32::new(long_ago), AtomicU64::new(0));
        Promotion { busy, last_ms, saved }
    }
}

impl Reclaimer<'_> {
    /// Promotes some cold pages, unless another thread does or did a moment ago; whether there is
    /// more to do. What that saves is had from the system at the end, by compacting the pool.
    pub(crate) fn promote_cold(&self) -> bool {
        let Promotion { busy, last_ms, saved } = &self.promotion;
        if busy.swap(true, Ordering::Acquire) {
            return false;
        }
        let mut more = true;
        if now_ms().wrapping_sub(last_ms.load(Ordering::Relaxed)) >= PROMOTE_MS {
            let report = self.pages.store().promote(GROUP, COLD_PERCENT, LEAVES);
            self.accounts.add(Counter::Promoted, report.pages);
            let bytes = saved.fetch_add(report.bytes, Ordering::Relaxed) + report.bytes;
            more = report.leaves == LEAVES;
            // Compacting looks at every object.
            if !more && bytes > self.pages.store().pool_bytes() / 16 {
                saved.store(0, Ordering::Relaxed);
                self.pages.store().compact();
            }
            last_ms.store(now_ms(), Ordering::Relaxed);
        }
        busy.store(false, Ordering::Release);
        more
    }
}
