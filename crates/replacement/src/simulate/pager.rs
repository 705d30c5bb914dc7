//! The pager's policy, [`crate::policy`], with the pager's hand.

use super::clock::{place, Hand};
use super::{References, Replacement};
use crate::policy::{History, Policy, BLOCK_PAGES};

/// The pager.
pub struct Pager {
    policy: Policy,
    histories: Vec<History>,
    present: Vec<u16>,
    hand: Hand,
    count: usize,
    pages: usize,
    turn: u64,
}

impl Pager {
    /// A memory of `pages`.
    pub fn new(references: &References, pages: usize) -> Self {
        let blocks = references.pages() / BLOCK_PAGES;
        Pager {
            policy: Policy::new(pages as u64),
            histories: (0..blocks).map(|_| History::default()).collect(),
            present: vec![0; blocks],
            hand: Hand::new(),
            count: 0,
            pages,
            turn: 0,
        }
    }
}

impl Replacement for Pager {
    fn has(&self, page: u32) -> bool {
        let (block, bit) = place(page);
        self.present[block] >> bit & 1 != 0
    }

    fn hit(&mut self, _page: u32, _at: usize) {}

    fn admit(&mut self, page: u32, first_touch: bool, _at: usize) {
        let mut fruitless = 0;
        while self.count >= self.pages {
            let block = self.hand.next(&self.present);
            let present = self.present[block];
            self.turn += 1;
            let mut going = self.policy.choose(&self.histories[block], present.into(), self.turn) as u16;
            fruitless = if going == 0 { fruitless + usize::from(present.count_ones() as u16) } else { 0 };
            // As the pager does after a round: whatever there is.
            if fruitless > self.pages {
                going = present;
            }
            self.policy.evicted(&self.histories[block], going.into());
            self.present[block] &= !going;
            self.count -= going.count_ones() as usize;
        }
        let (block, bit) = place(page);
        self.present[block] |= 1 << bit;
        self.count += 1;
        match first_touch {
            true => self.policy.touched(&self.histories[block], 1 << bit),
            false => self.policy.returned(&self.histories[block], 1 << bit, 1 << bit),
        }
    }

    fn remove(&mut self, page: u32) {
        let (block, bit) = place(page);
        self.present[block] &= !(1 << bit);
        self.count -= 1;
    }

    fn looks(&self) -> u64 {
        self.policy.figures().looked_at
    }

    fn note(&self) -> String {
        let figures = self.policy.figures();
        format!(
            "{} of {} evicted were tried; mean distance {:.2} memories",
            figures.tried,
            figures.evicted,
            figures.distance_pages as f64 / figures.returned.max(1) as f64 / self.pages as f64
        )
    }
}
