//! Mixed zspages: objects of any size back to back, with no slots, no rounding and no headers.
//!
//! They serve classes with too few objects to fill zspages of their own, and take the survivors of
//! compaction. A freed object leaves a hole, which is unusable until frees or compaction empty the
//! zspage.

use std::sync::atomic::Ordering;

use crate::entry::{FrameOffset, Object};
use crate::frame::{kind, Field, FRAME_BYTES};
use crate::live;
use crate::shard::Ledger;
use crate::supply::Taker;
use crate::uniform::Ground;

/// Zspages that a shard fills at the same time. An object goes to the one with the least sufficient
/// space, so that their tails fill up.
const OPEN_MAX: usize = 4;

/// The mixed zspages that one shard fills on one node.
#[derive(Default)]
pub(crate) struct OpenSet {
    /// Frame number + 1, 0 for none.
    frames: [u32; OPEN_MAX],
    /// Bytes left in each; 0 for none.
    left: [u32; OPEN_MAX],
}

impl OpenSet {
    #[inline]
    pub(crate) fn allocate(
        &mut self,
        size: u32,
        node: u8,
        taker: Taker,
        ledger: &mut Ledger,
        ground: Ground<'_>,
    ) -> Option<FrameOffset> {
        let fits = (0..OPEN_MAX).filter(|&index| self.left[index] >= size);
        let index = match fits.min_by_key(|&index| self.left[index]) {
            Some(index) => index,
            None => self.start(node, taker, ledger, ground)?,
        };
        // Does not touch the descriptor, which shares a cache line with another frame's.
        let number = self.frames[index] - 1;
        let offset = FRAME_BYTES as u32 - self.left[index];
        self.left[index] -= size;
        ground.reach(number, (offset + size) as usize);
        Some(FrameOffset { frame: number, offset: offset as u16 })
    }

    #[cold]
    fn start(&mut self, node: u8, taker: Taker, ledger: &mut Ledger, ground: Ground<'_>) -> Option<usize> {
        let number = ground.take_frame(node, taker)?;
        let index = (0..OPEN_MAX).min_by_key(|&index| self.left[index]).expect("some are open");
        self.close(index, ledger, ground);
        let frame = ground.frames.get(number);
        frame.node.set(node);
        live::open(&frame.live, FRAME_BYTES as u32);
        frame.kind.set(kind::MIXED);
        frame.group.set(0);
        ground.totals.mixed_zspages.fetch_add(1, Ordering::Relaxed);
        self.frames[index] = number + 1;
        self.left[index] = FRAME_BYTES as u32;
        Some(index)
    }

    fn close(&mut self, index: usize, ledger: &mut Ledger, ground: Ground<'_>) {
        let Some(number) = self.frames[index].checked_sub(1) else { return };
        let left = self.left[index];
        self.frames[index] = 0;
        self.left[index] = 0;
        let frame = ground.frames.get(number);
        let used = FRAME_BYTES as u32 - left;
        // A reused frame may have more pages than this zspage reached. Only the owner of the open
        // zspage may look at them.
        ground.trim_tail(number, used as usize);
        frame.used.set(used);
        if live::close(&frame.live, left) {
            release(number, ledger, ground);
        }
    }

    pub(crate) fn trim_tails(&mut self, ground: Ground<'_>) {
        for (&number, &left) in self.frames.iter().zip(&self.left).filter(|(&number, _)| number != 0) {
            ground.trim_tail(number - 1, FRAME_BYTES - left as usize);
        }
    }

    /// Closes all, so that compaction may empty them.
    pub(crate) fn close_all(&mut self, ledger: &mut Ledger, ground: Ground<'_>) {
        for index in 0..OPEN_MAX {
            self.close(index, ledger, ground);
        }
    }
}

/// Frees an object of a mixed zspage, and the zspage with its last object.
#[inline]
pub(crate) fn free(object: Object, ledger: &mut Ledger, ground: Ground<'_>) {
    ledger.count_dead(i64::from(object.len), ground.totals);
    let frame = ground.frames.get(object.place.frame);
    if live::free(&frame.live, object.len) {
        release(object.place.frame, ledger, ground);
    }
}

#[cold]
fn release(number: u32, ledger: &mut Ledger, ground: Ground<'_>) {
    ground.totals.mixed_zspages.fetch_sub(1, Ordering::Relaxed);
    ledger.count_dead(-i64::from(ground.frames.get(number).used.get()), ground.totals);
    ground.release_frame(number);
}
