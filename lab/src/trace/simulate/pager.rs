//! The pager's policy, [`replacement::policy`], with the pager's hand.

use super::{References, Replacement};
use replacement::policy::{History, Leaps, Policy, Returned, BLOCK_PAGES};

fn place(page: u32) -> (usize, usize) {
    (page as usize / BLOCK_PAGES, page as usize % BLOCK_PAGES)
}

pub struct Pager {
    policy: Policy,
    histories: Vec<History>,
    present: Vec<u16>,
    /// The next block of the hand.
    hand: usize,
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
    /// Armed pages, if uses are tracked.
    armed: Option<Vec<u16>>,
    arms: u64,
    faults: u64,
    seen: Seen,
}

/// The pager's view of memory that fills: it scans once when a half is full, and sees arrivals from
/// five sixths on.
#[derive(PartialEq)]
enum Seen {
    Nothing,
    Found,
    Arrivals,
}

impl Pager {
    pub fn new(references: &References, pages: usize) -> Self {
        let blocks = references.pages() / BLOCK_PAGES;
        Pager {
            policy: Policy::new(pages as u64),
            histories: (0..blocks).map(|_| History::default()).collect(),
            present: vec![0; blocks],
            hand: 0,
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
            armed: None,
            arms: 0,
            faults: 0,
            seen: Seen::Nothing,
        }
    }

    /// A memory of `pages`, where the kernel reports the pages' uses.
    pub fn tracking(references: &References, pages: usize) -> Self {
        let pager = Self::new(references, pages);
        Pager { armed: Some(vec![0; pager.present.len()]), ..pager }
    }

    fn sees_arrivals(&mut self) -> bool {
        if self.seen == Seen::Nothing && self.count >= self.pages / 2 {
            self.seen = Seen::Found;
            let mut nth = 0;
            for (history, present) in self.histories.iter().zip(&self.present).rev() {
                self.policy.found(history, (*present).into(), nth, self.count as u64);
                nth += u64::from(present.count_ones());
            }
        }
        if self.seen != Seen::Arrivals && self.count >= self.pages / 6 * 5 {
            self.seen = Seen::Arrivals;
        }
        self.seen == Seen::Arrivals
    }

    /// Selects the pages of a block to evict.
    fn choose(&mut self, block: usize) -> u16 {
        let (history, present) = (&self.histories[block], self.present[block].into());
        let Some(armed) = &mut self.armed else {
            let choice = self.policy.choose(history, present, self.turn);
            self.tried += u64::from(choice.tried.count_ones());
            return choice.going as u16;
        };
        let choice = self.policy.choose_tracked(history, present, armed[block].into(), self.turn);
        self.tried += u64::from(choice.tried.count_ones());
        self.arms += u64::from(choice.arm.count_ones());
        armed[block] = (armed[block] | choice.arm as u16) & !choice.going as u16;
        choice.going as u16
    }
}

impl Replacement for Pager {
    fn has(&self, page: u32) -> bool {
        let (block, bit) = place(page);
        self.present[block] >> bit & 1 != 0
    }

    fn hit(&mut self, page: u32, _at: usize) {
        let (block, bit) = place(page);
        if let Some(armed) = &mut self.armed {
            self.faults += u64::from(armed[block] >> bit & 1);
            armed[block] &= !(1 << bit);
        }
    }

    fn admit(&mut self, page: u32, first_touch: bool, _at: usize) {
        let mut fruitless = 0;
        while self.count >= self.pages {
            let block = self.hand;
            self.hand = (block + 1) % self.present.len();
            if self.present[block] == 0 {
                continue;
            }
            if block <= self.last {
                self.leaps.round();
            }
            self.last = block;
            let present = self.present[block];
            if self.leaps.skips(present.count_ones()) {
                continue;
            }
            self.turn += 1;
            self.looks += u64::from(present.count_ones());
            let mut going = self.choose(block);
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
            if let Some(armed) = &mut self.armed {
                armed[block] &= !going;
            }
            self.count -= going.count_ones() as usize;
        }
        let (block, bit) = place(page);
        self.present[block] |= 1 << bit;
        self.count += 1;
        if !self.sees_arrivals() {
            return;
        }
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
        if let Some(armed) = &mut self.armed {
            armed[block] &= !(1 << bit);
        }
        self.count -= 1;
    }

    fn looks(&self) -> u64 {
        self.looks
    }

    fn note(&self) -> String {
        let tracking = match self.armed {
            Some(_) => format!("; {} armed, {} of them used", self.arms, self.faults),
            None => String::new(),
        };
        format!(
            "{:.1} % of the evicted were tried; mean distance {:.2} memories; {:.2} pages a block, {:.2} a run{tracking}",
            self.tried as f64 * 100.0 / self.evicted.max(1) as f64,
            self.returned.distance_pages as f64 / self.returned.pages.max(1) as f64 / self.pages as f64,
            self.evicted as f64 / self.calls.max(1) as f64,
            self.evicted as f64 / self.runs.max(1) as f64,
        )
    }
}
