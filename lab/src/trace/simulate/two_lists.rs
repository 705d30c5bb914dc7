//! The kernel's two lists for anonymous memory, with its refault distances (`mm/vmscan.c`,
//! `mm/workingset.c`, without the multi-generational LRU). Pages begin inactive. They are activated
//! if they were used before they reach the end of the inactive list, or if their refault distance
//! is less than the memory's size. The active list is shortened to the inactive one's length, used
//! pages included.

use super::list::{Rows, NOWHERE};
use super::Replacement;

const INACTIVE: u8 = 0;
const ACTIVE: u8 = 1;

pub struct TwoLists {
    rows: Rows,
    used: Vec<bool>,
    /// Evictions and activations when a page was evicted; 0 for other pages.
    went: Vec<u64>,
    age: u64,
    pages: usize,
    looks: u64,
}

impl TwoLists {
    /// A memory of `pages` of `count` pages.
    pub fn new(count: usize, pages: usize) -> Self {
        TwoLists {
            rows: Rows::new(count, 2),
            used: vec![false; count],
            went: vec![0; count],
            age: 1,
            pages,
            looks: 0,
        }
    }

    fn make_room(&mut self) {
        while self.rows.len(INACTIVE) + self.rows.len(ACTIVE) >= self.pages {
            while self.rows.len(ACTIVE) > self.rows.len(INACTIVE) {
                let page = self.rows.last(ACTIVE).expect("longer than the other");
                self.rows.take(page);
                self.used[page as usize] = false;
                self.rows.push(INACTIVE, page);
                self.looks += 1;
            }
            let page = self.rows.last(INACTIVE).expect("at least as long as the other");
            self.rows.take(page);
            self.looks += 1;
            self.age += 1;
            if std::mem::take(&mut self.used[page as usize]) {
                self.rows.push(ACTIVE, page);
            } else {
                self.went[page as usize] = self.age;
            }
        }
    }
}

impl Replacement for TwoLists {
    fn has(&self, page: u32) -> bool {
        self.rows.of(page) != NOWHERE
    }

    fn hit(&mut self, page: u32, _at: usize) {
        self.used[page as usize] = true;
    }

    fn admit(&mut self, page: u32, _first_touch: bool, _at: usize) {
        self.make_room();
        let went = std::mem::take(&mut self.went[page as usize]);
        let is_soon = went != 0 && self.age - went <= self.pages as u64;
        self.rows.push(if is_soon { ACTIVE } else { INACTIVE }, page);
        self.age += u64::from(is_soon);
    }

    fn remove(&mut self, page: u32) {
        self.rows.take(page);
        self.used[page as usize] = false;
    }

    fn looks(&self) -> u64 {
        self.looks
    }
}
