//! Promotion: a worker that has nothing else to do has the store make the objects of cold pages denser, a little at a time.

use std::sync::atomic::Ordering;

use crate::accounts::Count;
use crate::pager::{now_ms, Pager, GROUP};

/// Leaves of up to sixteen pages promoted at a time: some 0.3 ms, for which a fork or a fault on these pages may wait.
const LEAVES: u64 = 8;
/// Milliseconds from one time to the next: a few per cent of one CPU.
pub(crate) const PROMOTE_MS: u32 = 10;
/// Of the leaves in the pool so many are cold, the oldest ones. Pages leave the pool when they are touched, so that all in
/// it are at rest, and those longest that were stored first.
const COLD_PERCENT: u32 = 50;

impl Pager {
    /// Promotes some cold pages, unless somebody does or did a moment ago; whether there is more to do. What that saves is
    /// had from the system at the end, by compacting the pool.
    pub(crate) fn promote_cold(&self) -> bool {
        if !self.has_tiers || self.promoting.swap(true, Ordering::Acquire) {
            return false;
        }
        let mut more = true;
        let now = now_ms();
        if now.wrapping_sub(self.promoted_ms.load(Ordering::Relaxed)) >= PROMOTE_MS {
            let report = self.store.promote(GROUP, COLD_PERCENT, LEAVES);
            self.accounts.add(Count::Promoted, report.pages);
            let saved = self.promoted_bytes.fetch_add(report.bytes, Ordering::Relaxed) + report.bytes;
            more = report.leaves == LEAVES;
            // Compacting looks at every object.
            if !more && saved > self.store.pool_bytes() / 16 {
                self.promoted_bytes.store(0, Ordering::Relaxed);
                self.store.compact();
            }
            self.promoted_ms.store(now_ms(), Ordering::Relaxed);
        }
        self.promoting.store(false, Ordering::Release);
        more
    }
}
