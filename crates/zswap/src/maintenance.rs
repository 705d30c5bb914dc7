//! The swap file's housekeeping, which its store alone can do: it knows what is needed.

use std::sync::Arc;

use swapfile::{CleanReport, Engine, ForkedRow, Owner, Place, Record, SwapFile};

use crate::config::Group;
use crate::leaf::{LEAF_BITS, LEAF_PAGES};
use crate::shrink::Shrinker;
use crate::sync::lock;
use crate::Zswap;

/// Free segments that keep their blocks: what is written next need not ask for new ones.
const SEGMENTS_KEPT: u64 = 24;

/// What tending did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Segments cleaned.
    pub segments_cleaned: u64,
    /// Objects moved by that.
    pub objects_moved: u64,
    /// Bytes given back to the disk.
    pub bytes_released: u64,
}

impl Zswap {
    /// The swap file, if there is one.
    pub fn swap_file(&self) -> Option<&Arc<SwapFile>> {
        self.config.swap.as_ref()
    }

    /// Cleans up to `segments_max` segments of the swap file if much of it is dead, and gives free
    /// room back to the disk. For a thread that has time; shrinking cleans a little by itself.
    pub fn maintain(&self, segments_max: u64) -> MaintenanceReport {
        let Some(file) = &self.config.swap else { return MaintenanceReport::default() };
        let mut shrinker = lock(&self.shrinker);
        let cleaned = match file.wants_cleaning() {
            true => self.clean(&mut shrinker, segments_max),
            false => CleanReport::default(),
        };
        MaintenanceReport {
            segments_cleaned: cleaned.segments,
            objects_moved: cleaned.objects,
            bytes_released: file.trim(SEGMENTS_KEPT),
        }
    }

    /// For tests: cleans all that can be cleaned, wanted or not; returns how many objects moved.
    #[doc(hidden)]
    pub fn clean_now(&self, segments_max: u64) -> u64 {
        let mut shrinker = lock(&self.shrinker);
        if let Some(writer) = &mut shrinker.writer {
            writer.close_logs();
        }
        self.clean(&mut shrinker, segments_max).objects
    }

    /// Cleans the segments that pay most.
    pub(crate) fn clean(&self, shrinker: &mut Shrinker, segments_max: u64) -> CleanReport {
        let writer = shrinker.writer.as_mut().expect("a store with a swap file writes to it");
        match writer.clean(&Holder(self), segments_max) {
            Ok(report) => report,
            Err(_) => {
                // Everything is where it was.
                self.events.reject_reclaim_fail.add(1);
                CleanReport::default()
            }
        }
    }

    /// In a child after fork, before any other call: the store continues with what it has in the
    /// swap file, which its parent has too, by a row of its own (`SwapFile::fork_row`, called by
    /// the parent before) and an engine of its own.
    pub fn inherit_swap(&self, row: ForkedRow, owner: u32, engine: Arc<dyn Engine>) {
        let Some(file) = &self.config.swap else { return };
        file.inherit(row, owner, engine);
        if let Some(writer) = &mut lock(&self.shrinker).writer {
            writer.inherit();
        }
    }
}

struct Holder<'a>(&'a Zswap);

impl Owner for Holder<'_> {
    fn holds(&self, record: &Record, place: Place) -> bool {
        let zswap = self.0;
        let Some(cell) = zswap.group(Group(record.group)) else { return false };
        let mut state = cell.lock();
        let Some(name) = state.tree.find(&zswap.slabs, (record.key >> LEAF_BITS) as u32) else {
            return false;
        };
        let first = (record.key & (LEAF_PAGES as u64 - 1)) as usize;
        state.tree.leaf(&zswap.slabs, name).in_place(first, record.pages as usize, place) != 0
    }

    fn moved(&self, record: &Record, from: Place, to: Place) -> bool {
        let zswap = self.0;
        let Some(cell) = zswap.group(Group(record.group)) else { return false };
        let (first, pages) = ((record.key & (LEAF_PAGES as u64 - 1)) as usize, record.pages as usize);
        let mut state = cell.lock();
        while let Some(name) = state.tree.find(&zswap.slabs, (record.key >> LEAF_BITS) as u32) {
            let leaf = state.tree.leaf(&zswap.slabs, name);
            let mask = leaf.in_place(first, pages, from);
            if mask & leaf.busy != 0 {
                // A reader holds it where it was.
                state = cell.wait(state);
                continue;
            }
            return leaf.move_on_disk(first, pages, from, to) != 0;
        }
        false
    }
}

impl Drop for Zswap {
    fn drop(&mut self) {
        // The swap file may go on without this store.
        if self.config.swap.is_some() && !std::thread::panicking() {
            for cell in self.cells() {
                self.erase(cell, 0, 1 << crate::KEY_BITS);
            }
        }
    }
}
