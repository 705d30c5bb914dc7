//! The clock: which pages go next. It walks the managed address space and passes over what was used lately.

use sys::pagemap::Run;
use sys::PAGE_SIZE;

use crate::pager::{now_ms, Pager};
use crate::table::{span, Block, BLOCK_BYTES, COMPRESSING, RECENT, STUBBORN};

/// Runs of present pages that one look may find.
const RUNS: usize = 128;

/// The clock hand: where in the address space the reclaimer looks next.
pub struct Hand {
    at: usize,
    runs: [Run; RUNS],
    next: usize,
    count: usize,
    /// Blocks offered since the hand last passed the end of the address space.
    offered: usize,
}

impl Hand {
    /// At the bottom of the address space.
    pub fn new() -> Self {
        Hand { at: 0, runs: [Run::default(); RUNS], next: 0, count: 0, offered: 0 }
    }
}

impl Pager {
    /// The next block with present pages, by the clock: blocks faulted in since the last round are passed over once.
    pub(crate) fn next_candidate(&self) -> Option<(usize, u32)> {
        let mut hand = self.hand.lock().expect("no panic while held");
        let mut wraps = 0;
        loop {
            while hand.next < hand.count {
                let run = hand.runs[hand.next];
                let base = run.start as usize & !(BLOCK_BYTES - 1);
                let end = (run.end as usize).min(base + BLOCK_BYTES);
                let first = (run.start as usize - base) / PAGE_SIZE;
                let mut mask = span(first, (end - run.start as usize) / PAGE_SIZE);
                if end == run.end as usize {
                    hand.next += 1;
                } else {
                    let index = hand.next;
                    hand.runs[index].start = end as u64;
                }
                // Runs of the same block are one candidate.
                while hand.next < hand.count && (hand.runs[hand.next].start as usize) < base + BLOCK_BYTES {
                    let run = hand.runs[hand.next];
                    let end = (run.end as usize).min(base + BLOCK_BYTES);
                    let first = (run.start as usize - base) / PAGE_SIZE;
                    mask |= span(first, (end - run.start as usize) / PAGE_SIZE);
                    if end < run.end as usize {
                        let index = hand.next;
                        hand.runs[index].start = end as u64;
                        break;
                    }
                    hand.next += 1;
                }
                let Ok(block) = self.table.block(base) else { continue };
                if block.clear(RECENT) || self.spare(block, base) {
                    continue;
                }
                hand.offered += 1;
                return Some((base, mask));
            }
            if !self.scan(&mut hand) {
                hand.at = 0;
                if hand.offered == 0 {
                    wraps += 1;
                    // Twice round: the first round may only have cleared marks.
                    if wraps == 2 {
                        return None;
                    }
                }
                hand.offered = 0;
            }
        }
    }

    /// Whether a block is passed over for a reason other than recent use.
    fn spare(&self, block: &Block, base: usize) -> bool {
        if block.has(STUBBORN) {
            // Tried again once in a while: what did not compress may have changed.
            if base / BLOCK_BYTES % 16 == (sys::now_ns() >> 28) as usize % 16 {
                block.clear(STUBBORN);
            }
            return true;
        }
        self.is_quarantined(block, base) || block.has(COMPRESSING)
    }

    pub(crate) fn is_quarantined(&self, block: &Block, base: usize) -> bool {
        let now = now_ms();
        block.is_quarantined(now) || self.table.is_leaf_quarantined(base, now)
    }

    /// Fills the hand with the next present runs; false at the end of the address space.
    fn scan(&self, hand: &mut Hand) -> bool {
        loop {
            let mapping = self.mappings.lock().expect("no panic while held").from(hand.at);
            let Some(mapping) = mapping else { return false };
            let start = hand.at.max(mapping.start);
            let (count, walked) = self.pagemap.present(start, mapping.end, &mut hand.runs);
            hand.at = walked.max(start + PAGE_SIZE);
            (hand.next, hand.count) = (0, count);
            if count > 0 {
                return true;
            }
        }
    }
}
