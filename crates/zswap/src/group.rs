//! One group's entries: its tree and lists under one lock, its limits and its numbers.

use crate::counters::GroupNumbers;
use crate::leaf::{DiskEntry, Entry, Leaf, Removed, LEAF_BITS, LEAF_PAGES};
use crate::lru::Lru;
use crate::padded::Padded;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{lock, Condvar, Mutex, MutexGuard};
use crate::tree::{Slabs, Tree};

/// A group. Everything in `state` is consistent whenever the lock is free.
pub(crate) struct GroupCell {
    shared: Padded<Shared>,
    /// Most compressed bytes; `u64::MAX` for no limit, 0 for no stores at all.
    pub(crate) limit: AtomicU64,
    pub(crate) writeback: AtomicBool,
    /// Whether the group reached its limit and is not yet down to the threshold.
    pub(crate) reached_full: AtomicBool,
}

/// Fields that every call changes, apart from those that stores only read.
struct Shared {
    state: Mutex<GroupState>,
    /// Signalled when pages stop being busy and a thread waits for that.
    idle: Condvar,
    numbers: GroupNumbers,
}

#[derive(Default)]
pub(crate) struct GroupState {
    pub(crate) tree: Tree,
    pub(crate) lru: Lru,
    waiting: u32,
}

impl GroupState {
    /// Those of up to 64 pages from `key` that `pages` selects in their leaves: bit `i` for
    /// `key + i`.
    pub(crate) fn pages(
        &mut self,
        slabs: &Slabs,
        key: u64,
        count: usize,
        pages: impl Fn(&Leaf) -> u16,
    ) -> u64 {
        let (mut mask, mut done) = (0, 0);
        while done < count {
            let (key_high, part) = leaf_part(key + done as u64, (count - done) as u64);
            if let Some(name) = self.tree.find(slabs, key_high) {
                let here = pages(self.tree.leaf(slabs, name)) & part;
                mask |= u64::from(here >> part.trailing_zeros()) << done;
            }
            done += part.count_ones() as usize;
        }
        mask
    }
}

/// Objects taken out of the tables, of a few leaves at a time, to be freed once no lock is held.
pub(crate) struct Freed {
    entries: [Entry; Freed::MAX],
    len: usize,
    disk: [DiskEntry; Freed::MAX],
    disk_len: usize,
}

impl Freed {
    pub(crate) const MAX: usize = 64;

    pub(crate) fn new() -> Self {
        Freed { entries: [Entry(0); Freed::MAX], len: 0, disk: [DiskEntry(0); Freed::MAX], disk_len: 0 }
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries[self.len] = entry;
        self.len += 1;
    }

    pub(crate) fn push_disk(&mut self, entry: DiskEntry) {
        self.disk[self.disk_len] = entry;
        self.disk_len += 1;
    }

    pub(crate) fn has_room(&self) -> bool {
        self.len.max(self.disk_len) + LEAF_PAGES <= Freed::MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len + self.disk_len == 0
    }

    /// Objects in the pool.
    pub(crate) fn as_slice(&self) -> &[Entry] {
        &self.entries[..self.len]
    }

    /// Objects in the swap file.
    pub(crate) fn on_disk(&self) -> &[DiskEntry] {
        &self.disk[..self.disk_len]
    }

    pub(crate) fn clear(&mut self) {
        (self.len, self.disk_len) = (0, 0);
    }
}

/// One page as it is published.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    /// The entry, or the repeated word.
    pub(crate) word: u64,
    pub(crate) same: bool,
}

/// The part of `[key, key + count)` in the leaf of `key`: the leaf's key bits and the pages' mask.
pub(crate) fn leaf_part(key: u64, count: u64) -> (u32, u16) {
    let slot = (key & (LEAF_PAGES as u64 - 1)) as u32;
    let pages = count.min(u64::from(LEAF_PAGES as u32 - slot)) as u32;
    ((key >> LEAF_BITS) as u32, (((1u32 << pages) - 1) << slot) as u16)
}

/// Positions of the set bits, ascending.
pub(crate) fn slots(mut mask: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (slot < LEAF_PAGES).then_some(slot)
    })
}

