//! Invalidation of ranges.

use crate::config::Group;
use crate::group::{Freed, GroupCell};
use crate::leaf::{LEAF_BITS, LEAF_PAGES};
use crate::sync::MutexGuard;
use crate::zswap::in_range;
use crate::{group::GroupState, Zswap, KEY_BITS};

impl Zswap {
    /// Invalidates `[first_key, first_key + count)` at a cost that depends only on its stored
    /// pages. Ignores keys beyond the last possible one. Returns how many pages were removed.
    pub fn invalidate(&self, group: Group, first_key: u64, count: u64) -> u64 {
        let count = count.min((1u64 << KEY_BITS).saturating_sub(first_key));
        if count == 0 || !in_range(first_key, count) {
            return 0;
        }
        match self.group(group) {
            Some(cell) => self.erase(cell, first_key, count),
            None => 0,
        }
    }

    /// Removes all pages of a range, waiting for those that are being read.
    pub(crate) fn erase(&self, cell: &GroupCell, first_key: u64, count: u64) -> u64 {
        if count == 0 {
            return 0;
        }
        let end = first_key + count;
        let mut from = (first_key >> LEAF_BITS) as u32;
        let last = ((end - 1) >> LEAF_BITS) as u32;
        let mut freed = Freed::new();
        let mut pages = 0;
        let mut state = cell.lock();
        while let Some((key_high, name)) = state.tree.next(&self.slabs, from) {
            if key_high > last {
                break;
            }
            let leaf_first = u64::from(key_high) << LEAF_BITS;
            let mut mask = !0u16;
            if leaf_first < first_key {
                mask &= !0 << (first_key - leaf_first);
            }
            if end < leaf_first + LEAF_PAGES as u64 {
                mask &= !(!0 << (end - leaf_first));
            }
            let leaf = state.tree.leaf(&self.slabs, name);
            mask &= leaf.present();
            if leaf.busy & mask != 0 {
                // The leaf may have been removed during the wait, so look it up again.
                state = match freed.is_empty() {
                    true => cell.wait(state),
                    false => self.free_between(cell, state, &mut freed),
                };
                from = key_high;
                continue;
            }
            if mask != 0 {
                cell.remove(&mut state, &self.slabs, name, mask, &mut freed);
                pages += u64::from(mask.count_ones());
            }
            if !freed.has_room() {
                state = self.free_between(cell, state, &mut freed);
            }
            match key_high.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
        drop(state);
        self.free(&mut freed);
        pages
    }

    fn free_between<'a>(
        &self,
        cell: &'a GroupCell,
        state: MutexGuard<'a, GroupState>,
        freed: &mut Freed,
    ) -> MutexGuard<'a, GroupState> {
        drop(state);
        self.free(freed);
        cell.lock()
    }
}
