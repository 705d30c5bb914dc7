//! The pager's policy, [`crate::policy`], with the pager's hand.

use super::clock::{place, Hand};
use super::{References, Replacement};
use crate::policy::{History, Leaps, Policy, Returned, BLOCK_PAGES};

/// The pager.
pub struct Pager {
    policy: Policy,
    histories: Vec<History>,
    present: Vec<u16>,
    hand: Hand,
    leaps: Leaps,
    /// The block before.
    last: usize,
    count: usize,
    pages: usize,
    turn: u64,
    looks: u64,
    evicted: u64,
    calls: u64,
    runs: u64,
    tried: u64,
    returned: Returned,
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
            leaps: Leaps::default(),
            last: 0,
            count: 0,
            pages,
            turn: 0,
            looks: 0,
            evicted: 0,
            calls: 0,
            runs: 0,
            tried: 0,
            returned: Returned::default(),
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
            if block <= self.last {
                self.leaps.round();
            }
            self.last = block;
            let present = self.present[block];
            if self.leaps.skips(present.count_ones()) {
                continue;
            }
            self.turn += 1;
            let choice = self.policy.choose(&self.histories[block], present.into(), self.turn);
            self.looks += u64::from(present.count_ones());
            self.tried += u64::from(choice.tried.count_ones());
            let mut going = choice.going as u16;
            let before = fruitless;
            fruitless = if going == 0 { fruitless + present.count_ones() as usize } else { 0 };
            // As the pager does after a round, and after two: any page goes.
            if before <= self.pages && fruitless > self.pages {
                self.policy.decide_anew();
            }
            if fruitless > 2 * self.pages {
                going = present;
            }
            self.leaps.went(going.count_ones(), self.policy.all_returned());
            self.policy.evicted(&self.histories[block], going.into());
            self.evicted += u64::from(going.count_ones());
            self.calls += u64::from(going != 0);
            self.runs += u64::from((going & !(going << 1)).count_ones());
            self.present[block] &= !going;
            self.count -= going.count_ones() as usize;
        }
        let (block, bit) = place(page);
        self.present[block] |= 1 << bit;
        self.count += 1;
        match first_touch {
            true => self.policy.touched(&self.histories[block], 1 << bit),
            false => {
                let returned = self.policy.returned(&self.histories[block], 1 << bit, 1 << bit, false);
                self.returned.pages += returned.pages;
                self.returned.distance_pages += returned.distance_pages;
            }
        }
    }

    fn remove(&mut self, page: u32) {
        let (block, bit) = place(page);
        self.present[block] &= !(1 << bit);
        self.count -= 1;
    }

    fn looks(&self) -> u64 {
        self.looks
    }

    fn note(&self) -> String {
        format!(
            "{:.1} % of the evicted were tried; mean distance {:.2} memories; {:.2} pages a block, {:.2} a run",
            self.tried as f64 * 100.0 / self.evicted.max(1) as f64,
            self.returned.distance_pages as f64 / self.returned.pages.max(1) as f64 / self.pages as f64,
            self.evicted as f64 / self.calls.max(1) as f64,
            self.evicted as f64 / self.runs.max(1) as f64,
        )
    }
}
