//! The choice of leaves to write back: the oldest, group by group in turn, with a second chance
//! each.

use swapfile::Writer;

use crate::balance::Lately;
use crate::config::{Config, Error, Group, NODES_MAX};
use crate::group::GroupCell;
use crate::sync::atomic::Ordering;
use crate::sync::{lock, try_lock};
use crate::Zswap;

/// Most writeback turns that skip a leaf: one for a store or read, one for a return from disk.
pub(crate) const CHANCES_MAX: u8 = 2;

/// Result of a shrink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShrinkReport {
    /// Pages written back.
    pub pages_written: u64,
    /// Writes that failed.
    pub failures: u32,
    /// Whether the pool is within the target.
    pub reached: bool,
    /// Whether the swap file, or its disk, is full.
    pub no_space: bool,
    /// Error number of the last write to the swap file that failed for good.
    pub error: Option<i32>,
}

/// State of the one shrink that may be in progress.
pub(crate) struct Shrinker {
    /// The group with the next turn.
    cursor: usize,
    pub(crate) writer: Option<Writer>,
    /// The node with the next turn, in that group.
    node: usize,
    mark: u16,
    pub(crate) lately: Lately,
}

impl Shrinker {
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let writer = match &config.swap {
            None => None,
            Some(file) => Some(file.writer().ok_or(Error::Swap("the swap file has a writer already"))?),
        };
        Ok(Shrinker { cursor: 0, writer, node: 0, mark: 0, lately: Lately::default() })
    }

    pub(crate) fn next_group(&mut self, groups: usize) -> Group {
        let number = self.cursor % groups;
        self.cursor = (number + 1) % groups;
        Group(number as u16)
    }

    /// A mark for a leaf to write, distinct from those of the few thousand writes in progress.
    pub(crate) fn next_mark(&mut self) -> u16 {
        self.mark = self.mark.wrapping_add(1);
        self.mark
    }

    pub(crate) fn next_node(&mut self) -> usize {
        self.node = (self.node + 1) % NODES_MAX;
        self.node
    }
}

impl Zswap {
    /// Whether a store was refused because the pool is full, and writeback would help: call
    /// [`shrink_to_accept`](Zswap::shrink_to_accept) from a thread that may wait.
    pub fn wants_shrink(&self) -> bool {
        self.config.swap.is_some() && self.reached_full.load(Ordering::Relaxed)
    }

    /// Writes pages back until stores are accepted again.
    pub fn shrink_to_accept(&self) -> ShrinkReport {
        self.shrink(self.accept_threshold())
    }

    /// Writes pages to the swap file, oldest first, until the pools take at most `target_bytes`.
    /// Gives up after two failed writes, when no page may be written, or when the file is full.
    /// Without a swap file, packs the pools.
    pub fn shrink(&self, target_bytes: u64) -> ShrinkReport {
        let mut shrinker = lock(&self.shrinker);
        if self.config.swap.is_some() {
            return self.swap_out(&mut shrinker, target_bytes);
        }
        if self.pool_bytes() > target_bytes {
            self.compact();
        }
        ShrinkReport { reached: self.pool_bytes() <= target_bytes, ..ShrinkReport::default() }
    }

    /// Shrinks a group at its limit to the threshold, on the storing thread.
    pub(crate) fn shrink_group(&self, group: Group, cell: &GroupCell, threshold: u64) {
        if self.config.swap.is_none() {
            return;
        }
        if let Some(mut shrinker) = try_lock(&self.shrinker) {
            self.swap_out_group(&mut shrinker, group, cell, threshold);
        }
    }

    pub(crate) fn accept_threshold(&self) -> u64 {
        self.threshold_of(self.config.max_pool_bytes)
    }

    /// Bytes at which stores beyond `limit` are accepted again.
    pub(crate) fn threshold_of(&self, limit: u64) -> u64 {
        (u128::from(limit) * u128::from(self.config.accept_threshold_percent) / 100) as u64
    }

    pub(crate) fn can_write_back(&self, cell: &GroupCell) -> bool {
        self.config.swap.is_some() && cell.writeback.load(Ordering::Relaxed)
    }

    /// Pins the pages with objects of the node's oldest leaf that has no chances left and is not
    /// being read, and makes the leaf the youngest.
    pub(crate) fn pin_oldest(&self, cell: &GroupCell, node: usize) -> Option<(u32, u16)> {
        let mut guard = cell.lock();
        let state = &mut *guard;
        // One round per possible chance, and one more for leaves that just lost their last: the
        // first of them may be in use.
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
