//! Making room in steps: moving pages out of the program, and compressing them.

use address_space::units::{BlockNumber, PageMask, BLOCK_PAGES, EXTENT_SLOTS};
use address_space::{now_ms, Compressed, EmptySlot};

use super::evictions::{Search, SearchResult};
use super::Reclaimer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A worker: may wait.
    Worker,
    /// A fault handler: must not wait for faults.
    Handler,
}

impl Reclaimer {
    /// Whether there may be work: a slot to compress, or a block to move out unless a search has
    /// just found none.
    pub(crate) fn can_move_out(&self) -> bool {
        !self.evictions.backs_off() || self.process.pages.staging.queued_slots() > 0
    }

    /// Takes a slot to move a block into, if that many more pages may be staged.
    pub(crate) fn room(&self) -> Option<EmptySlot> {
        self.may_stage_block().then(|| self.slot()).flatten()
    }

    /// Takes a slot to move a block into, if staging has room for a block.
    fn slot(&self) -> Option<EmptySlot> {
        let staging = &self.process.pages.staging;
        (staging.pages() + BLOCK_PAGES <= staging.pages_max()).then(|| staging.take_empty()).flatten()
    }

    /// Whether another block may be staged. One may always wait, however many pages are ready or in
    /// use by other threads: there must be something to compress.
    fn may_stage_block(&self) -> bool {
        let staging = &self.process.pages.staging;
        staging.pages() + BLOCK_PAGES <= self.frames.staged_max() || staging.queued_slots() == 0
    }

    /// Moves one block out, or compresses. Workers, and handlers while runs come in, prefer whole
    /// extents and compress while there is no room for one: single blocks cost eight times the
    /// calls and interrupts. Returns false if there was nothing to do.
    pub(super) fn step(&self, role: Role) -> bool {
        let wide = role == Role::Worker || self.workers.feeds_runs();
        if wide {
            let progress = if self.may_stage_block() && self.process.pages.staging.has_room_for_extent() {
                self.evict_neighbours(role) > 0
            } else {
                self.compress_oldest()
            };
            if progress {
                return true;
            }
        }
        self.room().is_some_and(|slot| self.evict_into(slot, role)) || self.compress_oldest()
    }

    /// Moves the next block out, into its own slot or, if it has none, into `slot`. Returns false
    /// if none of up to 64 candidates moved.
    pub(super) fn evict_into(&self, slot: EmptySlot, role: Role) -> bool {
        let mut spare = Some(slot);
        let mut found = SearchResult::Barred;
        if !self.evictions.backs_off() {
            let search = self.begin_search();
            for _ in 0..64 {
                let Some((at, mask)) = self.clock.next_candidate(&self.evictions) else {
                    found = SearchResult::Nothing;
                    break;
                };
                if self.evict(&mut spare, at, mask, role) {
                    found = SearchResult::Evicted;
                    break;
                }
            }
            self.evictions.end_search(&search, found);
        }
        if let Some(slot) = spare {
            self.process.pages.staging.give(slot);
        }
        found == SearchResult::Evicted
    }

    fn begin_search(&self) -> Search {
        self.evictions.begin_search(self.process.accounts.share().sharers)
    }

    pub(crate) fn compress_oldest(&self) -> bool {
        // Refused pages went back and are skipped for a while, which makes room, too.
        matches!(self.process.pages.compress_oldest(), Compressed::Stored | Compressed::Refused)
    }

    /// Moves the next candidates out: adjacent blocks of an extent with one call, else the blocks
    /// before a gap one by one. Returns the number of candidates tried, even if only some moved; 0
    /// if none moved.
    pub(crate) fn evict_neighbours(&self, role: Role) -> usize {
        if self.evictions.backs_off() {
            return 0;
        }
        let search = self.begin_search();
        let Some((at, mask)) = self.clock.next_candidate(&self.evictions) else {
            self.evictions.end_search(&search, SearchResult::Nothing);
            return 0;
        };
        let mut count = 1;
        while mask == PageMask::ALL && count < EXTENT_SLOTS {
            let Some(candidate) = self.clock.next_candidate(&self.evictions) else { break };
            if candidate != (at + count, PageMask::ALL) {
                // It may be the first block of an extent.
                self.clock.offer_again(candidate);
                break;
            }
            count += 1;
        }
        let mut evicted = count == EXTENT_SLOTS && self.process.pages.evict_extent(at);
        if evicted {
            self.frames.note_gone(true);
        } else {
            for index in 0..count {
                let mut spare = self.slot();
                if spare.is_none() {
                    break;
                }
                evicted |= self.evict(&mut spare, at + index, mask, role);
                if let Some(slot) = spare {
                    self.process.pages.staging.give(slot);
                }
            }
        }
        self.evictions
            .end_search(&search, if evicted { SearchResult::Evicted } else { SearchResult::Barred });
        if evicted {
            count
        } else {
            0
        }
    }

