//! Writeback: the oldest leaves leave the pool, group by group in turn, with a second chance each.

use acomp::{Page, PAGE_SIZE};
use swapfile::Writer;

use crate::balance::Lately;
use crate::config::{Config, Error, Group, NODES_MAX};
use crate::group::{slots, Freed, GroupCell};
use crate::leaf::{LEAF_BITS, LEAF_PAGES};
use crate::load::Chunk;
use crate::sync::atomic::Ordering;
use crate::sync::{lock, try_lock};
use crate::{Writeback, Zswap};

/// Failed attempts after which a shrink gives up; the kernel's figure.
const FAILURES_MAX: u32 = 16;

/// Leaves written back between two compactions: compacting costs a look at every object.
const COMPACT_LEAVES: u32 = 64;

/// Turns that a leaf can be passed over: one for being stored or read, and one for having come back
/// from disk lately.
pub(crate) const CHANCES_MAX: u8 = 2;

/// What a shrink did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShrinkReport {
    /// Pages written back.
    pub pages_written: u64,
    /// Leaves of which nothing could be written.
    pub failures: u32,
    /// Whether the pool is within the target now.
    pub reached: bool,
    /// Whether the swap file, or its disk, had no room for more.
    pub no_space: bool,
    /// Why the last write to the swap file that was given up failed: the system's error number.
    pub error: Option<i32>,
}

/// State of the one shrink that may be in progress.
pub(crate) struct Shrinker {
    /// The group whose turn is next.
    cursor: usize,
    /// Where pages are decompressed to for an owner's home; empty when there is none.
    pages: Box<[Page]>,
    /// Who writes to the swap file.
    pub(crate) writer: Option<Writer>,
    /// The node whose turn is next, there.
    node: usize,
    /// The last leaf's mark.
    mark: u16,
    pub(crate) lately: Lately,
}

impl Shrinker {
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let pages = if config.writeback.is_some() { LEAF_PAGES } else { 0 };
        let writer = match &config.swap {
            None => None,
            Some(file) => Some(file.writer().ok_or(Error::Swap("the swap file has a writer already"))?),
        };
        Ok(Shrinker {
            cursor: 0,
            pages: vec![[0; PAGE_SIZE]; pages].into_boxed_slice(),
            writer,
            node: 0,
            mark: 0,
            lately: Lately::default(),
        })
    }

    /// The group whose turn it is.
    pub(crate) fn next_group(&mut self, groups: usize) -> Group {
        let number = self.cursor % groups;
        self.cursor = (number + 1) % groups;
        Group(number as u16)
    }

    /// A mark for a leaf that is about to be written: another than those of the few thousand whose
    /// writes are under way.
    pub(crate) fn next_mark(&mut self) -> u16 {
        self.mark = self.mark.wrapping_add(1);
        self.mark
    }

    /// The node whose turn it is.
    pub(crate) fn next_node(&mut self) -> usize {
        self.node = (self.node + 1) % NODES_MAX;
        self.node
    }
}

/// One visit of a list.
enum Visit {
    /// No leaf could be tried.
    Nothing,
    /// A leaf was tried and none of its pages left.
    Failed,
    /// Pages that left.
    Written(u64),
}

impl Zswap {
    /// Whether a store was refused because the pool is full, and writing back would help: time to
    /// call [`shrink_to_accept`](Zswap::shrink_to_accept) from a thread that may wait.
    pub fn wants_shrink(&self) -> bool {
        let somewhere = self.config.writeback.is_some() || self.config.swap.is_some();
        somewhere && self.reached_full.load(Ordering::Relaxed)
    }

    /// Writes pages back until stores are accepted again.
    pub fn shrink_to_accept(&self) -> ShrinkReport {
        self.shrink(self.accept_threshold())
    }

    /// Writes pages back, the oldest first, one leaf a group and node in turn, until the pools take
    /// no more than `target_bytes`; gives up after 16 leaves that could not be written, when no
    /// page may be written, or when the swap file has no room. To a swap file many leaves go at a
    /// time.
    pub fn shrink(&self, target_bytes: u64) -> ShrinkReport {
        let mut shrinker = lock(&self.shrinker);
        if self.config.swap.is_some() {
            return self.swap_out(&mut shrinker, target_bytes);
        }
        let mut report = ShrinkReport::default();
        let groups = self.groups.len();
        // Groups in a row that had nothing to write.
        let mut idle = 0;
        let mut leaves_since_compaction = COMPACT_LEAVES;
        while self.pool_bytes() > target_bytes {
            if idle > groups || report.failures >= FAILURES_MAX {
                // Holes are left where pages went; closing them may be enough.
                self.compact();
                report.reached = self.pool_bytes() <= target_bytes;
                return report;
            }
            let group = shrinker.next_group(groups);
            idle += 1;
            let Some(cell) = self.group(group) else { continue };
            for node in 0..NODES_MAX {
                match self.write_back_oldest(group, cell, node, &mut shrinker) {
                    Visit::Nothing => {}
                    Visit::Failed => {
                        report.failures += 1;
                        idle = 0;
                    }
                    Visit::Written(pages) => {
                        report.pages_written += pages;
                        leaves_since_compaction += 1;
                        idle = 0;
                    }
                }
            }
            // Where pages went one by one no whole zspage may have become free.
            let live = self.compressed_bytes();
            if leaves_since_compaction >= COMPACT_LEAVES && live <= target_bytes - target_bytes / 16 {
                leaves_since_compaction = 0;
                self.compact();
            }
        }
        report.reached = true;
        report
    }

