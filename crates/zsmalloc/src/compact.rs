//! Compaction: empties the sparsest zspages into the others, while objects are read, written,
//! allocated and freed.
//!
//! Nothing in a zspage says which handle an object has: that would cost 4 bytes an object for good.
//! A pass marks the zspages to empty, then walks the handle table once and moves each object that
//! lies in a marked one. Walking costs about a nanosecond a handle; moving costs a copy. An object
//! that is pinned, or freed during the walk, is passed over.
//!
//! A class is left with full zspages only: the emptiest are emptied into the others, and what does
//! not fill a zspage goes to free slots of classes that are little larger, or to mixed ones. A
//! class whose slots fit its objects badly goes to mixed zspages as a whole.

use std::collections::TryReserveError;

use sys::PAGE_SIZE;

use crate::entry::{Entry, Object, Place};
use crate::frame::{kind, Field, FRAME_BYTES};
use crate::live;
use crate::pool::Pool;
use crate::shard::Shard;
use crate::supply::Taker;

/// Live bytes of the zspages that one pass empties: bounds the memory held twice, ...
const PASS_BYTES_MIN: u64 = 1 << 20;
/// ... as a fraction of the pool too.
const PASS_DIVISOR: u64 = 16;

/// Most bytes that the compaction of a pool of so many bytes holds twice.
pub fn compacting_bytes(pool_bytes: u64) -> u64 {
    (pool_bytes / PASS_DIVISOR).max(PASS_BYTES_MIN)
}

/// Passes of one compaction: beside threads that free all the time it would never end.
const PASSES_MAX: usize = 64;

/// A zspage, or a class, that wastes more than one byte in so many is worth moving.
const WASTE_DIVISOR: u64 = 128;

/// Marks of a pass: what to do with the objects of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Keep,
    ToClass,
    ToMixed,
}

/// A zspage in use, as one look at all of them found it.
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

    /// Whether both are of one class, or mixed, and of one node.
    pub(crate) fn is_alike(&self, other: &Seen) -> bool {
        (self.node, self.kind) == (other.node, other.kind)
    }
}

/// What compaction works with. Kept from one to the next, so that a pool whose room was made asks
/// for no memory; no list is longer than there are frames.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) zspages: Vec<Seen>,
    pub(crate) sources: Vec<Source>,
    /// By frame; of the pass that runs.
    marks: Vec<Mark>,
    /// Number, node and class.
    class_sources: Vec<(u32, u8, u16)>,
}

impl Scratch {
    /// Makes room for the zspages of `frames` frames.
    ///
    /// # Errors
    /// When there is no memory.
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

    /// Keeps the first sources whose live bytes fit into `budget`, and one at least.
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

/// A zspage to empty.
pub(crate) struct Source {
    pub(crate) number: u32,
    pub(crate) mark: Mark,
    pub(crate) live_bytes: u64,
    /// Bytes that come free when all its objects have gone elsewhere.
    pub(crate) gain: u64,
}

impl Pool {
    /// Packs the objects into as few pages as it can and gives the rest, and all cached pages, back
    /// to the system. Returns the pages that the pool holds less. Runs beside everything else; when
    /// another thread is compacting already, returns 0 at once. Holds at most a sixteenth of the
    /// pool, or 1 MiB, twice at a time.
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
            // Each node's objects may end in a page of their own that is partly filled.
            if gain < (PAGE_SIZE * self.supplies.len()) as u64 {
                break;
            }
            match self.pass(&mut scratch) {
                Passed::Moved => budget = (budget * 2).min(budget_max),
                // One zspage at a time goes into what is kept for this.
                Passed::NoMemory if count > 1 => budget /= 8,
                Passed::NoMemory | Passed::Stuck => break,
            }
            // What large objects leave free at a zspage's end looks like a gain, and is there again
            // wherever they go.
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

    /// Pages of zspages, without those kept for the next ones.
    pub(crate) fn held_pages(&self) -> usize {
        self.supplies.iter().map(|supply| supply.pages().saturating_sub(supply.cached_pages())).sum()
    }

    /// Looks at every zspage that takes part in compaction: classes' ones, and mixed ones that are
    /// not open.
    pub(crate) fn each_zspage(&self, mut look: impl FnMut(Seen)) {
        for number in 0..self.frames.count() {
            let frame = self.frames.get(number);
            let (kind, live) = (frame.kind.get(), frame.live.get());
            if kind != kind::FREE && live > 0 && !(kind == kind::MIXED && live::is_open(&frame.live)) {
                let (node, resident) = (frame.node.get(), frame.resident.get());
                // A frame that becomes another zspage just now could seem to hold anything.
                let live = live.min(match kind {
                    kind::MIXED => FRAME_BYTES as u32,
                    class => u32::from(self.table.geometry(class - kind::CLASS).slots),
                });
                look(Seen { node, kind, live, number, resident });
            }
        }
    }

