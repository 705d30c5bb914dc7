//! A tracker for tests on any kernel: the test reports the used pages.

use std::collections::BTreeSet;
use std::sync::Mutex;

use sys::pagemap::{Pagemap, Run};
use sys::PAGE_SIZE;

use super::AccessTracker;
use crate::units::PageNumber;

/// The kernel's present pages, with a record of the armed ones.
///
/// Invariant: a page in `armed` was armed and not used since. It may be gone: then
/// [`AccessTracker::look`] does not find it.
pub struct Simulated {
    pagemap: Pagemap,
    armed: Mutex<BTreeSet<usize>>,
}

impl Default for Simulated {
    /// Every page counts as used.
    fn default() -> Self {
        Simulated { pagemap: Pagemap::open().expect("/proc"), armed: Mutex::default() }
    }
}

impl Simulated {
    /// Uses a page.
    pub fn touch(&self, at: usize) {
        self.armed.lock().unwrap().remove(&PageNumber::of(at).address());
    }

    /// Armed pages of a range.
    pub fn armed(&self, start: usize, len: usize) -> usize {
        self.armed.lock().unwrap().range(start..start + len).count()
    }

    fn present(&self, start: usize, end: usize) -> Vec<usize> {
        let (mut at, mut found) = (start, Vec::new());
        while at < end {
            let mut runs = [Run::default(); 16];
            let (count, walked) = self.pagemap.present(at, end, &mut runs);
            for run in &runs[..count] {
                found.extend((run.start as usize..run.end as usize).step_by(PAGE_SIZE));
            }
            at = walked.max(at + PAGE_SIZE);
        }
        found
    }
}

impl AccessTracker for &'static Simulated {
    fn sees_uses(&self) -> bool {
        true
    }

    fn mode(&self) -> u64 {
        0
    }

    fn arm(&self, start: usize, len: usize) {
        let present = self.present(start, start + len);
        self.armed.lock().unwrap().extend(present);
    }

    fn disarm(&self, start: usize, len: usize) {
        self.armed.lock().unwrap().retain(|page| !(start..start + len).contains(page));
    }

    fn look(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize) {
        let armed = self.armed.lock().unwrap();
        let mut count = 0;
        for page in self.present(start, end) {
            let used = !armed.contains(&page);
            let joins = count > 0 && runs[count - 1].end == page as u64 && runs[count - 1].is_used() == used;
            if joins {
                runs[count - 1].end += PAGE_SIZE as u64;
                continue;
            }
            if count == runs.len() {
                return (count, page);
            }
            runs[count] = Run::of_use(page, page + PAGE_SIZE, used);
            count += 1;
        }
        (count, end)
    }
}
