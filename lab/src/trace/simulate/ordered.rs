//! LRU, which evicts the page used longest ago, and Belady's MIN, which evicts the page whose next
//! use is furthest away.

use std::collections::BTreeSet;

use super::{Event, References, Replacement};

pub struct Ordered {
    /// For each event, the key that its page gets.
    keys: Vec<u32>,
    /// Pages in memory by their keys: the lowest goes first.
    order: BTreeSet<(u32, u32)>,
    key_of: Vec<Option<u32>>,
    pages: usize,
}

impl Ordered {
    /// LRU in a memory of `pages`.
    pub fn lru(references: &References, pages: usize) -> Self {
        let keys = (0..references.events().len() as u32).collect();
        Ordered { keys, order: BTreeSet::new(), key_of: vec![None; references.pages()], pages }
    }

    /// MIN in a memory of `pages`.
    pub fn min(references: &References, pages: usize) -> Self {
        let mut policy = Self::lru(references, pages);
        // Later uses have lower keys; without another use it is zero.
        let mut next = vec![0; references.pages()];
        for (at, event) in references.events().iter().enumerate().rev() {
            match *event {
                Event::Use(page) => {
                    policy.keys[at] = std::mem::replace(&mut next[page as usize], u32::MAX - at as u32);
                }
                Event::Drop { first, end } => next[first as usize..end as usize].fill(0),
            }
        }
        policy
    }
}

impl Replacement for Ordered {
    fn has(&self, page: u32) -> bool {
        self.key_of[page as usize].is_some()
    }

    fn hit(&mut self, page: u32, at: usize) {
        self.remove(page);
        self.key_of[page as usize] = Some(self.keys[at]);
        self.order.insert((self.keys[at], page));
    }

    fn admit(&mut self, page: u32, _first_touch: bool, at: usize) {
        while self.order.len() >= self.pages {
            let (_, first) = self.order.pop_first().expect("memory is not empty");
            self.key_of[first as usize] = None;
        }
        self.hit(page, at);
    }

    fn remove(&mut self, page: u32) {
        if let Some(key) = self.key_of[page as usize].take() {
            self.order.remove(&(key, page));
        }
    }
}
