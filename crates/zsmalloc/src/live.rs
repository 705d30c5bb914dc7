//! The count that keeps a mixed zspage alive: the bytes of its objects.
//!
//! Frees count it down without a lock, and exactly one thread learns that it reached zero. While
//! the zspage is open, the count is the whole frame less the freed bytes, so that allocating need
//! not write it, and a high bit keeps it above zero.

use super::sync::{AtomicU32, Ordering};

/// Set while the zspage takes new objects.
pub(crate) const OPEN: u32 = 1 << 31;

/// Starts the count of an open zspage of `bytes`, which no other thread knows.
pub(crate) fn open(live: &AtomicU32, bytes: u32) {
    live.store(OPEN + bytes, Ordering::Relaxed);
}

/// Counts a freed object. Returns true if the caller must release the zspage.
#[inline]
pub(crate) fn free(live: &AtomicU32, bytes: u32) -> bool {
    let before = live.fetch_sub(bytes, Ordering::AcqRel);
    debug_assert!(before & !OPEN >= bytes, "freed more than there was");
    before == bytes
}

/// Closes a zspage with `unused` bytes. Returns true if the caller must release it.
pub(crate) fn close(live: &AtomicU32, unused: u32) -> bool {
    let before = live.fetch_sub(OPEN + unused, Ordering::AcqRel);
    debug_assert!(before & OPEN != 0, "closed twice");
    before == OPEN + unused
}

#[inline]
pub(crate) fn is_open(live: &AtomicU32) -> bool {
    live.load(Ordering::Relaxed) & OPEN != 0
}
