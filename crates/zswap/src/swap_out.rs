//! Writeback to the swap file: compressed objects of the oldest leaves, many leaves at a time,
//! several writes at once.
//!
//! A leaf's pages are busy while their objects are copied. From then on until the write is done
//! they are *writing*. If a page is loaded, overwritten or invalidated during the write, its
//! on-disk copy is discarded. Pages that are still writing afterwards change their object's place
//! under the group's lock.

use swapfile::{Age, Finished, Location, Pack, Record, WriteError, Writer, TOGETHER_MAX};

use crate::config::{Group, NODES_MAX};
use crate::group::{slots, Freed, GroupCell};
use crate::leaf::{DiskEntry, Entry, Leaf, LEAF_BITS, LEAF_PAGES};
use crate::shrink::Shrinker;
use crate::sync::lock;
use crate::zswap::handle_of;
use crate::{ShrinkReport, Zswap};

/// Least objects to write, if there are enough: a smaller write is not worth its seek.
const OBJECTS_MIN: u64 = 32;
/// Failed writes, each in several places, until a shrink gives up, to spare a broken disk.
const FAILURES_MAX: u32 = 2;
/// Segments cleaned when the file is full, and when it wants cleaning.
const CLEAN_FULL: u64 = 4;
const CLEAN_SOME: u64 = 2;

/// A leaf whose pages with objects are pinned.
struct Pinned<'a> {
    group: Group,
    cell: &'a GroupCell,
    key_high: u32,
    mask: u16,
    /// Unique to this turn: during its write the leaf may be made again and have another turn.
    mark: u16,
}

/// The objects of a leaf to write, with their units' first slots.
struct Going {
    records: [Record; TOGETHER_MAX],
    entries: [Entry; TOGETHER_MAX],
    len: usize,
}

impl Going {
    fn of(leaf: &Leaf, pinned: &Pinned<'_>) -> Self {
        let none = Record { group: pinned.group.0, key: 0, len: 1, pages: 1, codec: 0, mark: pinned.mark };
        let mut going = Going { records: [none; TOGETHER_MAX], entries: [Entry(0); TOGETHER_MAX], len: 0 };
        let mut left = pinned.mask;
        for slot in slots(pinned.mask) {
            if left >> slot & 1 == 0 {
                continue;
            }
            left &= !leaf.unit_of(slot);
            let entry = leaf.entry(slot);
            let first = slot - entry.position();
            going.entries[going.len] = entry;
            let record = &mut going.records[going.len];
            record.key = (u64::from(leaf.key_high) << LEAF_BITS) + first as u64;
            (record.len, record.pages) = (entry.len() as u32, entry.pages() as u8);
            record.codec = entry.pool() as u8;
            going.len += 1;
        }
        going
    }

    /// Copies the objects, which stay during the call, into a pack; false if they do not fit.
    fn copy(&self, zswap: &Zswap, pack: &mut Pack) -> bool {
        let (records, entries) = (self.records(), &self.entries[..self.len]);
        let Some(first) = pack.add(records) else { return false };
        for (number, (record, &entry)) in records.iter().zip(entries).enumerate() {
            let object = zswap.pools.of_objects(entry.pool()).objects.read(handle_of(entry));
            pack.object_mut(first + number).copy_from_slice(&object.bytes()[..record.len as usize]);
        }
        true
    }

    fn records(&self) -> &[Record] {
        &self.records[..self.len]
    }
}

#[derive(Default)]
struct Round {
    /// Bytes of submitted objects.
    bytes: u64,
    objects: u64,
    /// Whether there was nothing more to write.
    is_dry: bool,
}

