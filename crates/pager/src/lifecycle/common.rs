//! Pages that relatives have, too, since a fork: one compressed copy for all.
//!
//! Such a page's frame is free once it has left all of them. So a process that moves some out packs
//! their objects into a segment and shows it to its relatives. Each relative uses the segment's
//! objects in place of its own equal ones, and moves the pages out that it still shares.
//!
//! A frame in common saves faults of all relatives, and each that needs the page again gets a copy
//! of its own. So such pages stay while the budget can be kept by others' leaving.

use std::os::fd::{AsFd, BorrowedFd};

use address_space::units::{PageNumber, BLOCK_PAGES};
use address_space::GROUP;
use sys::memory::USER_END;
use sys::shared;

use super::Lifecycle;

/// Pages in common leave after this number of turns in a row with an excess of this part of the
/// budget.
const TURNS_OVER: u32 = 4;
const OVER_DIVISOR: u64 = 64;
/// Segments of relatives that are taken in one turn: a hostile one may show any number.
const TAKEN_MAX: usize = 32;
/// Pages that follow in one turn, at about 3 us each.
const FOLLOWING_MAX: usize = 1024;

/// The state between turns.
#[derive(Debug, Default)]
pub(crate) struct CommonWatch {
    /// Pages that a relative has moved out, and this process has not.
    following: Vec<PageNumber>,
    /// Ranks of the segments that it maps.
    mapped: Vec<u32>,
    /// Turns in a row in which the budget was exceeded.
    turns_over: u32,
}

impl Lifecycle {
    /// Packs pages in common, and takes relatives' segments.
    pub fn share_pages(&self, watch: &mut CommonWatch, total: u64) {
        let (accounts, store, following) =
            (self.process.accounts, &self.process.pages.store, &mut watch.following);
        if accounts.share().sharers < 2 || !accounts.shares_segments() || self.process.quiesce.is_on() {
            following.clear();
            return;
        }
        let packed = store.pack_common(GROUP);
        if let Some(file) = packed.and_then(|bytes| shared::holding(zswap::SEGMENT_NAME, &bytes).ok()) {
            drop(self.map_segment(file.as_fd()));
            accounts.show_segment(file);
        }
        for _ in 0..TAKEN_MAX {
            let Some(file) = accounts.take_segment() else { break };
            following.extend(self.map_segment(file.as_fd()));
        }
        if total <= self.process.low_water() || !self.process.pages.policy.common_leave() {
            following.clear();
        }
        self.follow(following);
    }

    /// Counts this process's part of the segments that it maps. `mapped`: those of the last turn.
    fn count_segments(&self, mapped: &mut Vec<u32>) {
        let (accounts, mut bytes, mut ranks) = (self.process.accounts, 0, Vec::new());
        self.process.pages.store.for_each_segment(|rank, len| {
            bytes += len / u64::from(accounts.note_segment(rank, true).max(1));
            ranks.push(rank);
        });
        for rank in mapped.iter().filter(|rank| !ranks.contains(rank)) {
            accounts.note_segment(*rank, false);
        }
        *mapped = ranks;
        self.process.gauge.set_segments(bytes);
    }

    /// Counts segments, and decides whether pages in common leave: once the budget was exceeded for
    /// some turns, until there is no relative.
    pub fn judge_common(&self, watch: &mut CommonWatch, total: u64) {
        self.count_segments(&mut watch.mapped);
        let turns_over = &mut watch.turns_over;
        let process = &self.process;
        let budget = process.accounts.budget();
        let is_over = total > budget + budget / OVER_DIVISOR;
        *turns_over = if is_over { *turns_over + 1 } else { 0 };
        match process.accounts.share().sharers {
            0 | 1 => process.pages.policy.let_common_leave(false),
            _ if *turns_over >= TURNS_OVER => process.pages.policy.let_common_leave(true),
            _ => {}
        }
    }

    /// Maps a segment. Returns its pages that are not out here.
    fn map_segment(&self, file: BorrowedFd<'_>) -> impl Iterator<Item = PageNumber> {
        let store = &self.process.pages.store;
        let others = store.map_segment(GROUP, file);
        let last = PageNumber::of(USER_END - 1).key();
        others.unwrap_or_default().into_iter().filter(move |key| *key <= last).map(PageNumber::of_key)
    }

    /// Moves out pages that a relative has moved out.
    fn follow(&self, following: &mut Vec<PageNumber>) {
        let count = following.len().min(FOLLOWING_MAX);
        let mut rest = &following[..count];
        while let Some(first) = rest.first() {
            let is_near = |page: &&PageNumber| page.block() == first.block();
            let run = rest.iter().take(BLOCK_PAGES).take_while(is_near).count();
            let mask = rest[..run].iter().map(|page| page.index()).collect();
            if !self.reclaimer.evict_shared(first.block(), mask) {
                break;
            }
            rest = &rest[run..];
        }
        following.drain(..count);
        while count > 0 && self.reclaimer.compress_oldest() {}
    }
}
