//! Adjacent blocks whose locks are held together.

use super::block::{BlockGuard, Locked, PageState};
use super::table::AddressTable;
use crate::units::{BlockNumber, RunMask, BLOCK_PAGES, EXTENT_SLOTS};

impl Locked for RunGuard<'_> {
    fn start(&self) -> BlockNumber {
        self.first().number()
    }

    fn pages(&self) -> usize {
        self.count * BLOCK_PAGES
    }
}

/// Adjacent locked blocks, for moves of many pages by one call. Only the first lock is waited for:
/// a waiting thread may hold another.
pub struct RunGuard<'a> {
    blocks: [Option<BlockGuard<'a>>; EXTENT_SLOTS],
    count: usize,
}

impl<'a> RunGuard<'a> {
    pub fn of(first: BlockGuard<'a>) -> Self {
        let mut run = RunGuard { blocks: [const { None }; EXTENT_SLOTS], count: 1 };
        run.blocks[0] = Some(first);
        run
    }

    /// Adds blocks, up to `count` in all, while their locks are free and have or get a record.
    pub fn extend(&mut self, table: &'a AddressTable, count: usize) {
        while self.count < count.min(EXTENT_SLOTS) {
            let Some(guard) = table.try_lock(self.start() + self.count) else { return };
            self.blocks[self.count] = Some(guard);
            self.count += 1;
        }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn first(&self) -> &BlockGuard<'a> {
        self.blocks[0].as_ref().expect("a run has a first block")
    }

    pub fn iter(&self) -> impl Iterator<Item = &BlockGuard<'a>> {
        self.blocks[..self.count].iter().flatten()
    }

    /// The pages of the run whose state passes `test`.
    pub fn mask_of(&self, test: impl Fn(PageState) -> bool) -> RunMask {
        let masks =
            self.iter().enumerate().map(|(index, block)| RunMask::from_block(index, block.mask_of(&test)));
        masks.fold(RunMask::NONE, |all, mask| all | mask)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::units::PageMask;

    #[test]
    fn runs_of_blocks_end_where_a_lock_is_held() {
        let table = AddressTable::new().unwrap();
        let second = BlockNumber::of(0x20000);
        let held = table.lock(second + 3).unwrap();
        let mut run = RunGuard::of(table.lock(second).unwrap());
        run.extend(&table, 8);
        assert_eq!((run.start(), run.count()), (second, 3));
        run.first().change(PageMask::span(0, 2), PageState::Kernel, PageState::Stored);
        assert_eq!(run.mask_of(|state| state == PageState::Stored), RunMask::first(2));
        drop(held);
        run.extend(&table, 8);
        assert_eq!(run.count(), 8);
        drop(run);
        assert!(table.try_lock(second + 7).is_some());
    }
}
