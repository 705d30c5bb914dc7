//! Promotion: an idle worker makes the objects of cold pages denser, a little at a time, if
//! [`super::density`] allows it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use address_space::{now_ms, Counter, GROUP};

use crate::process::Process;

/// Leaves of up to 16 pages promoted at a time: some 0.3 ms, which delays forks and faults on them.
const LEAVES: u64 = 8;
/// Milliseconds between promotions: a few per cent of one CPU.
pub(crate) const PROMOTE_MS: u32 = 10;
/// Per cent of the pool's leaves that count as cold, the oldest. Touched pages leave the pool, so
/// all its pages are at rest, and the oldest have rested longest.
const COLD_PERCENT: u32 = 50;

pub(crate) struct Promotion {
    busy: AtomicBool,
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

impl Promotion {
    /// Promotes some cold pages, unless another thread does or just did. Returns whether more
    /// remain. Compacting the pool at the end returns the saved bytes to the system.
    pub(super) fn promote_cold(&self, process: &Process) -> bool {
        let Promotion { busy, last_ms, saved } = self;
        if busy.swap(true, Ordering::Acquire) {
            return false;
        }
        let mut more = true;
        if now_ms().wrapping_sub(last_ms.load(Ordering::Relaxed)) >= PROMOTE_MS {
            let report = process.pages.store.promote(GROUP, COLD_PERCENT, LEAVES);
            process.accounts.add(Counter::Promoted, report.pages);
            let bytes = saved.fetch_add(report.bytes, Ordering::Relaxed) + report.bytes;
            more = report.leaves == LEAVES;
            // Compacting visits every object.
            if !more && bytes > process.pages.store.pool_bytes() / 16 {
                saved.store(0, Ordering::Relaxed);
                process.pages.store.compact();
            }
            last_ms.store(now_ms(), Ordering::Relaxed);
        }
        busy.store(false, Ordering::Release);
        more
    }
}
