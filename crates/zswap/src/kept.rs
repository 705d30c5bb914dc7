//! A swap file that is kept: its state is made durable by commits, and read back by the next run.
//!
//! Every change of a leaf notes the index page that tells of it, under the lock that the change is
//! made under. A commit takes what was noted, and for each leaf of these pages, under that lock,
//! does at one moment two things: copies what is in the pool into a pack, as writing out does, and
//! notes where everything of the leaf is, or will be when that pack is written. So the index tells
//! of one state of each leaf, while pages are stored, read and forgotten: a page that changes while
//! its copy is on its way is noted again, and its copy stays until the next commit is durable,
//! since segments are not used again before.

use std::collections::BTreeSet;

use swapfile::{
    Age, FileError, Finished, Index, IndexPage, Pack, Place, Record, SwapFile, WriteError, Writer,
    INDEX_GROUP, INDEX_PAGES, TOP_GROUP,
};

use crate::config::Group;
use crate::group::slots;
use crate::leaf::{DiskEntry, Entry, Leaf, Source, LEAF_BITS, LEAF_PAGES};
use crate::shrink::{ShrinkReport, Shrinker};
use crate::swap_out::Going;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{lock, Mutex};
use crate::Zswap;

/// The one group of a store whose swap file is kept.
const GROUP: Group = Group(0);
/// Index pages that are made at a time: what one round of a commit has in memory beside the packs.
const ROUND_PAGES: usize = 64;
/// Leaves that an index page tells of.
const LEAVES: usize = INDEX_PAGES / LEAF_PAGES;
/// Segments cleaned at a time by a commit that finds little room.
const CLEAN_SEGMENTS: u64 = 16;

/// A commit failed; what was durable before still is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The file is full, or its disk.
    #[error("the swap file is full, or its disk")]
    NoSpace,
    /// Writing, or waiting for the disk, failed with this number of the system's.
    #[error("writing to the swap file failed: {}", std::io::Error::from_raw_os_error(*.0))]
    Io(i32),
}

impl From<&WriteError> for CommitError {
    fn from(error: &WriteError) -> Self {
        const EIO: i32 = 5;
        match error {
            WriteError::NoSpace => CommitError::NoSpace,
            WriteError::Io { error, .. } => CommitError::Io(error.raw_os_error().unwrap_or(EIO)),
        }
    }
}

/// What a store knows of a swap file that is kept.
pub(crate) struct Kept {
    /// Index pages that do not tell how things are: a bit each.
    changed: Box<[AtomicU64]>,
    /// Pages whose content was lost by a store that failed.
    lost: Mutex<BTreeSet<u64>>,
    has_lost: AtomicBool,
    /// Where the index lies.
    index: Mutex<Option<Index>>,
}

