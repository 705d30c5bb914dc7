//! The clock: which pages go next. A hand walks the managed address space, and the policy says of
//! each block's pages which of them go ([`replacement::policy`]).

use replacement::policy::Leaps;
use sys::pagemap::Run;
use sys::PAGE_SIZE;

use crate::accounts::Counter;
use crate::pages::{now_ms, BLOCK_BYTES};
use crate::span;

use super::Reclaimer;

/// Runs of present pages that one look may find.
const RUNS: usize = 128;

/// The clock hand: where in the address space the reclaimer looks next.
pub struct Hand {
    at: usize,
    runs: [Run; RUNS],
    next: usize,
    count: usize,
    /// A candidate that was offered and not taken.
    again: Option<(usize, u32)>,
    /// Blocks offered since the hand last passed the end of the address space.
    offered: usize,
    /// Blocks looked at.
    turn: u64,
    leaps: Leaps,
}

/// What looking for a candidate came to, in pages.
#[derive(Default)]
struct Looked {
    pages: u64,
    spared: u64,
    tried: u64,
}

impl Hand {
    /// At the bottom of the address space.
    pub fn new() -> Self {
        Hand {
            at: 0,
            runs: [Run::default(); RUNS],
            next: 0,
            count: 0,
            again: None,
            offered: 0,
            turn: 0,
            leaps: Leaps::default(),
        }
    }

    /// The next block with present pages, as address and mask, of what was seen at the last look.
    fn next_seen(&mut self) -> Option<(usize, u32)> {
        let run = (self.next < self.count).then(|| self.runs[self.next])?;
        let base = run.start as usize & !(BLOCK_BYTES - 1);
        let mut mask = 0;
        // Runs of the same block are one candidate.
        while self.next < self.count && (self.runs[self.next].start as usize) < base + BLOCK_BYTES {
            let run = &mut self.runs[self.next];
            let end = (run.end as usize).min(base + BLOCK_BYTES);
            let first = (run.start as usize - base) / PAGE_SIZE;
            mask |= span(first, (end - run.start as usize) / PAGE_SIZE);
            if end < run.end as usize {
                run.start = end as u64;
                break;
            }
            self.next += 1;
        }
        Some((base, mask))
    }
}

impl Reclaimer<'_> {
    /// The next block with present pages that are to go, as the policy chooses. `None` when three
    /// rounds found nothing that can.
    pub(crate) fn next_candidate(&self) -> Option<(usize, u32)> {
        let mut hand = self.hand.lock().expect("no panic while held");
        if let Some(candidate) = hand.again.take() {
            return Some(candidate);
        }
        let mut looked = Looked::default();
        let candidate = self.look_on(&mut hand, &mut looked);
        drop(hand);
        self.reclaim.note_looked_at(looked.pages);
        for (count, by) in [
            (Counter::LookedAt, looked.pages),
            (Counter::Spared, looked.spared),
            (Counter::Tried, looked.tried),
        ] {
            if by > 0 {
                self.accounts.add(count, by);
            }
        }
        candidate
    }

    /// Has a candidate be the next one once more.
    pub(crate) fn offer_again(&self, candidate: (usize, u32)) {
        self.hand.lock().expect("no panic while held").again = Some(candidate);
    }

    fn look_on(&self, hand: &mut Hand, looked: &mut Looked) -> Option<(usize, u32)> {
        let mut wraps = 0;
        loop {
            while let Some((base, mask)) = hand.next_seen() {
                if hand.leaps.skips(mask.count_ones()) {
                    continue;
                }
                let Ok(block) = self.pages.table().block(base) else { continue };
                if block.is_compressing() {
                    continue;
                }
                let mask = mask & !block.refused_at(now_ms()) & !self.kept.of(base);
                if mask == 0 {
                    continue;
                }
                hand.turn += 1;
                let choice = self.pages.policy().choose(block.history(), mask, hand.turn);
                // Who needs room gets it: after two rounds that the policy let pass everything
                // goes.
                let going = if wraps > 1 { mask } else { choice.going };
                looked.pages += u64::from(mask.count_ones());
                looked.spared += u64::from((mask & !going).count_ones());
                looked.tried += u64::from(choice.tried.count_ones());
                if going != 0 {
                    hand.offered += 1;
                    hand.leaps.went(going.count_ones(), self.pages.policy().all_returned());
                    return Some((base, going));
                }
            }
            if !self.scan(hand) {
                hand.at = 0;
                if hand.leaps.round() && hand.offered == 0 {
                    wraps += 1;
                    if wraps == 3 {
                        return None;
                    }
                    self.pages.policy().decide_anew();
                }
                hand.offered = 0;
            }
        }
    }

    /// Fills the hand with the next present runs; false at the end of the address space.
    fn scan(&self, hand: &mut Hand) -> bool {
        loop {
            let mapping = self.registrations.lock().expect("no panic while held").from(hand.at);
            let Some(mapping) = mapping else { return false };
            let start = hand.at.max(mapping.start);
            let (count, walked) = self.pages.pagemap().present(start, mapping.end, &mut hand.runs);
            hand.at = walked.max(start + PAGE_SIZE);
            (hand.next, hand.count) = (0, count);
            if count > 0 {
                return true;
            }
        }
    }
}
