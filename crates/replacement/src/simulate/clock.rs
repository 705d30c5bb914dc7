//! What the pager did before: a hand over the address space, one mark of recent faults a block,
//! whole blocks go.

use super::{References, Replacement};
use crate::policy::BLOCK_PAGES;

/// A hand over blocks.
pub(super) struct Hand {
    at: usize,
}

impl Hand {
    pub fn new() -> Self {
        Hand { at: 0 }
    }

    /// The next block with pages; memory must have some.
    pub fn next(&mut self, present: &[u16]) -> usize {
        loop {
            let at = self.at;
            self.at = (self.at + 1) % present.len();
            if present[at] != 0 {
                return at;
            }
        }
    }
}

/// The clock over blocks.
pub struct BlockClock {
    present: Vec<u16>,
    recent: Vec<bool>,
    hand: Hand,
    count: usize,
    pages: usize,
    looks: u64,
}

impl BlockClock {
    /// A memory of `pages`.
    pub fn new(references: &References, pages: usize) -> Self {
        let blocks = references.pages() / BLOCK_PAGES;
        BlockClock {
            present: vec![0; blocks],
            recent: vec![false; blocks],
            hand: Hand::new(),
            count: 0,
            pages,
            looks: 0,
        }
    }
}

/// Block and bit of a page.
pub(super) fn place(page: u32) -> (usize, usize) {
    (page as usize / BLOCK_PAGES, page as usize % BLOCK_PAGES)
}

impl Replacement for BlockClock {
    fn has(&self, page: u32) -> bool {
        let (block, bit) = place(page);
        self.present[block] >> bit & 1 != 0
    }

    fn hit(&mut self, _page: u32, _at: usize) {}

    fn admit(&mut self, page: u32, _first_touch: bool, _at: usize) {
        while self.count >= self.pages {
            let block = self.hand.next(&self.present);
            self.looks += u64::from(self.present[block].count_ones());
            if !std::mem::take(&mut self.recent[block]) {
                self.count -= std::mem::take(&mut self.present[block]).count_ones() as usize;
            }
        }
        let (block, bit) = place(page);
        self.present[block] |= 1 << bit;
        self.recent[block] = true;
        self.count += 1;
    }

    fn remove(&mut self, page: u32) {
        let (block, bit) = place(page);
        self.present[block] &= !(1 << bit);
        self.count -= 1;
    }

    fn looks(&self) -> u64 {
        self.looks
    }
}
