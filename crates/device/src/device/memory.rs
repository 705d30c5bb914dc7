//! Memory: who may write, and how room is made.

use std::sync::atomic::Ordering;

use super::Device;
use crate::error::IoError;
use crate::pieces::{Piece, LEAF_BYTES};
use crate::room::Admission;

/// Least memory that is locked.
const LOCKED_BYTES_MIN: u64 = 16 << 20;
/// What is stored is packed anew when this share of it is holes, and this share of its pages has gone since it was last:
/// packing looks at every object.
const PACK_SHARE: u64 = 32;
/// Least memory that goes to the backing at once.
const MOVED_BYTES_MIN: u64 = 256 << 10;

impl Device {
    pub(super) fn admit(&self, piece: Piece) -> Result<Option<Admission<'_>>, IoError> {
        let Some(limit) = self.config.ram_bytes else { return Ok(None) };
        let free = || self.free_bytes(limit);
        match self.room.admit(piece.blocks(), free, |missing| self.make_room(missing)) {
            Some(admission) => Ok(Some(admission)),
            None => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(IoError::NoSpace { at: (piece.leaf * LEAF_BYTES + piece.start) as u64 })
            }
        }
    }

    fn free_bytes(&self, limit: u64) -> u64 {
        let used = self.used_bytes();
        if self.config.is_locked {
            let left = sys::arena::left_bytes().unwrap_or(0) as u64;
            // Frames come sixteen at a time.
            return self.pool.free_frame_bytes() + (left & !((1 << 20) - 1));
        }
        limit.saturating_sub(used)
    }

    /// Frees memory, `missing` bytes or more if that is possible; whether it freed any. Called by one thread at a time.
    fn make_room(&self, missing: u64) -> bool {
        // A stocked arena has nothing to give back.
        if !self.config.is_locked && self.pool.trim() > 0 {
            return true;
        }
        let (bytes, live) = (self.pool.pool_bytes(), self.pool.compressed_bytes());
        let gone = self.gone.load(Ordering::Relaxed);
        let gone_since = gone - self.gone_at_packing.load(Ordering::Relaxed);
        let is_sparse = bytes.saturating_sub(live) > bytes / PACK_SHARE;
        if is_sparse && gone_since > self.pool.stored_pages() / PACK_SHARE {
            self.gone_at_packing.store(gone, Ordering::Relaxed);
            if self.compact() > 0 {
                return true;
            }
        }
        if self.config.backing.is_none() {
            return false;
        }
        // Somewhat more than is missing, so that not every write has to wait for the backing.
        let step = missing.max(bytes / 32).max(MOVED_BYTES_MIN);
        self.pool.shrink(bytes.saturating_sub(step)).pages_written > 0
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let used = self.pool.pool_bytes() + self.pool.metadata_bytes();
        self.used_max.fetch_max(used, Ordering::Relaxed);
        used
    }
}

/// Least memory for a locked device of so many blocks: tables for all of them, and some objects.
pub(super) fn locked_bytes_min(blocks: u64) -> u64 {
    // Handles take 8 bytes, in a table that doubles; leaves 14 with checksums; descriptors of frames are few.
    LOCKED_BYTES_MIN + blocks * (16 + 16)
}
