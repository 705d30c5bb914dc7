//! The swap file's housekeeping, by the store, which knows the needed objects.

use std::sync::Arc;

use swapfile::{CleanReport, Engine, ForkedRow, Location, Owner, Record, SwapFile};

use crate::config::Group;
use crate::leaf::{LEAF_BITS, LEAF_PAGES};
use crate::shrink::Shrinker;
use crate::sync::lock;
use crate::Zswap;

/// Free segments that keep their blocks, so that the next writes need no new ones.
const SEGMENTS_KEPT: u64 = 24;

/// Result of maintenance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Segments cleaned.
    pub segments_cleaned: u64,
    /// Objects moved by cleaning.
    pub objects_moved: u64,
    /// Bytes given back to the disk.
    pub bytes_released: u64,
}

impl Zswap {
    /// The swap file, if there is one.
    pub fn swap_file(&self) -> Option<&Arc<SwapFile>> {
        self.config.swap.as_ref()
    }

    /// Cleans up to `segments_max` segments of the swap file if enough of it is dead, and gives
    /// free room back to the disk. For a thread that has time; shrinking also cleans a little.
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

    /// For tests: cleans all segments that can be cleaned; returns how many objects moved.
    #[doc(hidden)]
    pub fn clean_now(&self, segments_max: u64) -> u64 {
        let mut shrinker = lock(&self.shrinker);
        if let Some(writer) = &mut shrinker.writer {
            writer.close_logs();
        }
        self.clean(&mut shrinker, segments_max).objects
    }

    pub(crate) fn clean(&self, shrinker: &mut Shrinker, segments_max: u64) -> CleanReport {
        let writer = shrinker.writer.as_mut().expect("a store with a swap file writes to it");
        match writer.clean(&Holder(self), segments_max) {
            Ok(report) => report,
            Err(_) => {
                // All objects are in their old places.
                self.events.reject_reclaim_fail.add(1);
                CleanReport::default()
            }
        }
    }

    /// In a child after fork, before any other call: continues with the objects in the swap file
    /// that the child shares with its parent, by the child's own engine and its own row, which the
    /// parent made before (`SwapFile::fork_row`).
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
    fn holds(&self, record: &Record, place: Location) -> bool {
        let zswap = self.0;
        let Some(cell) = zswap.group(Group(record.group)) else { return false };
        let mut state = cell.lock();
        let Some(name) = state.tree.find(&zswap.slabs, (record.key >> LEAF_BITS) as u32) else {
            return false;
        };
        let first = (record.key & (LEAF_PAGES as u64 - 1)) as usize;
        state.tree.leaf(&zswap.slabs, name).in_place(first, record.pages as usize, place) != 0
    }

    fn moved(&self, record: &Record, from: Location, to: Location) -> bool {
        let zswap = self.0;
        let Some(cell) = zswap.group(Group(record.group)) else { return false };
        let (first, pages) = ((record.key & (LEAF_PAGES as u64 - 1)) as usize, record.pages as usize);
        let mut state = cell.lock();
        while let Some(name) = state.tree.find(&zswap.slabs, (record.key >> LEAF_BITS) as u32) {
            let leaf = state.tree.leaf(&zswap.slabs, name);
            let mask = leaf.in_place(first, pages, from);
            if mask & leaf.busy != 0 {
                // A reader holds its old place.
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
        // The swap file may outlive this store.
        if self.config.swap.is_some() && !std::thread::panicking() {
            for cell in self.cells() {
                self.erase(cell, 0, 1 << crate::KEY_BITS);
            }
        }
    }
}
