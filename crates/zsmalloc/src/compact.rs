//! Compaction: empties the sparsest zspages into the others, beside reads, writes, allocations and
//! frees.
//!
//! A zspage does not record the handles of its objects, which would cost 4 bytes an object for
//! good. A pass marks the zspages to empty, then walks the handle table once and moves each object
//! that lies in a marked one. Walking costs about a nanosecond a handle; moving costs a copy. The
//! pass skips objects that are pinned, or freed during the walk.
//!
//! Compaction leaves a class with full zspages only: the emptiest are emptied into the others, and
//! objects that do not fill a zspage move to free slots of slightly larger classes, or to mixed
//! zspages. A class whose slots fit its objects badly moves to mixed zspages as a whole.

use std::collections::TryReserveError;

use sys::PAGE_SIZE;

use crate::entry::{Entry, FrameOffset, Object};
use crate::frame::{kind, Field, FRAME_BYTES};
use crate::live;
use crate::pool::Pool;
use crate::shard::Shard;
use crate::supply::Taker;
use crate::uniform::INHERITED;

/// Live bytes of the zspages that one pass empties. They bound the memory held twice: 1 MiB ...
const PASS_BYTES_MIN: u64 = 1 << 20;
/// ... or 1/16 of the pool, the larger.
const PASS_DIVISOR: u64 = 16;

/// Most bytes that compaction of a pool of `pool_bytes` holds twice.
pub fn compacting_bytes(pool_bytes: u64) -> u64 {
    (pool_bytes / PASS_DIVISOR).max(PASS_BYTES_MIN)
}

/// Passes of one compaction: beside threads that keep freeing it would never end.
const PASSES_MAX: usize = 64;

/// A zspage, or a class, is worth moving if it wastes more than 1/128.
const WASTE_DIVISOR: u64 = 128;

/// How a pass treats the objects of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Keep,
    ToClass,
    ToMixed,
}

/// A zspage in use, as seen by one scan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    pub(crate) node: u8,
    pub(crate) kind: u16,
    pub(crate) live: u32,
    pub(crate) number: u32,
    resident: u8,
}

impl Seen {
    pub(crate) fn resident_bytes(&self) -> u64 {
        u64::from(self.resident) * PAGE_SIZE as u64
    }

    pub(crate) fn is_alike(&self, other: &Seen) -> bool {
        (self.node, self.kind) == (other.node, other.kind)
    }
}

/// Buffers of compaction. They are kept, so that a pool with reserved room allocates no memory. No
/// list is longer than the number of frames.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) zspages: Vec<Seen>,
    pub(crate) sources: Vec<Source>,
    /// By frame, of the current pass.
    marks: Vec<Mark>,
    /// Number, node and class.
    class_sources: Vec<(u32, u8, u16)>,
}

impl Scratch {
    pub(crate) fn reserve(&mut self, frames: usize) -> Result<(), TryReserveError> {
        fn grow<T>(list: &mut Vec<T>, len: usize) -> Result<(), TryReserveError> {
            list.clear();
            list.try_reserve_exact(len)
        }
        grow(&mut self.zspages, frames)?;
        grow(&mut self.sources, frames)?;
        grow(&mut self.marks, frames)?;
        grow(&mut self.class_sources, frames)
    }

    /// Keeps the first sources whose live bytes fit into `budget`, and at least one.
    pub(crate) fn take_within(&mut self, budget: u64) {
        let mut live_bytes = 0;
        let fits = self.sources.iter().take_while(|source| {
            live_bytes += source.live_bytes;
            live_bytes <= budget
        });
        let count = fits.count().max(1);
        self.sources.truncate(count);
    }
}

pub(crate) struct Source {
    pub(crate) number: u32,
    pub(crate) mark: Mark,
    pub(crate) live_bytes: u64,
    /// Bytes that come free when the zspage is empty.
    pub(crate) gain: u64,
}

