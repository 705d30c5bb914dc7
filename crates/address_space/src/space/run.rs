//! Adjacent blocks whose locks are held together.

use super::block::{BlockGuard, PageState};
use super::table::AddressTable;
use crate::units::{ALL_PAGES, BLOCK_BYTES, BLOCK_PAGES, EXTENT_SLOTS};

/// Adjacent locked pages, numbered from the first page of the locked block or run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRun {
    /// The first page.
    pub first: usize,
    /// Number of pages.
    pub count: usize,
}

impl PageRun {
    /// `count` pages from `first` on.
    pub fn new(first: usize, count: usize) -> Self {
        PageRun { first, count }
    }

    /// The first page alone.
    pub fn one(self) -> Self {
        PageRun { count: 1, ..self }
    }
}

/// One or more blocks whose locks are held while this lives.
pub trait Locked {
    /// Address of the first page.
    fn base(&self) -> usize;
    /// Number of pages.
    fn pages(&self) -> usize;
}

impl Locked for BlockGuard<'_> {
    fn base(&self) -> usize {
        BlockGuard::base(self)
    }

    fn pages(&self) -> usize {
        BLOCK_PAGES
    }
}

impl Locked for RunGuard<'_> {
    fn base(&self) -> usize {
        self.first().base()
    }

    fn pages(&self) -> usize {
        self.count * BLOCK_PAGES
    }
}

/// Adjacent locked blocks. Only the first lock is waited for: a waiting thread may hold another.
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
            let next = self.base() + self.count * BLOCK_BYTES;
            let Some(guard) = table.try_lock(next) else { return };
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

    /// Mask of the pages of a run whose state passes `test`. Bit 0 is the first block's first page.
    pub fn mask_of(&self, test: impl Fn(PageState) -> bool) -> u128 {
        debug_assert!(self.count * BLOCK_PAGES <= 128, "a mask has room for 128 pages");
        self.iter()
            .enumerate()
            .fold(0, |mask, (index, block)| mask | u128::from(block.mask_of(&test)) << (index * BLOCK_PAGES))
    }
}

/// The sixteen bits of `mask` that belong to block `index` of a run.
pub fn part(mask: u128, index: usize) -> u32 {
    (mask >> (index * BLOCK_PAGES)) as u32 & ALL_PAGES
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn runs_of_blocks_end_where_a_lock_is_held() {
        let table = AddressTable::new().unwrap();
        let held = table.lock(5 * BLOCK_BYTES).unwrap();
        let mut run = RunGuard::of(table.lock(2 * BLOCK_BYTES + 77).unwrap());
        run.extend(&table, 8);
        assert_eq!((run.base(), run.count()), (2 * BLOCK_BYTES, 3));
        run.first().change(0x3, PageState::Kernel, PageState::Stored);
        assert_eq!(run.mask_of(|state| state == PageState::Stored), 3);
        drop(held);
        run.extend(&table, 8);
        assert_eq!(run.count(), 8);
        drop(run);
        assert!(table.try_lock(9 * BLOCK_BYTES).is_some());
    }
}