    /// Chooses the zspages to empty in the next pass, those that give most for least copying first;
    /// `budget` bounds the bytes of their objects.
    fn choose_sources(&self, budget: u64, scratch: &mut Scratch) {
        let Scratch { zspages, sources, .. } = scratch;
        zspages.clear();
        sources.clear();
        self.each_zspage(|seen| zspages.push(seen));
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

    /// `count`: objects and payload bytes of the class's sizes; `group`: its zspages on one node,
    /// emptiest first.
    fn class_sources(&self, class: u16, count: (u64, u64), group: &[Seen], sources: &mut Vec<Source>) {
        let geometry = self.table.geometry(class);
        let (slot_bytes, slots) = (u64::from(geometry.slot_bytes), u64::from(geometry.slots));
        let objects: u64 = group.iter().map(|zspage| u64::from(zspage.live)).sum();
        // Objects of smaller classes, in slots that were free, are nearly as long as those.
        let payload = match objects.checked_sub(count.0) {
            Some(others) => count.1 + others * slot_bytes,
            None => count.1 * objects / count.0,
        };
        let full = objects / slots;
        let full_bytes = full * u64::from(geometry.pages) * PAGE_SIZE as u64;
        let full_payload = payload * (full * slots) / objects;
        let dissolve = full_bytes > full_payload + full_payload / WASTE_DIVISOR;
        // What does not fill a zspage finds no room in the others.
        let surplus = group.len() - full as usize;
        let (count, mark) = if dissolve { (group.len(), Mark::ToMixed) } else { (surplus, Mark::ToClass) };
        sources.extend(group[..count].iter().map(|zspage| {
            let live_bytes = u64::from(zspage.live) * slot_bytes;
            let gain = zspage.resident_bytes().saturating_sub(match mark {
                // Into slots that are there already.
                Mark::ToClass if full > 0 => 0,
                _ => payload * u64::from(zspage.live) / objects,
            });
            Source { number: zspage.number, mark, live_bytes, gain }
        }));
    }

    /// Empties the sources as far as possible.
    pub(crate) fn pass(&self, scratch: &mut Scratch) -> Passed {
        let Scratch { sources, marks, class_sources, .. } = scratch;
        marks.clear();
        class_sources.clear();
        marks.resize(self.frames.count() as usize, Mark::Keep);
        for source in sources.iter() {
            let frame = self.frames.get(source.number);
            let (kind, node) = (frame.kind.get(), frame.node.get());
            if kind >= kind::CLASS {
                let class = kind - kind::CLASS;
                let list = self.class_list(node, class);
                if !list.make_source(source.number, (node, class), self.table.geometry(class), &self.frames) {
                    continue;
                }
                class_sources.push((source.number, node, class));
            }
            // A mixed zspage that goes, and comes back as something else, before its mark is looked
            // at: its objects are moved for nothing, and nothing else happens.
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
            let list = self.class_list(node, class);
            list.end_source(number, (node, class), self.table.geometry(class), &self.frames);
        }
        match (memory, moved) {
            (false, _) => Passed::NoMemory,
            (true, 0) => Passed::Stuck,
            (true, _) => Passed::Moved,
        }
    }

    /// Moves a batch under one lock of a shard; threads that want that shard take another. Returns
    /// how many objects have moved, and whether there was memory.
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
            // Emptied, released, and taking new objects already.
            return Moved::InUse;
        }
        // Never waits: the shard is locked.
        if !entry.try_lock(object) {
            return Moved::InUse;
        }
        // From here on the object, and so its zspage, stays.
        let Some(place) = self.find_place(shard, object, mark, frame.node.get()) else {
            entry.unlock(object);
            return Moved::NoMemory;
        };
        let (from, to) = (self.frames.address(object.place), self.frames.address(place));
        // SAFETY: both are `len` bytes of frames of this pool. The object is this thread's alone
        // while its entry is locked, the new place is unused, and two places in use do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, object.len as usize) };
        entry.unlock(Object { place, len: object.len });
        self.free_places(shard, &[object]);
        Moved::Yes
    }

    fn find_place(&self, shard: &mut Shard, object: Object, mark: Mark, node: u8) -> Option<Place> {
        if mark == Mark::ToClass {
            let class = self.table.class_of(object.len);
            // Full, or other threads have taken the room.
            let place = self.free_slot(class, node);
            if let Some(place) = place.or_else(|| self.place_in_larger(object.len, class, node)) {
                return Some(place);
            }
        }
        self.place_mixed(shard, object.len, node, Taker::Compaction)
    }

    /// Closes the open mixed zspages of all shards.
    pub(crate) fn close_mixed(&self) {
        for shard in self.shards.iter() {
            let mut shard = shard.lock();
            let Shard { open, ledger, .. } = &mut *shard;
            for open in open {
                open.close_all(ledger, self.shards.totals(), self.ground());
            }
        }
    }

    /// Gives back pages of zspages in use that lie behind their last used byte: frames come with
    /// pages from the cache.
    fn trim_tails(&self) {
        for shard in self.shards.iter() {
            for open in &mut shard.lock().open {
                open.trim_tails(self.ground());
            }
        }
        for number in 0..self.frames.count() {
            let frame = self.frames.get(number);
            let (kind, node) = (frame.kind.get(), frame.node.get());
            if kind >= kind::CLASS {
                let class = kind - kind::CLASS;
                let list = self.class_list(node, class);
                list.trim_tail(number, (node, class), self.table.geometry(class), self.ground());
            }
        }
    }
}

/// Objects that are moved under one lock.
const MOVE_BATCH: usize = 32;

/// What to move next: index in the handle table, the object as it was seen, what to do with it.
struct Moves {
    batch: [(u32, Object, Mark); MOVE_BATCH],
    count: usize,
}

/// How a pass ended.
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

/// A mixed zspage as a source, when it is worth it.
fn mixed_source(zspage: &Seen) -> Option<Source> {
    let live = u64::from(zspage.live);
    debug_assert!(live <= FRAME_BYTES as u64);
    let gain = zspage.resident_bytes().saturating_sub(live);
    let worth = gain > live / WASTE_DIVISOR;
    worth.then_some(Source { number: zspage.number, mark: Mark::ToMixed, live_bytes: live, gain })
}