impl Kept {
    /// For a swap file, if it is one that is kept.
    pub(crate) fn new(file: &SwapFile) -> Option<Kept> {
        let pages = file.identity()?.device_bytes.div_ceil(acomp::PAGE_SIZE as u64) as usize;
        Some(Kept {
            changed: (0..pages.div_ceil(INDEX_PAGES).div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            lost: Mutex::default(),
            has_lost: AtomicBool::new(false),
            index: Mutex::new(None),
        })
    }

    fn note(&self, index_page: usize) {
        if let Some(word) = self.changed.get(index_page / 64) {
            word.fetch_or(1 << (index_page % 64), Ordering::SeqCst);
        }
    }

    fn note_range(&self, key: u64, count: u64) {
        let last = key + count.max(1) - 1;
        (key as usize / INDEX_PAGES..=last as usize / INDEX_PAGES).for_each(|page| self.note(page));
    }

    /// Takes what was noted.
    fn take_changed(&self) -> Vec<usize> {
        let mut pages = Vec::new();
        for (number, word) in self.changed.iter().enumerate() {
            let bits = word.swap(0, Ordering::SeqCst);
            pages.extend((0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| number * 64 + bit));
        }
        pages
    }

    /// Pages were stored, under the group's lock.
    pub(crate) fn note_stored(&self, group: Group, key: u64, count: u64) {
        debug_assert!(group == GROUP);
        self.find(key, count);
        self.note_range(key, count);
    }

    /// What pages had is lost: noted before they go.
    pub(crate) fn note_lost(&self, group: Group, key: u64, count: u64) {
        debug_assert!(group == GROUP);
        let mut lost = lock(&self.lost);
        lost.extend(key..key + count);
        self.has_lost.store(true, Ordering::SeqCst);
        drop(lost);
        self.note_range(key, count);
    }

    /// Pages are to have no content.
    pub(crate) fn note_forgotten(&self, group: Group, key: u64, count: u64) {
        debug_assert!(group == GROUP);
        if self.find(key, count) {
            self.note_range(key, count);
        }
    }

    /// Pages are not lost any more; whether any was.
    fn find(&self, key: u64, count: u64) -> bool {
        if !self.has_lost.load(Ordering::SeqCst) {
            return false;
        }
        let mut lost = lock(&self.lost);
        let before = lost.len();
        lost.retain(|page| !(key..key + count).contains(page));
        self.has_lost.store(!lost.is_empty(), Ordering::SeqCst);
        lost.len() < before
    }
}

/// An index page on its way: what is in the pool has its entry there until its place is known.
struct Making {
    number: usize,
    page: IndexPage,
    waiting: [u16; LEAVES],
}

impl Making {
    /// An object's place is known.
    fn arrived(&mut self, record: &Record, place: Place) {
        let within = record.key as usize % INDEX_PAGES;
        let (leaf, first) = (within / LEAF_PAGES, within % LEAF_PAGES);
        for slot in
            slots(self.waiting[leaf]).filter(|slot| (first..first + record.pages as usize).contains(slot))
        {
            let entry = Entry(self.page.words[leaf * LEAF_PAGES + slot]);
            if (entry.pages(), entry.position()) == (record.pages as usize, slot - first) {
                let word = DiskEntry::new(place, slot - first, entry.pages(), entry.pool());
                self.page.words[leaf * LEAF_PAGES + slot] = word.0;
                self.waiting[leaf] &= !(1 << slot);
            }
        }
    }
}

/// The writer's state during a commit.
struct Committing<'a> {
    writer: &'a mut Writer,
    pack: Option<Pack>,
    error: Option<CommitError>,
}

impl Zswap {
    /// Notes that what is known of a leaf's pages changed, under the group's lock.
    pub(crate) fn note_changed(&self, key_high: u32) {
        if let Some(kept) = &self.kept {
            kept.note(key_high as usize / LEAVES);
        }
    }

    /// Makes all that was stored and forgotten durable in a swap file that is kept: what is in the
    /// pool is written there, and lies there alone from then on. Ends at once with any other swap
    /// file, or none.
    ///
    /// # Errors
    /// [`CommitError`]; what was durable before still is.
    pub fn commit(&self) -> Result<(), CommitError> {
        match self.kept {
            Some(_) => self.commit_with(&mut lock(&self.shrinker)),
            None => Ok(()),
        }
    }

    /// Commits when that is needed for there to be room, and has cleaning gain some when it did not
    /// help.
    pub(crate) fn commit_if_wanted(&self, shrinker: &mut Shrinker) {
        let Some(file) = self.config.swap.as_ref().filter(|file| file.wants_commit()) else { return };
        if self.commit_with(shrinker).is_ok() && file.wants_cleaning() {
            self.clean(shrinker, CLEAN_SEGMENTS);
            let _ = self.commit_with(shrinker);
        }
    }

    pub(crate) fn commit_with(&self, shrinker: &mut Shrinker) -> Result<(), CommitError> {
        let (Some(kept), Some(file)) = (&self.kept, &self.config.swap) else { return Ok(()) };
        let emptied = file.begin_commit();
        let changed = kept.take_changed();
        let mut index = lock(&kept.index);
        let index = index.as_mut().expect("a swap file that is kept is restored before it is used");
        if changed.is_empty() && index.changed_tops().is_empty() {
            file.release_emptied(emptied);
            return Ok(());
        }
        let written = self.write_changes(shrinker, kept, index, &changed);
        let done = written.and_then(|()| file.end_commit(index).map_err(|error| CommitError::from(&error)));
        match done {
            Ok(()) => file.release_emptied(emptied),
            Err(_) => {
                changed.iter().for_each(|&page| kept.note(page));
                file.abandon_commit(emptied);
            }
        }
        done
    }

