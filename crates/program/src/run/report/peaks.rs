//! The largest figures of a tree.

use ledger::Slot;

use crate::run::report::over_limit::OverLimit;
use crate::run::supervisor::books::Books;

#[derive(Debug, Default, Clone)]
pub struct Peaks {
    /// The tree's largest use without uzswap.
    pub wanted_bytes: u64,
    /// Looks at which a process's use differed from its own figure.
    pub wrong_figures: u64,
    /// Stored pages at their maximum, and the pool's bytes at that moment.
    pub stored_pages_peak: u64,
    pub pool_bytes_at_peak: u64,
    /// Stored pages at the last look with a live process.
    pub stored_pages: u64,
    /// The pool's bytes at that look.
    pub pool_bytes: u64,
    pub over_limit: OverLimit,
    /// Largest resident shared memory of one process, which is not paged.
    pub shared_bytes: u64,
    pub disk_pages_peak: u64,
    /// Pages in the swap file, their objects' bytes, and all used bytes, at the last look with any.
    pub disk_pages: u64,
    pub disk_live_bytes: u64,
    pub disk_used_bytes: u64,
    pub disk_used_peak_bytes: u64,
}

impl Peaks {
    pub fn sample(&mut self, books: &Books) {
        let tree = &books.tree;
        let sum =
            |of: fn(&Slot) -> u64| tree.live().fold(0, |sum: u64, live| sum.saturating_add(of(live.slot)));
        let (pages, bytes, wanted) =
            (sum(Slot::own_stored_pages), sum(Slot::own_pool_bytes), sum(Slot::wanted_bytes));
        let (disk_pages, disk_bytes) = (sum(Slot::disk_pages), sum(Slot::disk_bytes));
        self.wanted_bytes = self.wanted_bytes.max(wanted);
        if disk_pages > 0 {
            self.disk_pages_peak = self.disk_pages_peak.max(disk_pages);
            (self.disk_pages, self.disk_live_bytes) = (disk_pages, disk_bytes);
            self.disk_used_bytes = books.swap_used_bytes();
            self.disk_used_peak_bytes = self.disk_used_peak_bytes.max(self.disk_used_bytes);
        }
        if pages > 0 {
            (self.stored_pages, self.pool_bytes) = (pages, bytes);
        }
        if pages > self.stored_pages_peak {
            (self.stored_pages_peak, self.pool_bytes_at_peak) = (pages, bytes);
        }
        self.over_limit.note(tree, books.total_bytes, books.settings.budget_bytes);
    }
}
