//! FIFO, CLOCK and LRU: one row, and what a use does to it.

use super::list::{Rows, NOWHERE};
use super::Replacement;

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// First in, first out.
    Fifo,
    /// A second chance for pages used since the hand passed.
    Clock,
    /// Least recently used.
    Lru,
}

/// One row.
pub struct Plain {
    kind: Kind,
    rows: Rows,
    used: Vec<bool>,
    pages: usize,
    looks: u64,
}

impl Plain {
    /// A memory of `pages` of `count` pages.
    pub fn new(count: usize, pages: usize, kind: Kind) -> Self {
        Plain { kind, rows: Rows::new(count, 1), used: vec![false; count], pages, looks: 0 }
    }
}

impl Replacement for Plain {
    fn has(&self, page: u32) -> bool {
        self.rows.of(page) != NOWHERE
    }

    fn hit(&mut self, page: u32, _at: usize) {
        match self.kind {
            Kind::Fifo => {}
            Kind::Clock => self.used[page as usize] = true,
            Kind::Lru => {
                self.rows.take(page);
                self.rows.push(0, page);
            }
        }
    }

    fn admit(&mut self, page: u32, _first_touch: bool, _at: usize) {
        while self.rows.len(0) >= self.pages {
            let last = self.rows.last(0).expect("memory is not empty");
            self.looks += 1;
            self.rows.take(last);
            if std::mem::take(&mut self.used[last as usize]) {
                self.rows.push(0, last);
            }
        }
        self.rows.push(0, page);
    }

    fn remove(&mut self, page: u32) {
        self.used[page as usize] = false;
        self.rows.take(page);
    }

    fn looks(&self) -> u64 {
        self.looks
    }
}