impl GroupCell {
    pub(crate) fn new() -> Self {
        GroupCell {
            shared: Padded(Shared {
                state: Mutex::new(GroupState::default()),
                idle: Condvar::new(),
                numbers: GroupNumbers::default(),
            }),
            limit: AtomicU64::new(u64::MAX),
            writeback: AtomicBool::new(true),
            reached_full: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, GroupState> {
        lock(&self.shared.state)
    }

    pub(crate) fn numbers(&self) -> &GroupNumbers {
        &self.shared.numbers
    }

    /// Waits until some pages are no longer busy. Callers hold no context, no other lock, and no
    /// pages that a reader with lower keys could want.
    pub(crate) fn wait<'a>(&'a self, mut state: MutexGuard<'a, GroupState>) -> MutexGuard<'a, GroupState> {
        state.waiting += 1;
        let mut state = self.shared.idle.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        state.waiting -= 1;
        state
    }

    pub(crate) fn unpin(&self, state: &mut GroupState, slabs: &Slabs, name: u32, mask: u16) {
        let leaf = state.tree.leaf(slabs, name);
        assert!(leaf.busy & mask == mask, "pages are unpinned by who pinned them");
        leaf.busy &= !mask;
        if state.waiting > 0 {
            self.shared.idle.notify_all();
        }
    }

    /// Removes the pages of `mask`, all present and idle, from a leaf, and an empty leaf from the
    /// tree; their objects go to `freed`.
    pub(crate) fn remove(
        &self,
        state: &mut GroupState,
        slabs: &Slabs,
        name: u32,
        mask: u16,
        freed: &mut Freed,
    ) {
        self.take_out(state, slabs, name, mask, freed);
        let leaf = state.tree.leaf(slabs, name);
        let (key_high, present, objects) = (leaf.key_high, leaf.present(), leaf.objects());
        if objects == 0 {
            state.lru.remove(&mut state.tree, slabs, name);
        }
        if present == 0 {
            state.tree.remove(slabs, key_high);
        }
    }

    fn take_out(&self, state: &mut GroupState, slabs: &Slabs, name: u32, mask: u16, freed: &mut Freed) {
        let leaf = state.tree.leaf(slabs, name);
        let (mut bytes, mut raw, mut same) = (0, 0, 0);
        let on_disk = u64::from((leaf.on_disk() & mask).count_ones());
        for slot in slots(mask) {
            match leaf.remove(slot) {
                Removed::DiskPart => {}
                Removed::Disk(entry) => freed.push_disk(entry),
                Removed::Same => same += 1,
                Removed::Part(entry) => raw += u64::from(entry.is_raw()),
                Removed::Object(entry) => {
                    raw += u64::from(entry.is_raw());
                    bytes += entry.len() as u64;
                    freed.push(entry);
                }
            }
        }
        let numbers = self.numbers();
        numbers.stored_pages.sub(u64::from(mask.count_ones()) - on_disk);
        numbers.on_disk_pages.sub(on_disk);
        numbers.bytes.sub(bytes);
        numbers.incompressible.sub(raw);
        numbers.same_filled.sub(same);
    }

    /// Publishes consecutive pages, replacing older ones, and makes their leaves the youngest of
    /// `node`: the table first, the list last. No page of the range is busy. `bytes` is the size of
    /// the pages' objects; `chances` returns how many writeback turns skip a leaf. Fails, and
    /// publishes nothing, if there is no memory for a leaf.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn publish(
        &self,
        state: &mut GroupState,
        slabs: &Slabs,
        key: u64,
        items: &[Item],
        sums: Option<&[u32]>,
        bytes: u64,
        node: usize,
        chances: impl Fn(u32) -> u8,
        freed: &mut Freed,
    ) -> Result<(), std::io::Error> {
        const LEAVES_MAX: usize = crate::batch::BATCH_PAGES_MAX / LEAF_PAGES + 1;
        let mut names = [0u32; LEAVES_MAX];
        let mut made = 0;
        let (mut at, mut left) = (key, items.len() as u64);
        while left > 0 {
            let (key_high, mask) = leaf_part(at, left);
            match state.tree.make(slabs, key_high) {
                Ok(name) => names[made] = name,
                Err(error) => {
                    for &name in &names[..made] {
                        let leaf = state.tree.leaf(slabs, name);
                        if leaf.present() == 0 {
                            let key_high = leaf.key_high;
                            state.tree.remove(slabs, key_high);
                        }
                    }
                    return Err(error);
                }
            }
            made += 1;
            at += u64::from(mask.count_ones());
            left -= u64::from(mask.count_ones());
        }
        let mut done = 0;
        for &name in &names[..made] {
            let (_, mask) = leaf_part(key + done as u64, (items.len() - done) as u64);
            let old = state.tree.leaf(slabs, name).present() & mask;
            if old != 0 {
                self.take_out(state, slabs, name, old, freed);
            }
            let pages = mask.count_ones() as usize;
            let leaf = state.tree.leaf(slabs, name);
            let first = mask.trailing_zeros() as usize;
            for (slot, item) in (first..).zip(&items[done..done + pages]) {
                leaf.insert(slot, item.word, item.same);
            }
            leaf.chances = chances(leaf.key_high);
            let objects = leaf.objects();
            if let Some(sums) = sums {
                state.tree.sums(slabs, name)[first..first + pages].copy_from_slice(&sums[done..done + pages]);
            }
            if objects != 0 {
                state.lru.touch(&mut state.tree, slabs, name, node);
            } else {
                state.lru.remove(&mut state.tree, slabs, name);
            }
            done += pages;
        }
        let (mut raw, mut same) = (0, 0);
        for item in items {
            same += u64::from(item.same);
            raw += u64::from(!item.same && Entry(item.word).is_raw());
        }
        let numbers = self.numbers();
        numbers.stored_pages.add(items.len() as u64);
        numbers.bytes.add(bytes);
        numbers.incompressible.add(raw);
        numbers.same_filled.add(same);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_leaves() {
        assert_eq!(leaf_part(0, 64), (0, 0xFFFF));
        assert_eq!(leaf_part(0x35, 3), (3, 0b1110_0000));
        assert_eq!(leaf_part(0x3F, u64::MAX), (3, 0x8000));
        assert_eq!(slots(0b1010_0000_0000_0001).collect::<Vec<_>>(), [0, 13, 15]);
        assert_eq!(slots(0).count(), 0);
    }
}