    /// Writes what is in the pool of the changed index pages, these pages, and what names them.
    fn write_changes(
        &self,
        shrinker: &mut Shrinker,
        kept: &Kept,
        index: &mut Index,
        changed: &[usize],
    ) -> Result<(), CommitError> {
        let file = self.config.swap.as_ref().expect("a commit is to a swap file");
        let mut writer = shrinker.writer.take().expect("a store with a swap file writes to it");
        let mut committing = Committing { writer: &mut writer, pack: None, error: None };
        for pages in changed.chunks(ROUND_PAGES) {
            let mut makings = Vec::with_capacity(pages.len());
            for &number in pages {
                let mut making = Making { number, page: IndexPage::default(), waiting: [0; LEAVES] };
                for leaf in 0..LEAVES {
                    let key_high = (number * LEAVES + leaf) as u32;
                    let mark = shrinker.next_mark();
                    self.make_leaf(key_high, mark, &mut making, &mut makings, &mut committing);
                }
                self.add_lost(kept, &mut making);
                makings.push(making);
            }
            self.end_objects(&mut committing, &mut makings);
            self.write_index(&mut committing, &makings, index, file);
            if committing.error.is_some() {
                break;
            }
        }
        if committing.error.is_none() {
            self.write_tops(&mut committing, index, file);
        }
        let error = committing.error;
        shrinker.writer = Some(writer);
        error.map_or(Ok(()), Err)
    }

    /// Notes how a leaf is, and puts what it has in the pool under way.
    fn make_leaf(
        &self,
        key_high: u32,
        mark: u16,
        making: &mut Making,
        makings: &mut [Making],
        committing: &mut Committing<'_>,
    ) {
        let Some(cell) = self.group(GROUP) else { return };
        let leaf_number = key_high as usize % LEAVES;
        loop {
            if committing.error.is_some() {
                return;
            }
            let mut state = cell.lock();
            let Some(name) = state.tree.find(&self.slabs, key_high) else { return };
            let leaf = state.tree.leaf(&self.slabs, name);
            let mask = leaf.objects();
            if mask != 0 {
                let mut going = Going::new();
                going.fill(leaf, GROUP, mask, mark);
                // The lock is held: what is in the tables stays. Sixteen pages take some
                // microseconds.
                if !committing.pack.as_mut().is_some_and(|pack| going.copy(self, pack)) {
                    drop(state);
                    self.next_pack(committing, making, makings);
                    continue;
                }
                leaf.begin_writing(mask, mark);
            }
            for slot in slots(leaf.present()) {
                let page = leaf_number * LEAF_PAGES + slot;
                match leaf.same_word(slot) {
                    Some(word) => making.page.set(page, word, true),
                    None => match leaf.source(slot) {
                        Source::Memory(entry) => making.page.set(page, entry.0, false),
                        Source::Disk(entry) => making.page.set(page, entry.0, false),
                    },
                }
            }
            making.waiting[leaf_number] = mask;
            return;
        }
    }

    fn add_lost(&self, kept: &Kept, making: &mut Making) {
        if kept.has_lost.load(Ordering::SeqCst) {
            let first = (making.number * INDEX_PAGES) as u64;
            for key in lock(&kept.lost).range(first..first + INDEX_PAGES as u64) {
                let page = (key - first) as usize;
                // Between its loss and its going a page has what it had.
                if making.page.get(page).is_none() {
                    making.page.set_lost(page);
                }
            }
        }
    }

    /// Hands a full pack over, if there is one, and has an empty one.
    fn next_pack(&self, committing: &mut Committing<'_>, making: &mut Making, makings: &mut [Making]) {
        self.hand_over_objects(committing, |record, place| {
            let number = record.key as usize / INDEX_PAGES;
            if making.number == number {
                making.arrived(record, place);
            } else if let Ok(at) = makings.binary_search_by_key(&number, |making| making.number) {
                makings[at].arrived(record, place);
            }
        });
        if committing.error.is_none() {
            match committing.writer.pack(Age::New) {
                Ok(pack) => committing.pack = Some(pack),
                Err(error) => committing.error = Some(CommitError::from(&error)),
            }
        }
    }

    /// Hands over the pack there is, and settles what is written by now.
    fn hand_over_objects(&self, committing: &mut Committing<'_>, mut arrived: impl FnMut(&Record, Place)) {
        let Some(pack) = committing.pack.take() else { return };
        if pack.len() == 0 {
            committing.writer.abandon(pack);
            return;
        }
        while let Some(finished) = committing.writer.poll(!committing.writer.is_ready()) {
            self.settle_objects(committing, finished, &mut arrived);
        }
        committing.writer.submit(Age::New, pack);
    }

