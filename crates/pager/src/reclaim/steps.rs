//! Making room in steps: moving pages out of the program, and compressing them.

use crate::pages::{Compressed, EXTENT_SLOTS};
use crate::units::{ALL_PAGES, BLOCK_BYTES, BLOCK_PAGES};

use super::evictions::Found;
use super::Reclaimer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A worker: may wait.
    Worker,
    /// A fault handler: must not wait for faults.
    Handler,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Progress,
    Nothing,
}

impl Reclaimer<'_> {
    /// Whether blocks may be left to move out or compress: false just after a look found nothing.
    pub(crate) fn can_move_out(&self) -> bool {
        !self.evictions.backs_off() || self.pages.staging().queued_slots() > 0
    }

    /// Takes a slot to move a block into, if that many more pages may be staged.
    pub(crate) fn room(&self) -> Option<u32> {
        self.may_stage_block().then(|| self.slot()).flatten()
    }

    /// Takes a slot to move a block into, if staging has room for a block.
    fn slot(&self) -> Option<u32> {
        let staging = self.pages.staging();
        (staging.pages() + BLOCK_PAGES <= staging.pages_max()).then(|| staging.take_empty()).flatten()
    }

    /// Whether another block may be staged. One may always wait, however many pages are ready or in
    /// use by other threads: there must be something to compress.
    fn may_stage_block(&self) -> bool {
        let staging = self.pages.staging();
        staging.pages() + BLOCK_PAGES <= self.staged_max() || staging.queued_slots() == 0
    }

    /// Moves one block out, or compresses. Workers, and handlers during a stream, move whole
    /// extents or wait for room for one: single blocks cost eight times the calls and interrupts.
    pub(super) fn step(&self, role: Role) -> Step {
        let wide = role == Role::Worker || self.workers.is_streaming();
        if wide {
            let progress = if self.may_stage_block() && self.pages.staging().has_room_for_extent() {
                self.evict_neighbours(role) > 0
            } else {
                self.compress_oldest() == Step::Progress
            };
            if progress {
                return Step::Progress;
            }
        }
        match self.room() {
            Some(slot) if self.evict_into(slot, role) => Step::Progress,
            _ => self.compress_oldest(),
        }
    }

    /// Moves the next block out, into `slot` if it has none. Returns false if none can be moved.
    pub(super) fn evict_into(&self, slot: u32, role: Role) -> bool {
        let mut spare = Some(slot);
        let mut found = Found::Barred;
        if !self.evictions.backs_off() {
            let look = self.evictions.begin_look();
            for _ in 0..64 {
                let Some((base, mask)) = self.next_candidate() else {
                    found = Found::Nothing;
                    break;
                };
                if self.evict(&mut spare, base, mask, role) {
                    found = Found::Evicted;
                    break;
                }
            }
            self.evictions.end_look(&look, found);
        }
        if let Some(slot) = spare {
            self.pages.staging().give(slot);
        }
        found == Found::Evicted
    }

    pub(crate) fn compress_oldest(&self) -> Step {
        match self.pages.compress_oldest() {
            // Refused pages went back and are skipped for a while, which makes room, too.
            Compressed::Stored | Compressed::Refused => Step::Progress,
            Compressed::Blocked | Compressed::Nothing => Step::Nothing,
        }
    }

    /// Moves the next candidates out: adjacent blocks of an extent with one call, else the blocks
    /// before a gap one by one. Returns their number, 0 if none could be moved.
    pub(crate) fn evict_neighbours(&self, role: Role) -> usize {
        if self.evictions.backs_off() {
            return 0;
        }
        let look = self.evictions.begin_look();
        let Some((base, mask)) = self.next_candidate() else {
            self.evictions.end_look(&look, Found::Nothing);
            return 0;
        };
        let mut count = 1;
        while mask == ALL_PAGES && count < EXTENT_SLOTS {
            let Some(candidate) = self.next_candidate() else { break };
            if candidate != (base + count * BLOCK_BYTES, ALL_PAGES) {
                // It may be the first block of an extent.
                self.offer_again(candidate);
                break;
            }
            count += 1;
        }
        let mut evicted = count == EXTENT_SLOTS && self.pages.evict_extent(base);
        if evicted {
            self.evictions.note_gone(true);
        } else {
            for index in 0..count {
                let mut spare = self.slot();
                if spare.is_none() {
                    break;
                }
                evicted |= self.evict(&mut spare, base + index * BLOCK_BYTES, mask, role);
                if let Some(slot) = spare {
                    self.pages.staging().give(slot);
                }
            }
        }
        self.evictions.end_look(&look, if evicted { Found::Evicted } else { Found::Barred });
        if evicted {
            count
        } else {
            0
        }
    }

    fn evict(&self, spare: &mut Option<u32>, base: usize, mask: u32, role: Role) -> bool {
        let pages = u64::from(mask.count_ones());
        let evicted = self.pages.evict(spare, base, mask, role == Role::Worker);
        match evicted {
            true => self.evictions.note_gone(false),
            false => self.evictions.note_barred(pages),
        }
        evicted
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::super::evictions::BACKOFF_PAGES;
    use super::*;
    use crate::trial::{blocks, blocks_with_a_gap, pager};

    #[test]
    fn what_lies_behind_a_gap_goes_as_a_whole() {
        let Some(pager) = pager() else { return };
        let base = blocks_with_a_gap(16);
        pager.register(base..base + 16 * BLOCK_BYTES);
        let evict = |_| {
            pager.reclaimer().look_again();
            pager.reclaimer().evict_neighbours(Role::Worker)
        };
        let went: Vec<usize> = (0..4).map(evict).collect();
        assert_eq!(went, [3, 1, 8, 4], "before the gap, the block that has one, an extent, the rest");
        assert_eq!(pager.pages().staging().pages(), 16 * BLOCK_PAGES - 1);
    }

    #[test]
    fn single_blocks_wait_in_a_part_of_staging_and_go_however_much_is_ready() {
        let Some(pager) = pager() else { return };
        let base = blocks_with_a_gap(32);
        pager.register(base..base + 32 * BLOCK_BYTES);
        let (reclaimer, staging) = (pager.reclaimer(), pager.pages().staging());
        let go = || {
            let goes = || {
                reclaimer.look_again();
                reclaimer.evict_step()
            };
            (0..).take_while(|_| goes()).count()
        };
        let part = reclaimer.staged_max() / BLOCK_PAGES;
        assert!(part * BLOCK_PAGES < staging.pages_max(), "{part}");
        assert_eq!(go(), part, "all of the part waits");
        while staging.queued_slots() > 0 {
            assert_eq!(reclaimer.compress_oldest(), Step::Progress);
        }
        assert!(staging.pages() + BLOCK_PAGES > reclaimer.staged_max(), "now all of it is ready");
        assert_eq!(go(), 1, "one has to be compressed before others go");
        (0..8).for_each(|_| reclaimer.evictions.note_gone(true));
        assert!(go() > 1, "extents have all of staging");
    }

    #[test]
    fn no_thread_looks_again_for_a_while_when_there_is_nothing_to_move_out() {
        let Some(pager) = pager() else { return };
        assert!(!pager.reclaimer().evictions.backs_off());
        assert!(pager.reclaimer().evict_neighbours(Role::Worker) == 0);
        assert!(pager.reclaimer().evictions.backs_off());
        let base = blocks(8);
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert!(!pager.reclaimer().evictions.backs_off(), "there is a new mapping");
        assert!(pager.reclaimer().evict_neighbours(Role::Worker) > 0);
        assert!(
            pager.reclaimer().evict_neighbours(Role::Worker) == 0 && pager.reclaimer().evictions.backs_off()
        );
        pager.reclaimer().evictions.note_arrivals(BACKOFF_PAGES as usize);
        assert!(!pager.reclaimer().evictions.backs_off(), "pages came in that can go out");
    }

    #[test]
    fn pages_that_do_not_compress_come_back_and_are_left_alone() {
        let Some(pager) = pager() else { return };
        let base = blocks(8);
        let mut word = 88_172_645_463_325_252u64;
        let values: Vec<u64> = (0..8 * BLOCK_BYTES / 8)
            .map(|_| {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                word
            })
            .collect();
        // SAFETY: eight blocks of this test.
        let memory = unsafe { std::slice::from_raw_parts_mut(base as *mut u64, values.len()) };
        memory.copy_from_slice(&values);
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert!(pager.reclaimer().evict_neighbours(Role::Worker) > 0);
        while pager.pages().staging().queued_slots() > 0 {
            assert_eq!(pager.reclaimer().compress_oldest(), Step::Progress, "all are refused, and back");
        }
        assert_eq!(pager.pages().pages_out(), 0);
        assert!(memory == values);
        assert!(pager.reclaimer().evict_neighbours(Role::Worker) == 0, "they are not tried again");
    }
}
