//! The clock, which chooses the pages to evict. A hand walks the managed address space, and the
//! policy chooses among each block's pages ([`replacement::policy`]). If uses are tracked
//! ([`address_space::AccessTracker`]), a chosen page is armed first, and evicted if it is unused
//! when the hand returns.

use std::sync::{Arc, Mutex};

use address_space::units::{bytes_of, pages_in, BlockNumber, PageMask, PageNumber};
use address_space::{now_ms, Counter};
use replacement::policy::{Choice, History, Leaps, Tracked};
use sys::pagemap::Run;
use sys::PAGE_SIZE;

use crate::process::Process;

use super::evictions::Evictions;

const RUNS: usize = 128;
/// A scan that finds fewer pages counts the difference as barred, because a scan costs as much as
/// looking at this number. A collector's write barrier makes thousands of mostly empty one-page
/// mappings.
const SCAN_PAGES: usize = 8;

/// The clock hand: the reclaimer's place in the address space.
struct Hand {
    at: usize,
    runs: [Run; RUNS],
    next: usize,
    count: usize,
    /// A candidate that was offered and not used.
    again: Option<(BlockNumber, PageMask)>,
    /// Blocks offered since the hand last passed the end of the address space.
    offered: usize,
    turn: u64,
    leaps: Leaps,
}

#[derive(Default)]
struct Looked {
    pages: u64,
    barred: u64,
    spared: u64,
    tried: u64,
    armed: u64,
    used: u64,
}

impl Hand {
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

    /// The next block with present pages: which it is, its pages, and pages used at the last look.
    fn next_seen(&mut self) -> Option<(BlockNumber, PageMask, PageMask)> {
        let run = (self.next < self.count).then(|| self.runs[self.next])?;
        let block = BlockNumber::of(run.start as usize);
        let (mut mask, mut used) = (PageMask::NONE, PageMask::NONE);
        // Runs of one block are one candidate.
        while self.next < self.count && (self.runs[self.next].start as usize) < block.end() {
            let run = &mut self.runs[self.next];
            let end = (run.end as usize).min(block.end());
            let first = PageNumber::of(run.start as usize).index();
            let pages = PageMask::span(first, pages_in(end - run.start as usize));
            mask |= pages;
            used |= if run.is_used() { pages } else { PageMask::NONE };
            if end < run.end as usize {
                run.start = end as u64;
                break;
            }
            self.next += 1;
        }
        Some((block, mask, used))
    }
}

/// The hand, and the process whose pages it walks.
pub(crate) struct Clock {
    process: Arc<Process>,
    hand: Mutex<Hand>,
}

impl Clock {
    pub(super) fn new(process: Arc<Process>) -> Self {
        Clock { process, hand: Mutex::new(Hand::new()) }
    }

    /// The next block with pages that the policy evicts. `None` if three rounds found none.
    pub(super) fn next_candidate(&self, evictions: &Evictions) -> Option<(BlockNumber, PageMask)> {
        let mut hand = self.hand.lock().expect("no panic while held");
        if let Some(candidate) = hand.again.take() {
            return Some(candidate);
        }
        let mut looked = Looked::default();
        let candidate = self.look_on(&mut hand, &mut looked);
        drop(hand);
        evictions.note_looked_at(looked.pages);
        evictions.note_barred(looked.barred);
        for (count, by) in [
            (Counter::LookedAt, looked.pages),
            (Counter::Spared, looked.spared),
            (Counter::Tried, looked.tried),
            (Counter::Armed, looked.armed),
            (Counter::SeenUsed, looked.used),
        ] {
            if by > 0 {
                self.process.accounts.add(count, by);
            }
        }
        candidate
    }

    pub(super) fn offer_again(&self, candidate: (BlockNumber, PageMask)) {
        self.hand.lock().expect("no panic while held").again = Some(candidate);
    }