    fn settle_objects(
        &self,
        committing: &mut Committing<'_>,
        finished: Finished,
        arrived: &mut impl FnMut(&Record, Place),
    ) {
        match &finished.result {
            Ok(()) => finished.objects().for_each(|(record, place)| arrived(&record, place)),
            Err(error) => committing.error = Some(CommitError::from(error)),
        }
        self.settle(committing.writer, finished, false, &mut ShrinkReport::default());
    }

    /// Waits until all objects are written.
    fn end_objects(&self, committing: &mut Committing<'_>, makings: &mut [Making]) {
        let mut arrived = |record: &Record, place| {
            let number = record.key as usize / INDEX_PAGES;
            if let Ok(at) = makings.binary_search_by_key(&number, |making| making.number) {
                makings[at].arrived(record, place);
            }
        };
        self.hand_over_objects(committing, &mut arrived);
        while let Some(finished) = committing.writer.poll(true) {
            self.settle_objects(committing, finished, &mut arrived);
        }
    }

    /// Writes index pages; what they replace is dead from then on.
    fn write_index(
        &self,
        committing: &mut Committing<'_>,
        makings: &[Making],
        index: &mut Index,
        file: &SwapFile,
    ) {
        for making in makings {
            if committing.error.is_some() {
                break;
            }
            assert!(making.waiting == [0; LEAVES], "every object was written");
            if making.page.is_empty() {
                if let Some(before) = index.set(making.number, None) {
                    file.free(before);
                }
                continue;
            }
            let (len, page) = (making.page.encoded_len(), &making.page);
            self.write_own(committing, index, file, (INDEX_GROUP, making.number, len), |room| {
                page.encode(room)
            });
        }
        self.end_own(committing, index, file);
    }

    fn write_tops(&self, committing: &mut Committing<'_>, index: &mut Index, file: &SwapFile) {
        for top in index.changed_tops() {
            match index.top_page(top) {
                None => {
                    if let Some(before) = index.set_top(top, None) {
                        file.free(before);
                    }
                }
                Some(page) => {
                    let object = (TOP_GROUP, top, page.len());
                    self.write_own(committing, index, file, object, |room| room.copy_from_slice(&page));
                }
            }
        }
        self.end_own(committing, index, file);
    }

    /// Adds a page of the index to the pack, or to the next one: its group, number and length, and
    /// what writes it.
    fn write_own(
        &self,
        committing: &mut Committing<'_>,
        index: &mut Index,
        file: &SwapFile,
        (group, number, len): (u16, usize, usize),
        write: impl Fn(&mut [u8]),
    ) {
        let record = Record { group, key: number as u64, len: len as u32, pages: 1, codec: 0, mark: 0 };
        while committing.error.is_none() {
            if let Some(pack) = &mut committing.pack {
                if let Some(object) = pack.add(&[record]) {
                    write(pack.object_mut(object));
                    return;
                }
            }
            self.hand_over_own(committing, index, file);
            match committing.writer.pack(Age::New) {
                Ok(pack) => committing.pack = Some(pack),
                Err(error) => committing.error = Some(CommitError::from(&error)),
            }
        }
    }

    fn hand_over_own(&self, committing: &mut Committing<'_>, index: &mut Index, file: &SwapFile) {
        let Some(pack) = committing.pack.take() else { return };
        while let Some(finished) = committing.writer.poll(!committing.writer.is_ready()) {
            settle_own(committing, finished, index, file);
        }
        committing.writer.submit(Age::New, pack);
    }

    fn end_own(&self, committing: &mut Committing<'_>, index: &mut Index, file: &SwapFile) {
        self.hand_over_own(committing, index, file);
        while let Some(finished) = committing.writer.poll(true) {
            settle_own(committing, finished, index, file);
        }
    }

    /// Has a page of the index that cleaning found be written elsewhere by the next commit; whether
    /// the record is of one.
    pub(crate) fn leave_index(&self, record: &Record, place: Place) -> bool {
        let Some(kept) = self.kept.as_ref().filter(|_| record.group != GROUP.0) else { return false };
        if let Some(page) = lock(&kept.index).as_mut().and_then(|index| index.leave(record, place)) {
            kept.note(page);
        }
        true
    }