    /// Moves those pages of a block out that relatives share, too. Returns false without room.
    pub(crate) fn evict_shared(&self, at: BlockNumber, mask: PageMask) -> bool {
        let Some(slot) = self.slot() else { return false };
        let mut spare = Some(slot);
        if let Ok(block) = self.process.pages.table().block(at) {
            let shared = self.process.pages.pagemap().shared(at.address(), BLOCK_PAGES) as u32;
            let stays = block.refused_at(now_ms()) | self.process.kept.of(at);
            let going = mask & PageMask::from_bits(shared) & !stays;
            if !going.is_empty() && !block.is_compressing() {
                self.evict(&mut spare, at, going, Role::Worker);
            }
        }
        if let Some(slot) = spare {
            self.process.pages.staging.give(slot);
        }
        true
    }

    fn evict(&self, spare: &mut Option<EmptySlot>, at: BlockNumber, mask: PageMask, role: Role) -> bool {
        let evicted = self.process.pages.evict(spare, at, mask, role == Role::Worker);
        match evicted {
            true => self.frames.note_gone(false),
            false => self.evictions.note_barred(mask.count() as u64),
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::super::evictions::BACKOFF_PAGES;
    use super::*;
    use crate::testing::{blocks, noise, pager, pager_with, pager_with_gap, range_of, read};

    #[test]
    fn blocks_behind_a_gap_leave_whole() {
        let Some((pager, _)) = pager_with_gap(16, 48..49) else { return };
        let evict = |_| {
            pager.reclaimer.evictions.look_again();
            pager.reclaimer.evict_neighbours(Role::Worker)
        };
        let went: Vec<usize> = (0..4).map(evict).collect();
        assert_eq!(went, [3, 1, 8, 4], "before the gap, the block that has one, an extent, the rest");
        assert_eq!(pager.process.pages.staging.pages(), 16 * BLOCK_PAGES - 1);
    }

    #[test]
    fn single_blocks_wait_in_a_part_of_staging_and_go_however_much_is_ready() {
        let Some((pager, _)) = pager_with_gap(32, 48..49) else { return };
        let (reclaimer, staging) = (&*pager.reclaimer, &pager.process.pages.staging);
        let go = || {
            let goes = || {
                reclaimer.evictions.look_again();
                reclaimer.evict_step()
            };
            (0..).take_while(|_| goes()).count()
        };
        let part = reclaimer.frames.staged_max() / BLOCK_PAGES;
        assert!(part * BLOCK_PAGES < staging.pages_max(), "{part}");
        assert_eq!(go(), part, "all of the part waits");
        while staging.queued_slots() > 0 {
            assert!(reclaimer.compress_oldest());
        }
        assert!(staging.pages() + BLOCK_PAGES > reclaimer.frames.staged_max(), "now all of it is ready");
        assert_eq!(go(), 1, "one has to be compressed before others go");
        (0..8).for_each(|_| reclaimer.frames.note_gone(true));
        assert!(go() > 1, "extents have all of staging");
    }

    #[test]
    fn no_thread_looks_again_for_a_while_when_there_is_nothing_to_move_out() {
        let Some(pager) = pager() else { return };
        let (reclaimer, backs_off) = (&*pager.reclaimer, || pager.reclaimer.evictions.backs_off());
        assert!(!backs_off());
        assert!(reclaimer.evict_neighbours(Role::Worker) == 0);
        assert!(backs_off());
        let base = blocks(8);
        pager.register(range_of(base, 8));
        assert!(!backs_off(), "there is a new mapping");
        assert!(reclaimer.evict_neighbours(Role::Worker) > 0);
        assert!(reclaimer.evict_neighbours(Role::Worker) == 0 && backs_off());
        reclaimer.evictions.note_arrivals(BACKOFF_PAGES as usize);
        assert!(!backs_off(), "pages came in that can go out");
    }

    #[test]
    fn pages_that_do_not_compress_come_back_and_are_left_alone() {
        let Some((pager, base)) = pager_with(8) else { return };
        noise(base.page(0), 8 * BLOCK_PAGES);
        let numbers = || (0..8 * BLOCK_PAGES).map(|page| read(base, page));
        let before: Vec<usize> = numbers().collect();
        assert!(pager.reclaimer.evict_neighbours(Role::Worker) > 0);
        while pager.process.pages.staging.queued_slots() > 0 {
            assert!(pager.reclaimer.compress_oldest(), "all are refused, and back");
        }
        assert_eq!(pager.process.pages.pages_out(), 0);
        assert!(numbers().eq(before));
        assert!(pager.reclaimer.evict_neighbours(Role::Worker) == 0, "they are not tried again");
    }
}