    fn look_on(&self, hand: &mut Hand, looked: &mut Looked) -> Option<(BlockNumber, PageMask)> {
        let mut wraps = 0;
        loop {
            while let Some((at, mask, used)) = hand.next_seen() {
                if hand.leaps.skips(mask.count() as u32) {
                    continue;
                }
                let Ok(block) = self.process.pages.table().block(at) else { continue };
                let present = mask;
                let mask = match block.is_compressing() {
                    true => PageMask::NONE,
                    false => mask & !block.refused_at(now_ms()) & !self.process.kept.of(at),
                };
                looked.barred += (present & !mask).count() as u64;
                if mask.is_empty() {
                    continue;
                }
                hand.turn += 1;
                let choice = self.choose(looked, at, block.history(), mask, used, hand.turn);
                // After two rounds in which the policy spared everything, every page may leave. If
                // uses are tracked, unused pages leave first.
                let unused = if (mask & !used).is_empty() { mask } else { mask & !used };
                let going = if wraps > 1 { unused } else { PageMask::from_bits(choice.going) };
                looked.pages += mask.count() as u64;
                looked.spared += (mask & !going).count() as u64;
                looked.tried += u64::from(choice.tried.count_ones());
                if !going.is_empty() {
                    hand.offered += 1;
                    hand.leaps.went(going.count() as u32, self.process.pages.policy.all_returned());
                    return Some((at, going));
                }
            }
            if !self.scan(hand, looked) {
                hand.at = 0;
                if hand.leaps.round() && hand.offered == 0 {
                    wraps += 1;
                    if wraps == 3 {
                        return None;
                    }
                    self.process.pages.policy.decide_anew();
                }
                hand.offered = 0;
            }
        }
    }

    /// Chooses a block's pages to evict. Arms others if uses are tracked.
    fn choose(
        &self,
        looked: &mut Looked,
        at: BlockNumber,
        history: &History,
        mask: PageMask,
        used: PageMask,
        turn: u64,
    ) -> Choice {
        let (policy, tracker) = (&self.process.pages.policy, self.process.pages.tracker());
        if !tracker.sees_uses() {
            return policy.choose(history, mask.bits(), turn);
        }
        let armed = (mask & !used).bits();
        let Tracked { going, tried, arm, used } = policy.choose_tracked(history, mask.bits(), armed, turn);
        for (first, count) in PageMask::from_bits(arm).runs() {
            tracker.arm(at.page(first).address(), bytes_of(count));
        }
        looked.used += u64::from(used.count_ones());
        looked.armed += u64::from(arm.count_ones());
        Choice { going, tried }
    }

    /// Fills the hand with the next present runs. Returns false at the end of the address space.
    fn scan(&self, hand: &mut Hand, looked: &mut Looked) -> bool {
        loop {
            let mapping = self.process.registrations().from(hand.at);
            let Some(mapping) = mapping else { return false };
            let start = hand.at.max(mapping.start);
            let (count, walked) = self.process.pages.tracker().look(start, mapping.end, &mut hand.runs);
            hand.at = walked.max(start + PAGE_SIZE);
            (hand.next, hand.count) = (0, count);
            let found: u64 = hand.runs[..count].iter().map(|run| run.end - run.start).sum();
            looked.barred += SCAN_PAGES.saturating_sub(pages_in(found as usize)) as u64;
            if count > 0 {
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use address_space::units::{BLOCK_BYTES, BLOCK_PAGES};

    use crate::testing::tracked_pager;

    const BLOCKS: usize = 40;

    #[test]
    fn used_pages_stay_and_unused_pages_leave() {
        let Some((pager, base, simulated)) = tracked_pager(BLOCKS) else { return };
        let len = BLOCKS * BLOCK_BYTES;
        let used_pages = || (0..BLOCKS * BLOCK_PAGES).step_by(3).map(|page| base.page(page));
        pager.process.pages.tracker().arm(base.address(), len);
        used_pages().for_each(|page| simulated.touch(page.address()));
        let reclaimer = &*pager.reclaimer;
        let mut offered = Vec::new();
        for _ in 0..BLOCKS {
            let (block, mask) =
                reclaimer.clock.next_candidate(&reclaimer.evictions).expect("pages that are not used");
            offered.extend(mask.pages().map(|index| block.page(index)));
        }
        assert!(offered.len() > BLOCKS * BLOCK_PAGES / 2, "{} pages", offered.len());
        let wrong = used_pages().filter(|at| offered.contains(at)).count();
        assert_eq!(wrong, 0, "used pages that were to go");
        // The spared pages are armed, and leave next time if they stay unused.
        assert_eq!(simulated.armed(base.address(), len), BLOCKS * BLOCK_PAGES);
    }

    #[test]
    fn room_is_made_where_all_is_used() {
        let Some((pager, ..)) = tracked_pager(BLOCKS) else { return };
        // Never armed, so all pages count as used.
        assert!(pager.reclaimer.clock.next_candidate(&pager.reclaimer.evictions).is_some());
    }
}
