//! Tidying: a thread that allocates packs some objects more densely when much of the pool is not
//! payload, so that a pool stays dense without anyone who compacts it.
//!
//! Mixed zspages lose what is freed in them until they are empty, and classes are left with slots
//! that nothing asks for when sizes change. In a pool of 6 MB that came to half as much again.

use std::sync::atomic::{AtomicUsize, Ordering};

use sys::PAGE_SIZE;

use crate::compact::{take_within, Mark, Seen, Source};
use crate::frame::{kind, FRAME_BYTES};
use crate::pool::Pool;

/// Live bytes of the zspages that one tidying empties: a millisecond's copying, and enough for the
/// walk over the handles to pay.
const TIDY_BYTES: u64 = 4 << 20;
/// Bytes that are never worth moving objects for.
const WASTE_BYTES_MIN: usize = 2 * FRAME_BYTES;
/// Mixed zspages are tidied when one part in so many of them is holes, and one in so many of the
/// pool.
const HOLES_DIVISOR: usize = 8;
const POOL_DIVISOR: usize = 32;
/// The zspages of classes are tidied when one part in so many of them is free.
const SLOTS_DIVISOR: usize = 12;

/// Bytes above which the next tidying is worth it: what the last one left, and some.
#[derive(Default)]
pub(crate) struct Tidied {
    holes: Above,
    slots: Above,
}

#[derive(Default)]
struct Above(AtomicUsize);

impl Above {
    #[inline]
    fn is_exceeded(&self, bytes: usize) -> bool {
        let above = self.0.load(Ordering::Relaxed);
        if bytes + WASTE_BYTES_MIN < above {
            // What could not be won back then is gone.
            self.left(bytes);
        }
        bytes > above
    }

    fn left(&self, bytes: usize) {
        self.0.store(bytes + WASTE_BYTES_MIN, Ordering::Relaxed);
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

    fn mixed_bytes(&self) -> usize {
        self.shards.totals().mixed_zspages.load(Ordering::Relaxed) * FRAME_BYTES
    }

    #[inline]
    fn has_many_holes(&self) -> bool {
        let dead = self.shards.totals().dead_bytes();
        dead > WASTE_BYTES_MIN
            && self.tidied.holes.is_exceeded(dead)
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
            && self.tidied.slots.is_exceeded(free)
            && free > (self.held_pages() * PAGE_SIZE).saturating_sub(self.mixed_bytes()) / SLOTS_DIVISOR
    }

    /// Empties the emptiest of the mixed zspages an eighth of which, or more, is holes.
    #[cold]
    fn tidy_mixed(&self) {
        let Some(_only) = self.compaction.try_lock() else { return };
        // Those that threads have open would keep their holes for as long as no one fills them.
        self.close_mixed();
        let mut sources = Vec::new();
        self.each_zspage(|seen| {
            let live_bytes = u64::from(seen.live);
            let resident = seen.resident_bytes();
            if seen.kind == kind::MIXED && live_bytes * 8 <= resident * 7 {
                let gain = resident - live_bytes;
                sources.push(Source { number: seen.number, mark: Mark::ToMixed, live_bytes, gain });
            }
        });
        self.tidy_sources(sources);
        self.tidied.holes.left(self.shards.totals().dead_bytes());
    }

    /// Empties the emptiest zspages of classes into the free slots of the others. What a class has
    /// in slots stays in slots: packing it into mixed zspages would leave holes there soon.
    #[cold]
    fn tidy_classes(&self) {
        let Some(_only) = self.compaction.try_lock() else { return };
        let mut zspages = Vec::new();
        self.each_zspage(|seen| {
            if seen.kind != kind::MIXED {
                zspages.push(seen);
            }
        });
        zspages.sort_unstable();
        let mut sources = Vec::new();
        for group in zspages.chunk_by(Seen::is_alike) {
            let geometry = self.table.geometry(group[0].kind - kind::CLASS);
            let slots = u32::from(geometry.slots);
            let objects: u32 = group.iter().map(|zspage| zspage.live).sum();
            let surplus = group.len() - objects.div_ceil(slots) as usize;
            sources.extend(group[..surplus].iter().map(|zspage| {
                let live_bytes = u64::from(zspage.live) * u64::from(geometry.slot_bytes);
                let gain = zspage.resident_bytes();
                Source { number: zspage.number, mark: Mark::ToClass, live_bytes, gain }
            }));
        }
        self.tidy_sources(sources);
        self.tidied.slots.left(self.free_slot_bytes());
    }

    fn tidy_sources(&self, mut sources: Vec<Source>) {
        if sources.is_empty() {
            return;
        }
        // The emptiest give most for least.
        sources.sort_by_key(|source| source.live_bytes);
        take_within(&mut sources, TIDY_BYTES);
        self.pass(sources, &mut Vec::new());
    }
}