impl Pool {
    /// Packs the objects into as few pages as possible and gives the rest, and all cached pages,
    /// back to the system. Returns by how many pages the pool shrank. Runs beside everything else;
    /// if another thread is compacting, returns 0 at once. Holds at most a sixteenth of the pool,
    /// or 1 MiB, twice at a time.
    pub fn compact(&self) -> usize {
        let Some(mut scratch) = self.compaction.try_lock() else { return 0 };
        let before = self.bytes();
        self.close_mixed();
        let budget_max = compacting_bytes(before as u64);
        let mut budget = budget_max;
        let mut held = self.held_pages();
        for _ in 0..PASSES_MAX {
            self.choose_sources(budget, &mut scratch);
            let count = scratch.sources.len();
            let gain = scratch.sources.iter().map(|source| source.gain).sum::<u64>();
            // Each node's objects may end in a partly filled page of their own.
            if gain < (PAGE_SIZE * self.supplies.len()) as u64 {
                break;
            }
            match self.pass(&mut scratch) {
                Passed::Moved => budget = (budget * 2).min(budget_max),
                // The reserve for compaction holds one zspage at a time.
                Passed::NoMemory if count > 1 => budget /= 8,
                Passed::NoMemory | Passed::Stuck => break,
            }
            // Space that large objects leave at a zspage's end looks like a gain, but follows them.
            let now = self.held_pages();
            if now >= held && budget == budget_max {
                break;
            }
            held = now;
        }
        self.trim_tails();
        self.trim();
        before.saturating_sub(self.bytes()) / PAGE_SIZE
    }

    /// In a forked process: from here on writes as little as possible to the pages that hold
    /// objects, because relatives share them. Their zspages get no new objects, and only
    /// [`compact`](Self::compact) moves objects out of them, until
    /// [`note_relatives`](Self::note_relatives) has been told eight times that there are none.
    pub fn inherit(&self) {
        self.tidied.sharing.begin();
        self.close_mixed();
        self.trim();
        for number in 0..self.frames.count() {
            let frame = self.frames.get(number);
            match self.list_of(number) {
                Some((list, at)) => list.inherit(number, at, &self.frames),
                None if frame.kind.get() == kind::MIXED => frame.group.set(INHERITED),
                None => {}
            }
        }
    }

    /// Whether relatives are there that may share the pool's pages. Call it now and then.
    pub fn note_relatives(&self, are_there: bool) {
        self.tidied.sharing.note(are_there);
    }

    /// Pages of zspages, without cached ones.
    pub(crate) fn held_pages(&self) -> usize {
        self.supplies.iter().map(|supply| supply.pages().saturating_sub(supply.cached_pages())).sum()
    }

    /// Visits every zspage that compaction handles: those of classes, and closed mixed ones; those
    /// that were inherited only on demand.
    pub(crate) fn each_zspage(&self, inherited: bool, mut look: impl FnMut(Seen)) {
        for number in 0..self.frames.count() {
            let frame = self.frames.get(number);
            let (kind, live) = (frame.kind.get(), frame.live.get());
            if kind == kind::SEGMENT || frame.group.get() == INHERITED && !inherited {
                continue;
            }
            if kind != kind::FREE && live > 0 && !(kind == kind::MIXED && live::is_open(&frame.live)) {
                let (node, resident) = (frame.node.get(), frame.resident.get());
                // A frame that is becoming another zspage could show any count.
                let live = live.min(match kind {
                    kind::MIXED => FRAME_BYTES as u32,
                    class => u32::from(self.table.geometry(class - kind::CLASS).slots),
                });
                look(Seen { node, kind, live, number, resident });
            }
        }
    }

