//! What is in memory before the pager sees anything come.

use sys::pagemap::Run;
use sys::PAGE_SIZE;

use crate::units::{block_of, pages_in, span, BLOCK_BYTES};

use super::Lifecycle;

/// Runs of present pages that one look may find.
const RUNS: usize = 512;

impl Lifecycle<'_> {
    /// Tells the policy which pages are in memory now, before anything is registered, so that it can
    /// tell them from those that come later. Their addresses say in what order they came: mmap()
    /// goes down, so what is above is older. That is wrong inside of a large mapping that is filled
    /// upwards, and still better than nothing: simulated, six programs bring in 0.84 of the pages
    /// without a tracker and 0.87 with one (`replacement/found-pages.csv`).
    pub fn note_found(&self) {
        self.program.measure(self.pages);
        let all = pages_in(self.program.gauge().resident_bytes() as usize) as u64;
        let mut runs = vec![Run::default(); RUNS];
        let mut below = 0;
        let mut registrations = self.program.registrations();
        registrations.for_each_evictable(&self.program.files().maps, self.pages, self.config, |range| {
            let mut at = range.start;
            while at < range.end {
                let (count, walked) = self.pages.pagemap().present(at, range.end, &mut runs);
                for run in &runs[..count] {
                    below += self.note_run(run.start as usize, run.end as usize, below, all);
                }
                at = walked.max(at + PAGE_SIZE);
            }
        });
    }

    /// Notes a run of pages with `below` others below it, of `all`; returns how many pages it has.
    fn note_run(&self, start: usize, end: usize, below: u64, all: u64) -> u64 {
        let mut at = start;
        while at < end {
            let base = block_of(at);
            let until = end.min(base + BLOCK_BYTES);
            let mask = span(pages_in(at - base), pages_in(until - at));
            let Ok(block) = self.pages.table().block(base) else { break };
            self.pages.policy().found(block.history(), mask, all.saturating_sub(below), all);
            at = until;
        }
        pages_in(end - start) as u64
    }
}