impl Zswap {
    /// Writes pages to the swap file until the pools take at most `target_bytes`.
    pub(crate) fn swap_out(&self, shrinker: &mut Shrinker, target_bytes: u64) -> ShrinkReport {
        let mut report = ShrinkReport::default();
        let mut cleaned = false;
        while !report.reached && report.failures < FAILURES_MAX {
            let now = self.pool_bytes();
            if now <= target_bytes {
                break;
            }
            report.no_space = false;
            let round = self.write_oldest(shrinker, None, now - target_bytes, &mut report);
            if self.pool_bytes() > target_bytes {
                // If single pages left, no whole zspage may be free yet.
                self.compact();
            }
            if report.no_space {
                // Only once: if the cleaned room is full again at once, cleaning does not help.
                if std::mem::replace(&mut cleaned, true) || self.clean(shrinker, CLEAN_FULL).bytes_freed == 0
                {
                    break;
                }
            } else if round.is_dry {
                break;
            }
        }
        report.reached = self.pool_bytes() <= target_bytes;
        if self.config.swap.as_ref().is_some_and(|file| file.wants_cleaning()) {
            self.clean(shrinker, CLEAN_SOME);
        }
        report
    }

    /// Writes the oldest objects to the swap file, `bytes` or slightly more, and cleans it if
    /// needed. It does not pack, so it needs no memory but the swap file's buffers, and frees
    /// memory only as whole zspages become free. For a thread that writes ahead of demand.
    pub fn write_out(&self, bytes: u64) -> ShrinkReport {
        let mut report = ShrinkReport::default();
        let Some(file) = &self.config.swap else { return report };
        let mut shrinker = lock(&self.shrinker);
        let round = self.write_oldest(&mut shrinker, None, bytes, &mut report);
        report.reached = round.bytes >= bytes && report.failures == 0;
        if report.no_space {
            self.clean(&mut shrinker, CLEAN_FULL);
        } else if file.wants_cleaning() {
            self.clean(&mut shrinker, CLEAN_SOME);
        }
        report
    }

    /// Writes pages of one group until its objects take at most `target_bytes`.
    pub(crate) fn swap_out_group(
        &self,
        shrinker: &mut Shrinker,
        group: Group,
        cell: &GroupCell,
        target_bytes: u64,
    ) -> ShrinkReport {
        let mut report = ShrinkReport::default();
        while report.failures < FAILURES_MAX {
            let now = cell.numbers().bytes.get();
            report.reached = now <= target_bytes;
            if report.reached {
                break;
            }
            let round = self.write_oldest(shrinker, Some(group), now - target_bytes, &mut report);
            if round.is_dry || report.no_space {
                report.reached = cell.numbers().bytes.get() <= target_bytes;
                break;
            }
        }
        report
    }

    /// Writes the oldest leaves of one group, or of all in turn, up to `goal_bytes`; waits for all.
    fn write_oldest(
        &self,
        shrinker: &mut Shrinker,
        only: Option<Group>,
        goal_bytes: u64,
        report: &mut ShrinkReport,
    ) -> Round {
        let mut writer = shrinker.writer.take().expect("a store with a swap file writes to it");
        let mut round = Round::default();
        let mut pack = None;
        let mut is_split = false;
        while round.bytes < goal_bytes || round.objects < OBJECTS_MIN {
            if report.failures >= FAILURES_MAX {
                break;
            }
            let Some(mut pinned) = self.next_leaf(shrinker, only) else {
                // The rest of a leaf waits for the write of its first part.
                round.is_dry = !is_split;
                break;
            };
            if self.add_leaf(&pinned, pack.as_mut(), &mut round) {
                continue;
            }
            // The pack is full or missing. The leaf is unpinned first: the end of a write may wait
            // for a reader of its objects, and that reader for this leaf.
            self.unpin_leaf(&pinned);
            if let Some(full) = pack.take() {
                self.hand_over(full, &mut writer, report);
            }
            match writer.pack(Age::New) {
                Ok(empty) => pack = Some(empty),
                Err(error) => {
                    self.count_failure(&error, report);
                    break;
                }
            }
            if self.pin_again(&mut pinned) {
                // Units of which most pages were replaced can be longer, together, than a pack.
                while !self.add_leaf(&pinned, pack.as_mut(), &mut round) {
                    self.unpin_half(&mut pinned);
                    is_split = true;
                }
            }
        }
        if let Some(pack) = pack {
            self.hand_over(pack, &mut writer, report);
        }
        while let Some(finished) = writer.poll(true) {
            self.settle(&mut writer, finished, report);
        }
        shrinker.writer = Some(writer);
        round
    }

