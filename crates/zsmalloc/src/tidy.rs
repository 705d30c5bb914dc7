//! Tidying: an allocating thread packs some objects more densely if much of the pool is not
//! payload, so that a pool stays dense without explicit compaction.
//!
//! Mixed zspages lose freed space until they are empty, and a change of sizes leaves classes with
//! unused slots. In a pool of 6 MB that added up to half as much again.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use sys::PAGE_SIZE;

use crate::compact::{Mark, Scratch, Seen, Source};
use crate::frame::{kind, FRAME_BYTES};
use crate::pool::Pool;

/// Live bytes of the zspages that one tidying empties: half a millisecond of copying, which pays
/// for the walk over the handles.
pub(crate) const TIDY_BYTES: u64 = 2 << 20;
/// Most bytes that an allocating thread moves at any time: those, and a partly filled frame.
pub const TIDYING_BYTES: u64 = TIDY_BYTES + FRAME_BYTES as u64;
/// Waste below this is never worth moving objects ...
const WASTE_BYTES_MIN: usize = 2 * FRAME_BYTES;
/// ... nor below 1/64 of the pool: finding them takes a look at each object.
const MORE_DIVISOR: usize = 64;
/// Mixed zspages are tidied when holes are 1/16 of them and 1/32 of the pool; those with 1/16 holes
/// are emptied.
const HOLES_DIVISOR: usize = 16;
const POOL_DIVISOR: usize = 32;
/// The zspages of classes are tidied when 1/12 of them is free.
const SLOTS_DIVISOR: usize = 12;
/// A class's last zspage may be 1/4 empty; otherwise its objects move elsewhere.
const EMPTY_DIVISOR: u32 = 4;

/// Bytes that the last tidying left, or the minimum since.
#[derive(Default)]
pub(crate) struct Tidied {
    holes: Left,
    slots: Left,
    pub(crate) sharing: Sharing,
}

/// Whether inherited zspages stay as they are: how many more times no relative must be seen.
#[derive(Default)]
pub(crate) struct Sharing(AtomicU8);

/// A look may come before relatives are known.
const LOOKS: u8 = 8;

impl Sharing {
    pub(crate) fn begin(&self) {
        self.0.store(LOOKS, Ordering::Relaxed);
    }

    pub(crate) fn note(&self, has_relatives: bool) {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            self.0.store(if has_relatives { LOOKS } else { left - 1 }, Ordering::Relaxed);
        }
    }

    pub(crate) fn lasts(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

#[derive(Default)]
struct Left(AtomicUsize);

impl Left {
    /// Whether `more` bytes have come since, so that another tidying is worth it.
    #[inline]
    fn is_exceeded(&self, bytes: usize, more: usize) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if bytes < left {
            // The excess of the last tidying is gone.
            self.set(bytes);
        }
        bytes > left + more
    }

    fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

impl Pool {
    #[inline]
    pub(crate) fn tidy(&self) {
        if self.has_many_holes() {
            self.tidy_mixed();
        }
        if self.has_many_free_slots() {
            self.tidy_classes();
        }
    }

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

    /// Bytes of classes' zspages that are not payload, without unreported counts.
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

    #[cold]
    fn tidy_mixed(&self) {
        let Some(mut scratch) = self.compaction.try_lock() else { return };
        // Open zspages would keep their holes until they are full.
        self.close_mixed();
        let Scratch { sources, .. } = &mut *scratch;
        sources.clear();
        self.each_zspage(!self.tidied.sharing.lasts(), |seen| {
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

    /// Empties the emptiest zspages of classes: into free slots of the others, of slightly larger
    /// classes, or into mixed zspages. A class keeps nearly as many as its objects fill: packing
    /// those into mixed ones would soon leave holes there.
    #[cold]
    fn tidy_classes(&self) {
        let Some(mut scratch) = self.compaction.try_lock() else { return };
        let Scratch { zspages, sources, .. } = &mut *scratch;
        zspages.clear();
        sources.clear();
        self.each_zspage(!self.tidied.sharing.lasts(), |seen| {
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

    /// Empties the emptiest sources, which gain most per copy, until 3/4 of the gain are won.
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
