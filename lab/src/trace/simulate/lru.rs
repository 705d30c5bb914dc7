//! LRU: evicts the page used longest ago.

use super::list::{Rows, NOWHERE};
use super::Replacement;

pub struct Lru {
    rows: Rows,
    pages: usize,
}

impl Lru {
    /// A memory of `pages` of `count` pages.
    pub fn new(count: usize, pages: usize) -> Self {
        Lru { rows: Rows::new(count, 1), pages }
    }
}

impl Replacement for Lru {
    fn has(&self, page: u32) -> bool {
        self.rows.of(page) != NOWHERE
    }

    fn hit(&mut self, page: u32, _at: usize) {
        self.rows.take(page);
        self.rows.push(0, page);
    }

    fn admit(&mut self, page: u32, _first_touch: bool, _at: usize) {
        while self.rows.len(0) >= self.pages {
            let last = self.rows.last(0).expect("memory is not empty");
            self.rows.take(last);
        }
        self.rows.push(0, page);
    }

    fn remove(&mut self, page: u32) {
        self.rows.take(page);
    }
}
