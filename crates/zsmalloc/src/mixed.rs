//! Mixed zspages: objects of any size back to back, with no slots, no rounding and no headers.
//!
//! They serve classes that have too few objects to fill a zspage of their own, and take the survivors of compaction.
//! A freed object leaves a hole that is not used again before the zspage is empty, by itself or by compaction.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::entry::{Object, Place};
use crate::frame::{kind, Field, FRAME_BYTES, OPEN};
use crate::uniform::Ground;

/// Zspages that a shard fills at the same time: an object goes to the one with the least space that still holds it,
/// so their tails fill up.
const OPEN_MAX: usize = 4;

/// Figures over all mixed zspages of a pool.
#[derive(Default)]
pub(crate) struct MixedTotals {
    /// Mixed zspages.
    pub(crate) zspages: AtomicUsize,
    /// Bytes of freed objects in mixed zspages.
    pub(crate) dead_bytes: AtomicUsize,
}

/// The mixed zspages that one shard fills, of one node.
#[derive(Default)]
pub(crate) struct OpenSet {
    /// Frame number + 1, 0 for none.
    frames: [u32; OPEN_MAX],
    /// Bytes left in each; 0 for none.
    left: [u32; OPEN_MAX],
}

impl OpenSet {
    /// Takes `size` bytes.
    pub(crate) fn allocate(
        &mut self,
        size: u32,
        node: u8,
        totals: &MixedTotals,
        ground: Ground<'_>,
    ) -> Option<Place> {
        let fits = (0..OPEN_MAX).filter(|&index| self.left[index] >= size);
        let index = match fits.min_by_key(|&index| self.left[index]) {
            Some(index) => index,
            None => self.start(node, totals, ground)?,
        };
        let number = self.frames[index] - 1;
        let frame = ground.frames.get(number);
        let offset = FRAME_BYTES as u32 - self.left[index];
        self.left[index] -= size;
        frame.used.set(offset + size);
        frame.live.fetch_add(size, Ordering::Relaxed);
        ground.reach(number, (offset + size) as usize);
        Some(Place { frame: number, offset: offset as u16 })
    }

    fn start(&mut self, node: u8, totals: &MixedTotals, ground: Ground<'_>) -> Option<usize> {
        let number = ground.take_frame(node)?;
        let index = (0..OPEN_MAX).min_by_key(|&index| self.left[index]).expect("some are open");
        self.close(index, totals, ground);
        let frame = ground.frames.get(number);
        frame.node.set(node);
        frame.live.set(OPEN);
        frame.kind.set(kind::MIXED);
        totals.zspages.fetch_add(1, Ordering::Relaxed);
        self.frames[index] = number + 1;
        self.left[index] = FRAME_BYTES as u32;
        Some(index)
    }

    fn close(&mut self, index: usize, totals: &MixedTotals, ground: Ground<'_>) {
        let Some(number) = self.frames[index].checked_sub(1) else { return };
        self.frames[index] = 0;
        self.left[index] = 0;
        let frame = ground.frames.get(number);
        // A frame that was used before may have more pages than this zspage reached. Nobody but the owner of the open
        // zspage looks at them.
        ground.trim_tail(number, frame.used.get() as usize);
        if frame.live.fetch_sub(OPEN, Ordering::AcqRel) == OPEN {
            release(number, totals, ground);
        }
    }

    /// Gives back pages behind the last used bytes.
    pub(crate) fn trim_tails(&mut self, ground: Ground<'_>) {
        for &number in self.frames.iter().filter(|&&number| number != 0) {
            ground.trim_tail(number - 1, ground.frames.get(number - 1).used.get() as usize);
        }
    }

    /// Closes all: compaction may then empty them.
    pub(crate) fn close_all(&mut self, totals: &MixedTotals, ground: Ground<'_>) {
        for index in 0..OPEN_MAX {
            self.close(index, totals, ground);
        }
    }
}

/// Frees an object of a mixed zspage; the zspage goes when it was the last.
pub(crate) fn free(object: Object, totals: &MixedTotals, ground: Ground<'_>) {
    totals.dead_bytes.fetch_add(object.len as usize, Ordering::Relaxed);
    let frame = ground.frames.get(object.place.frame);
    if frame.live.fetch_sub(object.len, Ordering::AcqRel) == object.len {
        release(object.place.frame, totals, ground);
    }
}

fn release(number: u32, totals: &MixedTotals, ground: Ground<'_>) {
    totals.zspages.fetch_sub(1, Ordering::Relaxed);
    totals.dead_bytes.fetch_sub(ground.frames.get(number).used.get() as usize, Ordering::Relaxed);
    ground.release_frame(number);
}
