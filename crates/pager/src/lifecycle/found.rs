//! Pages that are in memory before the pager sees any come in.

use address_space::units::{pages_in, BlockNumber, PageMask};
use sys::pagemap::Run;
use sys::PAGE_SIZE;

use super::Lifecycle;

const RUNS: usize = 512;

impl Lifecycle {
    /// Tells the policy which pages are in memory before anything is registered, to distinguish
    /// them from later ones: one scan, of 16 to 38 ns a page. Addresses give their order: mmap()
    /// allocates downwards, so higher is older. That is wrong within a large mapping filled
    /// upwards, but better than nothing (docs/decisions/06-registration.md).
    pub fn note_found(&self) {
        self.process.measure();
        self.note_found_of(pages_in(self.process.gauge.resident_bytes() as usize) as u64);
    }

    fn note_found_of(&self, all: u64) {
        let mut runs = vec![Run::default(); RUNS];
        let mut below = 0;
        let mut registrations = self.process.registrations();
        registrations.for_each_evictable(&self.process.files.maps, &self.process.config, |range| {
            let mut at = range.start;
            while at < range.end {
                let (count, walked) = self.process.pages.pagemap().present(at, range.end, &mut runs);
                for run in &runs[..count] {
                    below = self.note_run(run.start as usize, run.end as usize, below, all);
                }
                at = walked.max(at + PAGE_SIZE);
            }
        });
    }

    /// Records a run with `below` of `all` pages below it. Returns the pages below its end.
    fn note_run(&self, start: usize, end: usize, mut below: u64, all: u64) -> u64 {
        for at in BlockNumber::all_of(start, end) {
            let Ok(block) = self.process.pages.table().block(at) else { break };
            let mask = PageMask::within(at, start, end);
            self.process.pages.policy.found(block.history(), mask.bits(), all.saturating_sub(below), all);
            below += mask.count() as u64;
        }
        below
    }
}

#[cfg(test)]
mod tests {
    use address_space::units::BLOCK_PAGES;
    use replacement::policy::Page;

    use super::*;
    use crate::testing::{drop_pages, pager_of, range_of};

    const BLOCKS: usize = 64;

    #[test]
    fn pages_that_are_found_are_older_the_higher_they_are() {
        let Some((pager, base)) = pager_of(BLOCKS) else { return };
        drop_pages((base + (BLOCKS - 1)).page(0), BLOCK_PAGES);
        pager.lifecycle.note_found_of(((BLOCKS - 1) * BLOCK_PAGES) as u64);
        let came = |block: usize, page: usize| {
            let record = pager.process.pages.table().block(base + block).unwrap();
            match record.history().page(page) {
                Page::In { score: 0, came } => came,
                page => panic!("{page:?}"),
            }
        };
        let order: Vec<u16> =
            (0..BLOCKS - 1).flat_map(|block| (0..BLOCK_PAGES).map(move |page| came(block, page))).collect();
        assert!(order.is_sorted_by(|below, above| below >= above), "{order:?}");
        let (first, last) = (order[0], order[order.len() - 1]);
        assert!(first - last >= 14, "they came in turn, from {last} to {first}");
        assert_eq!(came(BLOCKS - 1, 0), 0, "nothing is there");
        // The oldest leave first and the youngest stay. Nothing is registered.
        let going = |block: usize| {
            let record = pager.process.pages.table().block(base + block).unwrap();
            pager.process.pages.policy.choose(record.history(), PageMask::ALL.bits(), 1).going
        };
        assert_eq!((going(0), going(BLOCKS - 2)), (0, PageMask::ALL.bits()));
        assert!(!pager.manages(range_of(base, 1)));
    }
}
