//! Belady's MIN: evicts the page whose next use is furthest away.

use std::collections::BTreeSet;

use super::{Event, References, Replacement};

const NEVER: u32 = u32::MAX;

pub struct Min {
    /// For each event, the next use of its page.
    next: Vec<u32>,
    /// Pages in memory by their next use.
    order: BTreeSet<(u32, u32)>,
    due: Vec<Option<u32>>,
    pages: usize,
}

impl Min {
    /// A memory of `pages` for these references.
    pub fn new(references: &References, pages: usize) -> Self {
        let mut next = vec![NEVER; references.events().len()];
        let mut seen = vec![NEVER; references.pages()];
        for (at, event) in references.events().iter().enumerate().rev() {
            match *event {
                Event::Use(page) => next[at] = std::mem::replace(&mut seen[page as usize], at as u32),
                Event::Drop { first, end } => seen[first as usize..end as usize].fill(NEVER),
            }
        }
        Min { next, order: BTreeSet::new(), due: vec![None; references.pages()], pages }
    }
}

impl Replacement for Min {
    fn has(&self, page: u32) -> bool {
        self.due[page as usize].is_some()
    }

    fn hit(&mut self, page: u32, at: usize) {
        self.remove(page);
        self.due[page as usize] = Some(self.next[at]);
        self.order.insert((self.next[at], page));
    }

    fn admit(&mut self, page: u32, _first_touch: bool, at: usize) {
        while self.order.len() >= self.pages {
            let (_, last) = self.order.pop_last().expect("memory is not empty");
            self.due[last as usize] = None;
        }
        self.due[page as usize] = Some(self.next[at]);
        self.order.insert((self.next[at], page));
    }

    fn remove(&mut self, page: u32) {
        if let Some(due) = self.due[page as usize].take() {
            self.order.remove(&(due, page));
        }
    }
}