    /// Pins the oldest leaf of `only`, or of the group with the next turn; nodes take turns too.
    fn next_leaf(&self, shrinker: &mut Shrinker, only: Option<Group>) -> Option<Pinned<'_>> {
        let groups = self.groups.len();
        for _ in 0..if only.is_some() { 1 } else { groups } {
            let group = only.unwrap_or_else(|| shrinker.next_group(groups));
            let Some(cell) = self.group(group) else { continue };
            if !self.can_write_back(cell) {
                continue;
            }
            for _ in 0..NODES_MAX {
                let node = shrinker.next_node();
                if let Some((key_high, mask)) = self.pin_oldest(cell, node) {
                    return Some(Pinned { group, cell, key_high, mask, mark: shrinker.next_mark() });
                }
            }
        }
        None
    }

    fn unpin_leaf(&self, pinned: &Pinned<'_>) {
        let mut state = pinned.cell.lock();
        let name = state.tree.find(&self.slabs, pinned.key_high).expect("pinned pages stay");
        pinned.cell.unpin(&mut state, &self.slabs, name, pinned.mask);
    }

    /// Pins a leaf again, with its present content; returns false if it has none or is in use.
    fn pin_again(&self, pinned: &mut Pinned<'_>) -> bool {
        let mut state = pinned.cell.lock();
        let Some(name) = state.tree.find(&self.slabs, pinned.key_high) else { return false };
        let leaf = state.tree.leaf(&self.slabs, name);
        pinned.mask = leaf.objects();
        if pinned.mask == 0 || leaf.busy & pinned.mask != 0 || leaf.writing() != 0 {
            return false;
        }
        leaf.busy |= pinned.mask;
        true
    }

    /// Unpins the last half of a leaf's objects.
    fn unpin_half(&self, pinned: &mut Pinned<'_>) {
        let objects = self.going(pinned).len;
        assert!(objects > 1, "an empty pack has room for an object");
        let mut state = pinned.cell.lock();
        let name = state.tree.find(&self.slabs, pinned.key_high).expect("pinned pages stay");
        let leaf = state.tree.leaf(&self.slabs, name);
        let mut last = pinned.mask;
        for _ in 0..objects / 2 {
            last &= !leaf.unit_of(last.trailing_zeros() as usize);
        }
        pinned.mask &= !last;
        pinned.cell.unpin(&mut state, &self.slabs, name, last);
    }

    fn going(&self, pinned: &Pinned<'_>) -> Going {
        let mut state = pinned.cell.lock();
        let name = state.tree.find(&self.slabs, pinned.key_high).expect("pinned pages stay");
        Going::of(state.tree.leaf(&self.slabs, name), pinned)
    }

    /// Copies a leaf's objects into the pack and turns its pages from pinned to writing. Returns
    /// false, and does nothing, if they do not fit or there is no pack.
    fn add_leaf(&self, pinned: &Pinned<'_>, pack: Option<&mut Pack>, round: &mut Round) -> bool {
        let Some(pack) = pack else { return false };
        let going = self.going(pinned);
        if !going.copy(self, pack) {
            return false;
        }
        let records = going.records();
        round.objects += records.len() as u64;
        round.bytes += records.iter().map(|record| u64::from(record.len)).sum::<u64>();
        let mut state = pinned.cell.lock();
        let name = state.tree.find(&self.slabs, pinned.key_high).expect("pinned pages stay");
        state.tree.leaf(&self.slabs, name).begin_writing(pinned.mask, pinned.mark);
        pinned.cell.unpin(&mut state, &self.slabs, name, pinned.mask);
        true
    }

    /// Settles completed writes and starts this one when possible. No page is pinned by the caller.
    fn hand_over(&self, pack: Pack, writer: &mut Writer, report: &mut ShrinkReport) {
        if pack.len() == 0 {
            writer.abandon(pack);
            return;
        }
        while let Some(finished) = writer.poll(!writer.is_ready()) {
            self.settle(writer, finished, report);
        }
        writer.submit(Age::New, pack);
    }

    fn count_failure(&self, error: &WriteError, report: &mut ShrinkReport) {
        report.failures += 1;
        match error {
            WriteError::NoSpace => report.no_space = true,
            WriteError::Io { error, .. } => report.error = Some(error.raw_os_error().unwrap_or(0)),
        }
        self.events.reject_reclaim_fail.add(1);
    }

    fn settle(&self, writer: &mut Writer, finished: Finished, report: &mut ShrinkReport) {
        if let Err(error) = &finished.result {
            self.count_failure(error, report);
        }
        let is_written = finished.result.is_ok();
        let mut leaf = [None; LEAF_PAGES];
        let mut objects = finished.objects().peekable();
        while let Some((record, place)) = objects.next() {
            let of = |record: &Record| (record.group, record.key >> LEAF_BITS, record.mark);
            leaf[0] = Some((record, place));
            let mut len = 1;
            while let Some(next) = objects.next_if(|(next, _)| len < LEAF_PAGES && of(next) == of(&record)) {
                leaf[len] = Some(next);
                len += 1;
            }
            report.pages_written += self.settle_leaf(&leaf[..len], is_written);
        }
        drop(objects);
        writer.recycle(finished);
    }

    /// Ends a write for a leaf's objects; returns how many pages it moved to disk.
    fn settle_leaf(&self, objects: &[Option<(Record, Location)>], is_written: bool) -> u64 {
        let (record, _) = objects[0].expect("a leaf that was written has objects");
        let cell = self.group(Group(record.group)).expect("groups stay");
        let key_high = (record.key >> LEAF_BITS) as u32;
        let mut freed = Freed::new();
        let (mut pages, mut bytes, mut raw, mut dead) = (0, 0, 0, u16::from(is_written) * u16::MAX);
        let mut state = cell.lock();
        // A reader of such a page ends by itself; if it takes the page, the page is no longer
        // writing.
        while let Some(name) = state.tree.find(&self.slabs, key_high) {
            let leaf = state.tree.leaf(&self.slabs, name);
            if is_written && leaf.busy & leaf.writing_by(record.mark) != 0 {
                state = cell.wait(state);
                continue;
            }
            let unchanged = leaf.end_writing(record.mark);
            if !is_written {
                break;
            }
            for (number, &(record, place)) in objects.iter().flatten().enumerate() {
                let first = (record.key & (LEAF_PAGES as u64 - 1)) as usize;
                let mut object = None;
                for slot in
                    slots(unchanged).filter(|slot| (first..first + record.pages as usize).contains(slot))
                {
                    // A page that was stored later may lie within the range of an older unit.
                    if leaf.on_disk() >> slot & 1 == 1 {
                        continue;
                    }
                    let entry = leaf.entry(slot);
                    if (entry.pages(), entry.position()) != (record.pages as usize, slot - first) {
                        continue;
                    }
                    assert!(
                        entry.len() == record.len as usize,
                        "an object that did not change has its length"
                    );
                    leaf.move_to_disk(slot, DiskEntry::new(place, slot - first, entry.pages(), entry.pool()));
                    (pages, raw, object) = (pages + 1, raw + u64::from(entry.is_raw()), Some(entry));
                }
                if let Some(entry) = object {
                    dead &= !(1 << number);
                    bytes += entry.len() as u64;
                    freed.push(entry);
                }
            }
            if leaf.objects() == 0 {
                let state = &mut *state;
                state.lru.remove(&mut state.tree, &self.slabs, name);
            }
            break;
        }
        let numbers = cell.numbers();
        numbers.stored_pages.sub(pages);
        numbers.on_disk_pages.add(pages);
        numbers.zswpwb.add(pages);
        numbers.bytes.sub(bytes);
        numbers.incompressible.sub(raw);
        drop(state);
        self.free_moved(&mut freed);
        let file = self.config.swap.as_ref().expect("it was written to");
        for (number, (_, place)) in objects.iter().flatten().enumerate() {
            if dead >> number & 1 == 1 {
                file.free(*place);
            }
        }
        pages
    }
}
