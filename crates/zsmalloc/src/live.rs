//! The count that keeps a mixed zspage: bytes of the objects in it.
//!
//! Frees count it down without a lock, and exactly one of those who touch it learns that nothing is
//! left. While the zspage is open, the count says the whole frame less what was freed, so that
//! allocating need not write it, and a high bit keeps it from coming to nothing.

use super::sync::{AtomicU32, Ordering};

/// Set while the zspage takes new objects.
pub(crate) const OPEN: u32 = 1 << 31;

/// Starts the count of an open zspage of `bytes`, which no other thread knows.
pub(crate) fn open(live: &AtomicU32, bytes: u32) {
    live.store(OPEN + bytes, Ordering::Relaxed);
}

/// Counts a freed object. True when the zspage is to be released, by the caller.
#[inline]
pub(crate) fn free(live: &AtomicU32, bytes: u32) -> bool {
    let before = live.fetch_sub(bytes, Ordering::AcqRel);
    debug_assert!(before & !OPEN >= bytes, "freed more than there was");
    before == bytes
}

/// Closes a zspage of which `unused` bytes were never given out. True when it is to be released, by
/// the caller.
pub(crate) fn close(live: &AtomicU32, unused: u32) -> bool {
    let before = live.fetch_sub(OPEN + unused, Ordering::AcqRel);
    debug_assert!(before & OPEN != 0, "closed twice");
    before == OPEN + unused
}

/// Whether the zspage takes new objects.
#[inline]
pub(crate) fn is_open(live: &AtomicU32) -> bool {
    live.load(Ordering::Relaxed) & OPEN != 0
}
