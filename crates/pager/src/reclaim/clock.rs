//! The clock: which pages go next. A hand walks the managed address space, and the policy says of
//! each block's pages which of them go ([`replacement::policy`]). Where uses are seen
//! ([`crate::tracker`]), a page that is to go is armed first, and goes when the hand comes by again
//! if it was not used until then.

use replacement::policy::{Choice, History, Leaps, Tracked};
use sys::pagemap::Run;
use sys::PAGE_SIZE;

use crate::accounts::Counter;
use crate::pages::{now_ms, Block};
use crate::units::{
    block_of, bytes_of, page_at, pages_in, runs, span, ALL_PAGES, BLOCK_BYTES, FOLIO_BLOCKS, FOLIO_BYTES,
    FOLIO_PAGES,
};

use super::Reclaimer;

/// The mask of a candidate that is a whole huge page, to go as one.
pub(crate) const FOLIO: u32 = u32::MAX;
/// Runs of present pages that one scan may find.
const RUNS: usize = 128;
/// A scan that finds fewer pages is in vain for the rest: it costs as much as looking at so many. A
/// collector's write barrier makes thousands of mappings of a page each, and most of them empty.
const SCAN_PAGES: usize = 8;

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
    barred: u64,
    spared: u64,
    tried: u64,
    armed: u64,
    used: u64,
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

    /// Whether the next block begins a whole huge page.
    fn begins_folio(&self) -> bool {
        let Some(run) = self.runs[..self.count].get(self.next) else { return false };
        let (start, end) = (run.start as usize, run.end as usize);
        run.is_huge() && start.is_multiple_of(FOLIO_BYTES) && end - start >= FOLIO_BYTES
    }

    /// Leaves a huge page for the next look that this one, from `start` on in a mapping that ends
    /// at `end`, saw a part of.
    fn leave_last_folio(&mut self, start: usize, end: usize) {
        let Some(last) = self.runs[..self.count].last_mut().filter(|last| last.is_huge()) else { return };
        let border = last.end as usize & !(FOLIO_BYTES - 1);
        if border < last.end as usize && last.end as usize == self.at && self.at < end && border > start {
            self.at = border;
            match border > last.start as usize {
                true => last.end = border as u64,
                false => self.count -= 1,
            }
        }
    }

    /// Leaves the rest of a folio out, of which the first block has been seen.
    fn pass_folio(&mut self, base: usize) {
        let end = base + FOLIO_BYTES;
        while self.next < self.count && (self.runs[self.next].start as usize) < end {
            let run = &mut self.runs[self.next];
            if run.end as usize > end {
                run.start = end as u64;
                break;
            }
            self.next += 1;
        }
    }

    /// The next block with present pages, as address, mask and mask of pages that are used, of what
    /// was seen at the last look.
    fn next_seen(&mut self) -> Option<(usize, u32, u32)> {
        let run = (self.next < self.count).then(|| self.runs[self.next])?;
        let base = block_of(run.start as usize);
        let (mut mask, mut used) = (0, 0);
        // Runs of the same block are one candidate.
        while self.next < self.count && (self.runs[self.next].start as usize) < base + BLOCK_BYTES {
            let run = &mut self.runs[self.next];
            let end = (run.end as usize).min(base + BLOCK_BYTES);
            let first = pages_in(run.start as usize - base);
            let pages = span(first, pages_in(end - run.start as usize));
            mask |= pages;
            used |= if run.is_used() { pages } else { 0 };
            if end < run.end as usize {
                run.start = end as u64;
                break;
            }
            self.next += 1;
        }
        Some((base, mask, used))
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
        self.evictions.note_looked_at(looked.pages);
        self.evictions.note_barred(looked.barred);
        for (count, by) in [
            (Counter::LookedAt, looked.pages),
            (Counter::Spared, looked.spared),
            (Counter::Tried, looked.tried),
            (Counter::Armed, looked.armed),
            (Counter::SeenUsed, looked.used),
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
            loop {
                let is_folio = self.pages.moves_folios() && hand.begins_folio();
                let Some((base, mask, used)) = hand.next_seen() else { break };
                if is_folio && self.is_folio(base) {
                    hand.pass_folio(base);
                    if hand.leaps.skips(FOLIO_PAGES as u32) {
                        continue;
                    }
                    if self.folio_goes(looked, hand, base, used != 0, wraps > 1) {
                        hand.offered += 1;
                        hand.leaps.went(FOLIO_PAGES as u32, self.pages.policy().all_returned());
                        return Some((base, FOLIO));
                    }
                    continue;
                }
                if hand.leaps.skips(mask.count_ones()) {
                    continue;
                }
                let Ok(block) = self.pages.table().block(base) else { continue };
                let present = mask;
                let mask = match block.is_compressing() {
                    true => 0,
                    false => mask & !block.refused_at(now_ms()) & !self.kept.of(base),
                };
                looked.barred += u64::from((present & !mask).count_ones());
                if mask == 0 {
                    continue;
                }
                hand.turn += 1;
                let choice = self.choose(looked, base, block.history(), mask, used, hand.turn);
                // Who needs room gets it: after two rounds that the policy let pass everything
                // goes; where uses are seen, what is not used before the rest.
                let unused = if mask & !used == 0 { mask } else { mask & !used };
                let going = if wraps > 1 { unused } else { choice.going };
                looked.pages += u64::from(mask.count_ones());
                looked.spared += u64::from((mask & !going).count_ones());
                looked.tried += u64::from(choice.tried.count_ones());
                if going != 0 {
                    hand.offered += 1;
                    hand.leaps.went(going.count_ones(), self.pages.policy().all_returned());
                    return Some((base, going));
                }
            }
            if !self.scan(hand, looked) {
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

    /// Whether the huge page at `base` may go as a whole: no page of it must stay. Else it is taken
    /// block by block, and split by that.
    fn is_folio(&self, base: usize) -> bool {
        (0..FOLIO_BLOCKS).map(|index| base + index * BLOCK_BYTES).all(|base| {
            let stays = |block: &Block| block.refused_at(now_ms()) != 0 || block.is_compressing();
            self.kept.of(base) == 0 && !self.pages.table().find(base).is_some_and(stays)
        })
    }

    /// Whether the folio at `base` goes: most of its pages would. It goes or stays as one, and is
    /// armed as one: by parts, it would be split.
    fn folio_goes(&self, looked: &mut Looked, hand: &mut Hand, base: usize, used: bool, all: bool) -> bool {
        let (mut going, mut arm) = (0, 0);
        // The kernel does not tell which part of a huge page is used.
        let used = if used { ALL_PAGES } else { 0 };
        for block in (0..FOLIO_BLOCKS).map(|index| base + index * BLOCK_BYTES) {
            let Ok(record) = self.pages.table().block(block) else { return false };
            hand.turn += 1;
            let (choice, armed) = self.judge(looked, record.history(), ALL_PAGES, used, hand.turn);
            going += choice.going.count_ones() as usize;
            arm += armed.count_ones() as usize;
        }
        let goes = all || going * 2 >= FOLIO_PAGES;
        looked.pages += FOLIO_PAGES as u64;
        looked.spared += if goes { 0 } else { FOLIO_PAGES as u64 };
        if !goes && arm * 2 >= FOLIO_PAGES {
            self.pages.tracker().arm(base, FOLIO_BYTES);
            looked.armed += FOLIO_PAGES as u64;
        }
        goes
    }

    /// Pages of a block that go. Arms others where uses are seen.
    fn choose(
        &self,
        looked: &mut Looked,
        base: usize,
        history: &History,
        mask: u32,
        used: u32,
        turn: u64,
    ) -> Choice {
        let (choice, arm) = self.judge(looked, history, mask, used, turn);
        for (first, count) in runs(arm) {
            self.pages.tracker().arm(page_at(base, first), bytes_of(count));
        }
        looked.armed += u64::from(arm.count_ones());
        choice
    }

    /// Pages of a block that go, and those that are to be armed where uses are seen.
    fn judge(
        &self,
        looked: &mut Looked,
        history: &History,
        mask: u32,
        used: u32,
        turn: u64,
    ) -> (Choice, u32) {
        let policy = self.pages.policy();
        if !self.pages.tracker().sees_uses() {
            return (policy.choose(history, mask, turn), 0);
        }
        let choice = policy.choose_tracked(history, mask, mask & !used, turn);
        looked.used += u64::from(choice.used.count_ones());
        let Tracked { going, tried, arm, .. } = choice;
        (Choice { going, tried }, arm)
    }

    /// Fills the hand with the next present runs; false at the end of the address space.
    fn scan(&self, hand: &mut Hand, looked: &mut Looked) -> bool {
        loop {
            let mapping = self.registrations.lock().expect("no panic while held").from(hand.at);
            let Some(mapping) = mapping else { return false };
            let start = hand.at.max(mapping.start);
            let (count, walked) = self.pages.tracker().look(start, mapping.end, &mut hand.runs);
            hand.at = walked.max(start + PAGE_SIZE);
            (hand.next, hand.count) = (0, count);
            let found: u64 = hand.runs[..count].iter().map(|run| run.end - run.start).sum();
            looked.barred += SCAN_PAGES.saturating_sub(pages_in(found as usize)) as u64;
            hand.leave_last_folio(start, mapping.end);
            if count > 0 {
                return true;
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::tracker::simulated::Simulated;
    use crate::trial::{blocks, tracked_pager};
    use crate::units::BLOCK_PAGES;

    const BLOCKS: usize = 40;

    #[test]
    fn what_is_used_stays_and_what_is_not_goes() {
        let base = blocks(BLOCKS);
        let len = BLOCKS * BLOCK_BYTES;
        let simulated: &'static Simulated = Box::leak(Box::new(Simulated::new()));
        let Some(pager) = tracked_pager(base..base + len, Box::new(simulated)) else { return };
        pager.refresh_mappings();
        // Every third page is in use.
        let used_pages = || (0..BLOCKS * BLOCK_PAGES).step_by(3).map(|page| page_at(base, page));
        let tracker = pager.pages().tracker();
        tracker.arm(base, len);
        used_pages().for_each(|at| simulated.touch(at));
        let reclaimer = pager.reclaimer();
        let mut offered = Vec::new();
        for _ in 0..BLOCKS {
            let (block, mask) = reclaimer.next_candidate().expect("pages that are not used");
            offered.extend(
                (0..BLOCK_PAGES).filter(|page| mask >> page & 1 != 0).map(|page| page_at(block, page)),
            );
        }
        assert!(offered.len() > BLOCKS * BLOCK_PAGES / 2, "{} pages", offered.len());
        let wrong = used_pages().filter(|at| offered.contains(at)).count();
        assert_eq!(wrong, 0, "used pages that were to go");
        // Those have been armed: they go the next time if they are used no more.
        assert_eq!(simulated.armed(base, len), BLOCKS * BLOCK_PAGES);
    }

    #[test]
    fn room_is_made_where_all_is_used() {
        let base = blocks(BLOCKS);
        let simulated: &'static Simulated = Box::leak(Box::new(Simulated::new()));
        let Some(pager) = tracked_pager(base..base + BLOCKS * BLOCK_BYTES, Box::new(simulated)) else {
            return;
        };
        pager.refresh_mappings();
        // Never armed: all count as used.
        assert!(pager.reclaimer().next_candidate().is_some());
    }
}
