//! Kernels without access tracking: only present pages are known.

use sys::pagemap::Run;

use super::AccessTracker;
use crate::sync::Pagemap;

pub(super) struct NoTracker {
    pagemap: Pagemap,
}

impl NoTracker {
    pub fn new(pagemap: Pagemap) -> Self {
        NoTracker { pagemap }
    }
}

impl AccessTracker for NoTracker {
    fn sees_uses(&self) -> bool {
        false
    }

    fn mode(&self) -> u64 {
        0
    }

    fn arm(&self, _start: usize, _len: usize) {}

    fn disarm(&self, _start: usize, _len: usize) {}

    fn look(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize) {
        self.pagemap.present(start, end, runs)
    }
}