    /// Chooses the next zspages to empty, best gain per copied byte first, within `budget` bytes.
    fn choose_sources(&self, budget: u64, scratch: &mut Scratch) {
        let Scratch { zspages, sources, .. } = scratch;
        zspages.clear();
        sources.clear();
        self.each_zspage(true, |seen| zspages.push(seen));
        zspages.sort_unstable();
        let (counts, _) = self.shards.count(0..self.table.len() as u16);
        for group in zspages.chunk_by(Seen::is_alike) {
            match group[0].kind {
                kind::MIXED => sources.extend(group.iter().filter_map(mixed_source)),
                class => {
                    let class = class - kind::CLASS;
                    self.class_sources(class, counts[usize::from(class)], group, sources);
                }
            }
        }
        sources.sort_unstable_by_key(|source| (source.live_bytes * 1024 / (source.gain + 1), source.number));
        scratch.take_within(budget);
    }

    /// `count`: objects and payload bytes of the class's sizes. `group`: its zspages on one node,
    /// emptiest first.
    fn class_sources(&self, class: u16, count: (u64, u64), group: &[Seen], sources: &mut Vec<Source>) {
        let geometry = self.table.geometry(class);
        let (slot_bytes, slots) = (u64::from(geometry.slot_bytes), u64::from(geometry.slots));
        let objects: u64 = group.iter().map(|zspage| u64::from(zspage.live)).sum();
        // Objects of smaller classes in these slots are nearly as long as the slots.
        let payload = match objects.checked_sub(count.0) {
            Some(others) => count.1 + others * slot_bytes,
            None => count.1 * objects / count.0,
        };
        let full = objects / slots;
        let full_bytes = full * u64::from(geometry.pages) * PAGE_SIZE as u64;
        let full_payload = payload * (full * slots) / objects;
        let dissolve = full_bytes > full_payload + full_payload / WASTE_DIVISOR;
        // Objects that do not fill a whole zspage find no room in the full ones.
        let surplus = group.len() - full as usize;
        let (count, mark) = if dissolve { (group.len(), Mark::ToMixed) } else { (surplus, Mark::ToClass) };
        sources.extend(group[..count].iter().map(|zspage| {
            let live_bytes = u64::from(zspage.live) * slot_bytes;
            let gain = zspage.resident_bytes().saturating_sub(match mark {
                // The slots exist already.
                Mark::ToClass if full > 0 => 0,
                _ => payload * u64::from(zspage.live) / objects,
            });
            Source { number: zspage.number, mark, live_bytes, gain }
        }));
    }

    pub(crate) fn pass(&self, scratch: &mut Scratch) -> Passed {
        let Scratch { sources, marks, class_sources, .. } = scratch;
        marks.clear();
        class_sources.clear();
        marks.resize(self.frames.count() as usize, Mark::Keep);
        for source in sources.iter() {
            if let Some((list, at)) = self.list_of(source.number) {
                if !list.make_source(source.number, at, &self.frames) {
                    continue;
                }
                class_sources.push((source.number, at.node, at.class));
            }
            // If a marked mixed zspage is released and reused before its mark is read, its new
            // objects are moved needlessly, which is harmless.
            marks[source.number as usize] = source.mark;
        }
        let mut moves = Moves { batch: [(0, Object::NOWHERE, Mark::Keep); MOVE_BATCH], count: 0 };
        let (mut moved, mut memory) = (0, true);
        let end = self.handles.end();
        for index in 1..end {
            if let Some(object) = self.handles.at(index).and_then(Entry::peek) {
                let mark = marks.get(object.place.frame as usize).copied().unwrap_or(Mark::Keep);
                if mark != Mark::Keep {
                    moves.batch[moves.count] = (index, object, mark);
                    moves.count += 1;
                }
            }
            if moves.count == MOVE_BATCH || index + 1 == end {
                let done = self.move_objects(&mut moves);
                moved += done.0;
                memory = done.1;
                if !memory {
                    break;
                }
            }
        }
        for &(number, node, class) in class_sources.iter() {
            let (list, at) = self.class_list(node, class);
            list.end_source(number, at, &self.frames);
        }
        match (memory, moved) {
            (false, _) => Passed::NoMemory,
            (true, 0) => Passed::Stuck,
            (true, _) => Passed::Moved,
        }
    }

