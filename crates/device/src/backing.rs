//! Where blocks go that memory has no room for, and how they get there.

use std::io;
use std::sync::Arc;

use uzswap::{Group, Page, Writeback, WritebackError};

use crate::claims::Claims;
use crate::pieces::LEAF_BLOCKS;

/// A slower home for blocks: a swap file.
///
/// Blocks come by [`Writeback`], up to 16 neighbours at a time, and are at home here from `finish` on. Keys are block
/// numbers, a multiple of 16 in every call; bit `i` of a mask is block `key + i`; the group is always 0. The device never
/// makes two calls about one block at a time.
pub trait Backing: Writeback {
    /// Which of the blocks are at home here.
    fn held(&self, key: u64, mask: u16) -> u16;

    /// Reads blocks that are at home here and stay so: `pages` has one for each bit, in order.
    ///
    /// # Errors
    /// When any of them cannot be read as it was written.
    fn read(&self, key: u64, mask: u16, pages: &mut [&mut Page]) -> io::Result<()>;

    /// Forgets blocks, which may be here or not.
    fn forget(&self, key: u64, mask: u16);

    /// Ends when everything that is at home here is as durable as it will be.
    ///
    /// # Errors
    /// When the medium failed.
    fn flush(&self) -> io::Result<()>;
}

/// Hands blocks of the pool to the backing, those alone that nobody works on.
pub(crate) struct Mover {
    pub(crate) claims: Arc<Claims>,
    pub(crate) backing: Arc<dyn Backing>,
}

fn leaf_of(key: u64) -> usize {
    debug_assert!(key.is_multiple_of(LEAF_BLOCKS as u64));
    (key / LEAF_BLOCKS as u64) as usize
}

impl Writeback for Mover {
    fn enabled(&self, group: Group) -> bool {
        self.backing.enabled(group)
    }

    fn claim(&self, group: Group, key: u64, mask: u16) -> u16 {
        let leaf = leaf_of(key);
        let claimed = self.claims.try_claim(leaf, mask);
        let wanted = match claimed {
            0 => 0,
            claimed => self.backing.claim(group, key, claimed) & claimed,
        };
        if claimed & !wanted != 0 {
            self.claims.release(leaf, claimed & !wanted);
        }
        wanted
    }

    fn write(&self, group: Group, key: u64, mask: u16, pages: &[&Page]) -> Result<(), WritebackError> {
        self.backing.write(group, key, mask, pages)
    }

    fn finish(&self, group: Group, key: u64, claimed: u16, written: u16) {
        self.backing.finish(group, key, claimed, written);
        self.claims.release(leaf_of(key), claimed);
    }
}