    /// Has a group that is at its limit shrink by the thread that wants to store: to the threshold
    /// where there is a swap file, else by one leaf a node and call, until it is there or nothing
    /// goes.
    pub(crate) fn shrink_group(&self, group: Group, cell: &GroupCell, threshold: u64) {
        let Some(mut shrinker) = try_lock(&self.shrinker) else { return };
        if self.config.swap.is_some() {
            self.swap_out_group(&mut shrinker, group, cell, threshold);
            return;
        }
        let mut goes = true;
        while goes && cell.numbers().bytes.get() > threshold {
            goes = (0..NODES_MAX).fold(false, |goes, node| {
                goes | matches!(self.write_back_oldest(group, cell, node, &mut shrinker), Visit::Written(_))
            });
        }
    }

    /// Bytes at which a full pool accepts stores again.
    pub(crate) fn accept_threshold(&self) -> u64 {
        self.threshold_of(self.config.max_pool_bytes)
    }

    /// Bytes below which a store that reached `limit` is accepted again.
    pub(crate) fn threshold_of(&self, limit: u64) -> u64 {
        (u128::from(limit) * u128::from(self.config.accept_threshold_percent) / 100) as u64
    }

    pub(crate) fn can_write_back(&self, group: Group, cell: &GroupCell) -> bool {
        let allowed = cell.writeback.load(Ordering::Relaxed);
        allowed && self.config.swap.is_some() || self.writeback_of(group, cell).is_some()
    }

    fn writeback_of(&self, group: Group, cell: &GroupCell) -> Option<&dyn Writeback> {
        let writeback = self.config.writeback.as_deref()?;
        (cell.writeback.load(Ordering::Relaxed) && writeback.enabled(group)).then_some(writeback)
    }

    fn write_back_oldest(
        &self,
        group: Group,
        cell: &GroupCell,
        node: usize,
        shrinker: &mut Shrinker,
    ) -> Visit {
        let Some(writeback) = self.writeback_of(group, cell) else { return Visit::Nothing };
        let Some((key_high, pinned)) = self.pin_oldest(cell, node) else { return Visit::Nothing };
        let key = u64::from(key_high) << LEAF_BITS;
        let mut claimed = writeback.claim(group, key, pinned) & pinned;
        let asked = claimed;

        // Pages that do not decompress stay where they are.
        while claimed != 0 {
            let mut chunk = Chunk::new();
            {
                let mut state = cell.lock();
                let name = state.tree.find(&self.slabs, key_high).expect("pinned pages stay");
                chunk.add(self, &mut state, name, claimed);
            }
            let mut rest = shrinker.pages.iter_mut();
            let mut pages: [&mut Page; LEAF_PAGES] = std::array::from_fn(|_| rest.next().expect("16 pages"));
            match self.decompress(&chunk, None, &mut pages[..claimed.count_ones() as usize]) {
                Ok(()) => break,
                Err(index) => {
                    self.events.decompress_fail.add(1);
                    let slot = slots(claimed).nth(index).expect("an index of the mask");
                    claimed &= !(1 << slot);
                }
            }
        }
        {
            let mut state = cell.lock();
            let name = state.tree.find(&self.slabs, key_high).expect("pinned pages stay");
            state.tree.leaf(&self.slabs, name).begin_writing(claimed, 0);
            cell.unpin(&mut state, &self.slabs, name, pinned);
        }
        let written = claimed != 0 && {
            let pages: [&Page; LEAF_PAGES] = std::array::from_fn(|slot| &shrinker.pages[slot]);
            writeback.write(group, key, claimed, &pages[..claimed.count_ones() as usize]).is_ok()
        };

        let mut freed = Freed::new();
        let mut state = cell.lock();
        let mut done = 0;
        // A reader of such a page ends by itself; if it takes the page, the page is no longer being
        // written.
        while let Some(name) = state.tree.find(&self.slabs, key_high) {
            let leaf = state.tree.leaf(&self.slabs, name);
            if written && leaf.busy & leaf.writing() != 0 {
                state = cell.wait(state);
                continue;
            }
            let unchanged = leaf.end_writing(0);
            if written && unchanged != 0 {
                done = unchanged;
                cell.remove(&mut state, &self.slabs, name, done, &mut freed);
                cell.numbers().zswpwb.add(u64::from(done.count_ones()));
            }
            break;
        }
        if asked != 0 {
            writeback.finish(group, key, asked, done);
        }
        drop(state);
        self.free(&mut freed);
        if done == 0 {
            self.events.reject_reclaim_fail.add(1);
            return Visit::Failed;
        }
        Visit::Written(u64::from(done.count_ones()))
    }

    /// Pins the pages with objects of the node's oldest leaf that had its chances and is not being
    /// read, and makes it the youngest.
    pub(crate) fn pin_oldest(&self, cell: &GroupCell, node: usize) -> Option<(u32, u16)> {
        let mut guard = cell.lock();
        let state = &mut *guard;
        // Once round for every chance there can be, and once more for all that have just lost their
        // last: the first of them may be in use.
        for _ in 0..state.lru.leaves(node) * (u32::from(CHANCES_MAX) + 1) {
            let name = state.lru.oldest(node)?;
            state.lru.touch(&mut state.tree, &self.slabs, name, node);
            let leaf = state.tree.leaf(&self.slabs, name);
            if leaf.chances > 0 {
                leaf.chances -= 1;
                continue;
            }
            if leaf.busy & leaf.objects() != 0 || leaf.writing() != 0 {
                continue;
            }
            let mask = leaf.objects();
            debug_assert!(mask != 0);
            leaf.busy |= mask;
            return Some((leaf.key_high, mask));
        }
        None
    }
}