    /// Moves a batch under one lock of a shard; other threads use other shards. Returns how many
    /// objects it moved, and whether there was memory.
    fn move_objects(&self, moves: &mut Moves) -> (usize, bool) {
        let mut shard = self.shards.lock();
        let mut moved = 0;
        for (index, object, mark) in moves.batch[..std::mem::take(&mut moves.count)].iter().copied() {
            let Some(entry) = self.handles.at(index) else { continue };
            match self.move_object(&mut shard, entry, object, mark) {
                Moved::Yes => moved += 1,
                Moved::InUse => {}
                Moved::NoMemory => return (moved, false),
            }
        }
        (moved, true)
    }

    fn move_object(&self, shard: &mut Shard, entry: &Entry, object: Object, mark: Mark) -> Moved {
        let frame = self.frames.get(object.place.frame);
        if frame.kind.get() == kind::MIXED && live::is_open(&frame.live) {
            // The zspage was emptied, released, and already takes new objects.
            return Moved::InUse;
        }
        // Never waits, because the shard is locked.
        if !entry.try_lock(object) {
            return Moved::InUse;
        }
        // From here on the object, and therefore its zspage, stays.
        let Some(place) = self.find_place(shard, object, mark, frame.node.get()) else {
            entry.unlock(object);
            return Moved::NoMemory;
        };
        let (from, to) = (self.frames.address(object.place), self.frames.address(place));
        // SAFETY: both are `len` bytes of frames of this pool. The locked entry keeps other threads
        // off the object, the new place is unused, and places in use do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, object.len as usize) };
        entry.unlock(Object { place, len: object.len });
        if frame.kind.get() == kind::SEGMENT {
            let class = self.table.class_of(object.len);
            shard.ledger.count(class, 1, object.len as i32, self.shards.totals());
        }
        self.free_places(shard, &[object]);
        Moved::Yes
    }

    fn find_place(&self, shard: &mut Shard, object: Object, mark: Mark, node: u8) -> Option<FrameOffset> {
        if mark == Mark::ToClass {
            let class = self.table.class_of(object.len);
            // The class may be full, or other threads have taken the room.
            let place = self.free_slot(class, node);
            if let Some(place) = place.or_else(|| self.place_in_larger(object.len, class, node)) {
                return Some(place);
            }
        }
        self.place_mixed(shard, object.len, node, Taker::Compaction)
    }

    pub(crate) fn close_mixed(&self) {
        for shard in self.shards.iter() {
            let mut shard = shard.lock();
            let Shard { open, ledger, .. } = &mut *shard;
            open.iter_mut().for_each(|open| open.close_all(ledger, self.ground()));
        }
    }

    /// Gives back pages behind the last used byte of zspages in use: frames come with cached pages.
    fn trim_tails(&self) {
        for shard in self.shards.iter() {
            for open in &mut shard.lock().open {
                open.trim_tails(self.ground());
            }
        }
        for number in 0..self.frames.count() {
            if let Some((list, at)) = self.list_of(number) {
                list.trim_tail(number, at, self.ground());
            }
        }
    }
}

const MOVE_BATCH: usize = 32;

/// The next objects to move: index in the handle table, the object as it was seen, and its mark.
struct Moves {
    batch: [(u32, Object, Mark); MOVE_BATCH],
    count: usize,
}

pub(crate) enum Passed {
    Moved,
    /// Everything to move was in use.
    Stuck,
    NoMemory,
}

enum Moved {
    Yes,
    InUse,
    NoMemory,
}

fn mixed_source(zspage: &Seen) -> Option<Source> {
    let live = u64::from(zspage.live);
    debug_assert!(live <= FRAME_BYTES as u64);
    let gain = zspage.resident_bytes().saturating_sub(live);
    let worth = gain > live / WASTE_DIVISOR;
    worth.then_some(Source { number: zspage.number, mark: Mark::ToMixed, live_bytes: live, gain })
}
