//! Tidying: a thread that allocates packs some objects more densely when much of the pool is not
//! payload, so that a pool stays dense without anyone who compacts it.
//!
//! Mixed zspages lose what is freed in them until they are empty, and classes are left with slots
//! that nothing asks for when sizes change. In a pool of 6 MB that came to half as much again.

use std::sync::atomic::{AtomicUsize, Ordering};

use sys::PAGE_SIZE;

use crate::compact::{Mark, Scratch, Seen, Source};
use crate::frame::{kind, FRAME_BYTES};
use crate::pool::Pool;

/// Live bytes of the zspages that one tidying empties: half a millisecond's copying, and enough for
/// the walk over the handles to pay.
const TIDY_BYTES: u64 = 2 << 20;
/// Most bytes that a thread which allocates moves by itself, at any time: those, and a frame that
/// is not full.
pub const TIDYING_BYTES: u64 = TIDY_BYTES + FRAME_BYTES as u64;
/// Bytes that are never worth moving objects for, ...
const WASTE_BYTES_MIN: usize = 2 * FRAME_BYTES;
/// ... and one part in so many of the pool: to find them takes a look at each object.
const MORE_DIVISOR: usize = 64;
/// Mixed zspages are tidied when one part in so many of them is holes, and one in so many of the
/// pool; those that have as many holes are.
const HOLES_DIVISOR: usize = 16;
const POOL_DIVISOR: usize = 32;
/// The zspages of classes are tidied when one part in so many of them is free.
const SLOTS_DIVISOR: usize = 12;
/// Of a class's last zspage one part in so many may be empty, or its objects go elsewhere.
const EMPTY_DIVISOR: u32 = 4;

/// Bytes that the last tidying left, or as few as there were since.
#[derive(Default)]
pub(crate) struct Tidied {
    holes: Left,
    slots: Left,
}

#[derive(Default)]
struct Left(AtomicUsize);

impl Left {
    /// Whether there are so many bytes more by now that another tidying is worth it.
    #[inline]
    fn is_exceeded(&self, bytes: usize, more: usize) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if bytes < left {
            // What could not be won back then is gone.
            self.set(bytes);
        }
        bytes > left + more
    }

    fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

impl Pool {
    /// Tidies what is worth it, if anything.
    #[inline]
    pub(crate) fn tidy(&self) {
        if self.has_many_holes() {
            self.tidy_mixed();
        }
        if self.has_many_free_slots() {
            self.tidy_classes();
        }
    }

    /// Bytes that are worth a tidying.
    #[inline]
    fn worth_bytes(&self) -> usize {
        (self.bytes() / MORE_DIVISOR).max(WASTE_BYTES_MIN)
    }

    fn mixed_bytes(&self) -> usize {
        self.shards.totals().mixed_zspages.load(Ordering::Relaxed) * FRAME_BYTES
    }

    #[inline]
    fn has_many_holes(&self) -> bool {
        let dead = self.shards.totals().dead_bytes();
        dead > WASTE_BYTES_MIN
            && self.tidied.holes.is_exceeded(dead, self.worth_bytes())
            && dead > self.mixed_bytes() / HOLES_DIVISOR
            && dead > self.bytes() / POOL_DIVISOR
    }

    /// Bytes of classes' zspages that are no payload, but for what shards have not reported.
    #[inline]
    fn free_slot_bytes(&self) -> usize {
        let totals = self.shards.totals();
        (self.held_pages() * PAGE_SIZE).saturating_sub(totals.all_payload_bytes() + totals.dead_bytes())
    }

    #[inline]
    fn has_many_free_slots(&self) -> bool {
        let free = self.free_slot_bytes();
        free > WASTE_BYTES_MIN
            && self.tidied.slots.is_exceeded(free, self.worth_bytes())
            && free > (self.held_pages() * PAGE_SIZE).saturating_sub(self.mixed_bytes()) / SLOTS_DIVISOR
    }

    /// Empties the emptiest of the mixed zspages that have many holes.
    #[cold]
    fn tidy_mixed(&self) {
        let Some(mut scratch) = self.compaction.try_lock() else { return };
        // Those that threads have open would keep their holes for as long as no one fills them.
        self.close_mixed();
        let Scratch { sources, .. } = &mut *scratch;
        sources.clear();
        self.each_zspage(|seen| {
            let live_bytes = u64::from(seen.live);
            let resident = seen.resident_bytes();
            let gain = resident.saturating_sub(live_bytes);
            if seen.kind == kind::MIXED && gain >= resident / HOLES_DIVISOR as u64 {
                sources.push(Source { number: seen.number, mark: Mark::ToMixed, live_bytes, gain });
            }
        });
        self.tidy_sources(&mut scratch);
        self.tidied.holes.set(self.shards.totals().dead_bytes());
    }

    /// Empties the emptiest zspages of classes: into the free slots of the others, of classes that
    /// are little larger, or into mixed zspages. A class keeps as many as its objects fill, nearly:
    /// packing those into mixed ones would leave holes there soon.
    #[cold]
    fn tidy_classes(&self) {
        let Some(mut scratch) = self.compaction.try_lock() else { return };
        let Scratch { zspages, sources, .. } = &mut *scratch;
        zspages.clear();
        sources.clear();
        self.each_zspage(|seen| {
            if seen.kind != kind::MIXED {
                zspages.push(seen);
            }
        });
        zspages.sort_unstable();
        for group in zspages.chunk_by(Seen::is_alike) {
            let geometry = self.table.geometry(group[0].kind - kind::CLASS);
            let slots = u32::from(geometry.slots);
            let objects: u32 = group.iter().map(|zspage| zspage.live).sum();
            let filled = (objects + slots / EMPTY_DIVISOR) / slots;
            let surplus = group.len() - filled as usize;
            sources.extend(group[..surplus].iter().map(|zspage| {
                let live_bytes = u64::from(zspage.live) * u64::from(geometry.slot_bytes);
                let gain = zspage.resident_bytes().saturating_sub(live_bytes);
                Source { number: zspage.number, mark: Mark::ToClass, live_bytes, gain }
            }));
        }
        self.tidy_sources(&mut scratch);
        self.tidied.slots.set(self.free_slot_bytes());
    }

    /// Empties the emptiest of the sources, which give most for least, until three quarters of what
    /// there is to gain are won.
    fn tidy_sources(&self, scratch: &mut Scratch) {
        let sources = &mut scratch.sources;
        sources.sort_unstable_by_key(|source| (source.live_bytes, source.number));
        let mut left = sources.iter().map(|source| source.gain).sum::<u64>() * 3 / 4;
        let needed = sources.iter().take_while(|source| {
            let is_needed = left > 0;
            left = left.saturating_sub(source.gain);
            is_needed
        });
        let needed = needed.count();
        sources.truncate(needed);
        if needed > 0 {
            scratch.take_within(TIDY_BYTES);
            self.pass(scratch);
        }
    }
}