    /// Takes what an earlier run left in a swap file that is kept, before the store is used;
    /// returns the pages whose content was lost by a store that failed.
    ///
    /// # Errors
    /// [`FileError`], when what says where things are is not what was written. The store is not to
    /// be used then.
    pub fn restore(&self) -> Result<Vec<u64>, FileError> {
        let (Some(kept), Some(file)) = (&self.kept, &self.config.swap) else { return Ok(Vec::new()) };
        let index = file.read_index()?;
        file.read_index_pages(&index, |number, place, page| {
            self.restore_page(kept, file, number, place, page)
        })?;
        file.end_restore();
        *lock(&kept.index) = Some(index);
        let lost = lock(&kept.lost);
        kept.has_lost.store(!lost.is_empty(), Ordering::SeqCst);
        Ok(lost.iter().copied().collect())
    }

    fn restore_page(
        &self,
        kept: &Kept,
        file: &SwapFile,
        number: usize,
        place: Place,
        page: &IndexPage,
    ) -> Result<(), FileError> {
        let damaged = || file.damaged(place.offset());
        let pages = file.identity().map_or(0, |identity| identity.device_bytes / acomp::PAGE_SIZE as u64);
        let cell = self.make_group(GROUP).expect("there is one group");
        for leaf in 0..LEAVES {
            let key_high = number * LEAVES + leaf;
            let mut restored = Restored::default();
            for slot in 0..LEAF_PAGES {
                let within = leaf * LEAF_PAGES + slot;
                let key = ((key_high << LEAF_BITS) + slot) as u64;
                if page.is_lost(within) {
                    (key < pages).then_some(()).ok_or_else(damaged)?;
                    lock(&kept.lost).insert(key);
                }
                let Some((word, is_same)) = page.get(within) else { continue };
                (key < pages).then_some(()).ok_or_else(damaged)?;
                restored.present |= 1 << slot;
                restored.same |= u16::from(is_same) << slot;
                restored.words[slot] = word;
                if is_same {
                    continue;
                }
                let bits = word >> 11;
                let object = file.checked_place(bits).ok_or_else(damaged)?;
                let entry = DiskEntry(word);
                let (pages, position) = (entry.pages(), entry.position());
                let is_possible = entry.pool() == 0
                    && pages <= self.unit_pages
                    && position < pages
                    && (position..LEAF_PAGES - pages + position + 1).contains(&slot)
                    && object.len() <= pages * acomp::PAGE_SIZE;
                is_possible.then_some(()).ok_or_else(damaged)?;
                let is_first = !(0..slot).any(|other| restored.has_object(other, object));
                if is_first {
                    file.adopt(object)?;
                    self.pools.retain(0, 1);
                }
            }
            if restored.present != 0 {
                let mut state = cell.lock();
                let made = state.tree.make(&self.slabs, key_high as u32);
                let name = made.map_err(|error| FileError::Parts(swapfile::OpenError::Table(error)))?;
                restored.apply(state.tree.leaf(&self.slabs, name));
                let (present, same) = (restored.present.count_ones(), restored.same.count_ones());
                let numbers = cell.numbers();
                numbers.stored_pages.add(u64::from(same));
                numbers.same_filled.add(u64::from(same));
                numbers.on_disk_pages.add(u64::from(present - same));
            }
        }
        Ok(())
    }
}

/// What a leaf had.
#[derive(Default)]
struct Restored {
    present: u16,
    same: u16,
    words: [u64; LEAF_PAGES],
}

impl Restored {
    fn has_object(&self, slot: usize, object: Place) -> bool {
        let has_one = (self.present & !self.same) >> slot & 1 == 1;
        has_one && DiskEntry(self.words[slot]).place() == object
    }

    fn apply(&self, leaf: &mut Leaf) {
        for slot in slots(self.present) {
            match self.same >> slot & 1 == 1 {
                true => leaf.insert(slot, self.words[slot], true),
                false => leaf.insert_on_disk(slot, DiskEntry(self.words[slot])),
            }
        }
    }
}

/// The end of a write of the index's own pages.
fn settle_own(committing: &mut Committing<'_>, finished: Finished, index: &mut Index, file: &SwapFile) {
    match &finished.result {
        Err(error) => committing.error = Some(CommitError::from(error)),
        Ok(()) => {
            for (record, place) in finished.objects() {
                let number = record.key as usize;
                let before = match record.group {
                    INDEX_GROUP => index.set(number, Some(place)),
                    _ => index.set_top(number, Some(place)),
                };
                if let Some(before) = before {
                    file.free(before);
                }
            }
        }
    }
    committing.writer.recycle(finished);
}
