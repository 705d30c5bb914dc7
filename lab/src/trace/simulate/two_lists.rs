//! The kernel's two lists for anonymous memory, with its refault distances (`mm/vmscan.c`,
//! `mm/workingset.c`, without the multi-generational LRU). Pages begin inactive. They are activated
//! if they were used before they reach the end of the inactive list, or if their refault distance
//! is less than the memory's size. The active list is shortened to the inactive one's length, used
//! pages included.

use std::collections::BTreeMap;

use super::Replacement;

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;

pub struct TwoLists {
    /// Pages by the time of their insertion.
    lists: [BTreeMap<u64, u32>; 2],
    /// A page's list and time.
    places: Vec<Option<(usize, u64)>>,
    time: u64,
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
            lists: Default::default(),
            places: vec![None; count],
            time: 0,
            used: vec![false; count],
            went: vec![0; count],
            age: 1,
            pages,
            looks: 0,
        }
    }

    fn push(&mut self, list: usize, page: u32) {
        self.time += 1;
        self.lists[list].insert(self.time, page);
        self.places[page as usize] = Some((list, self.time));
    }

    /// Takes the page that has been in a list for the longest time.
    fn pop(&mut self, list: usize) -> u32 {
        let (_, page) = self.lists[list].pop_first().expect("the list is not empty");
        self.places[page as usize] = None;
        page
    }

    fn make_room(&mut self) {
        while self.lists[INACTIVE].len() + self.lists[ACTIVE].len() >= self.pages {
            while self.lists[ACTIVE].len() > self.lists[INACTIVE].len() {
                let page = self.pop(ACTIVE);
                self.used[page as usize] = false;
                self.push(INACTIVE, page);
                self.looks += 1;
            }
            let page = self.pop(INACTIVE);
            self.looks += 1;
            self.age += 1;
            if std::mem::take(&mut self.used[page as usize]) {
                self.push(ACTIVE, page);
            } else {
                self.went[page as usize] = self.age;
            }
        }
    }
}

impl Replacement for TwoLists {
    fn has(&self, page: u32) -> bool {
        self.places[page as usize].is_some()
    }

    fn hit(&mut self, page: u32, _at: usize) {
        self.used[page as usize] = true;
    }

    fn admit(&mut self, page: u32, _first_touch: bool, _at: usize) {
        self.make_room();
        let went = std::mem::take(&mut self.went[page as usize]);
        let is_soon = went != 0 && self.age - went <= self.pages as u64;
        self.push(if is_soon { ACTIVE } else { INACTIVE }, page);
        self.age += u64::from(is_soon);
    }

    fn remove(&mut self, page: u32) {
        if let Some((list, time)) = self.places[page as usize].take() {
            self.lists[list].remove(&time);
        }
        self.used[page as usize] = false;
    }

    fn looks(&self) -> u64 {
        self.looks
    }
}
