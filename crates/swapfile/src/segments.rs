//! This process's content of each segment: live grains, bytes written, age.

use std::sync::atomic::{AtomicU32, Ordering};

/// Added to the live grains while the segment is open for writing.
const OPEN: u32 = 1 << 30;
/// Added while the segment is cleaned.
const CLEANED: u32 = 1 << 29;
/// Mask of the grains: a segment has 2^16.
const GRAINS: u32 = CLEANED - 1;

#[derive(Default)]
struct Segment {
    /// Live grains, and the marks above: the thread that takes it to 0 releases the segment.
    live: AtomicU32,
    /// Bytes written, from the start.
    filled: AtomicU32,
    /// Number of segments closed before it.
    closed_at: AtomicU32,
}

pub(crate) struct Segments {
    all: Box<[Segment]>,
    closed: AtomicU32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) number: usize,
    pub(crate) live_grains: u32,
    pub(crate) filled: u32,
    /// Segments closed since.
    pub(crate) age: u32,
}

impl Segments {
    pub(crate) fn new(count: usize) -> Self {
        Segments { all: (0..count).map(|_| Segment::default()).collect(), closed: AtomicU32::new(0) }
    }

    pub(crate) fn is_unused(&self, number: usize) -> bool {
        self.all[number].live.load(Ordering::Acquire) == 0
    }

    /// Opens a newly taken, unused segment for writing.
    pub(crate) fn open(&self, number: usize) {
        let segment = &self.all[number];
        let before = segment.live.swap(OPEN, Ordering::AcqRel);
        assert!(before == 0, "a segment taken is free");
        segment.filled.store(0, Ordering::Relaxed);
    }

    /// Closes a segment for writing. Returns whether it is empty.
    #[must_use]
    pub(crate) fn close(&self, number: usize) -> bool {
        let now = self.closed.fetch_add(1, Ordering::Relaxed);
        self.all[number].closed_at.store(now, Ordering::Relaxed);
        self.subtract(number, OPEN)
    }

    /// Marks a segment for cleaning. Returns false if it is empty, open, or already being cleaned.
    pub(crate) fn begin_cleaning(&self, number: usize) -> bool {
        let mark = |live: u32| (1..=GRAINS).contains(&live).then_some(live + CLEANED);
        self.all[number].live.fetch_update(Ordering::AcqRel, Ordering::Relaxed, mark).is_ok()
    }

    /// Ends cleaning. Returns whether the segment is empty.
    #[must_use]
    pub(crate) fn end_cleaning(&self, number: usize) -> bool {
        self.subtract(number, CLEANED)
    }

    pub(crate) fn add(&self, number: usize, grains: u32) {
        let before = self.all[number].live.fetch_add(grains, Ordering::Relaxed);
        debug_assert!(before >= CLEANED, "only an open segment gets more");
    }

    /// Counts dead grains. Returns whether the segment is empty.
    #[must_use]
    pub(crate) fn subtract(&self, number: usize, amount: u32) -> bool {
        let before = self.all[number].live.fetch_sub(amount, Ordering::AcqRel);
        assert!(before >= amount, "what dies was alive");
        before == amount
    }

    pub(crate) fn set_filled(&self, number: usize, bytes: u32) {
        self.all[number].filled.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn filled(&self, number: usize) -> u32 {
        self.all[number].filled.load(Ordering::Relaxed)
    }

    /// A closed segment with live objects that is not being cleaned.
    pub(crate) fn candidate(&self, number: usize) -> Option<Candidate> {
        let live_grains = self.all[number].live.load(Ordering::Acquire);
        (1..=GRAINS).contains(&live_grains).then(|| Candidate {
            number,
            live_grains,
            filled: self.filled(number),
            age: self
                .closed
                .load(Ordering::Relaxed)
                .wrapping_sub(self.all[number].closed_at.load(Ordering::Relaxed)),
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_goes_with_its_last_grain_once_it_is_closed() {
        let segments = Segments::new(2);
        segments.open(1);
        segments.add(1, 10);
        assert!(!segments.subtract(1, 10), "still open");
        segments.add(1, 5);
        assert!(segments.candidate(1).is_none() && !segments.begin_cleaning(1));
        assert!(!segments.close(1));
        assert_eq!(segments.candidate(1).unwrap().live_grains, 5);
        assert!(segments.begin_cleaning(1));
        assert!(!segments.begin_cleaning(1) && segments.candidate(1).is_none());
        assert!(!segments.subtract(1, 5), "still being cleaned");
        assert!(segments.end_cleaning(1));
        segments.open(1);
        assert!(segments.close(1));
    }
}
