//! Reads: pieces from the pool, in memory or in its swap file.

use uzswap::{Keep, LoadError, Page};

use super::{key_of, part_lens, Device};
use crate::block_locks::BlockLock;
use crate::error::IoError;
use crate::memory::GROUP;
use crate::pages::Pages;
use crate::split::{mask_of, Piece, BLOCK_BYTES, LEAF_BLOCKS, LEAF_BYTES};

impl Device {
    pub(super) fn read_piece(
        &self,
        lock: &BlockLock<'_>,
        piece: Piece,
        into: &mut [u8],
    ) -> Result<(), IoError> {
        let (head, tail, first) = (piece.head(), piece.tail(), piece.first_block());
        let mut pages = Pages::new();
        if head == 0 && tail == 0 {
            pages.extend(into);
            return self.load(lock, first, pages);
        }
        self.read_parts(lock, piece, into)
    }

    /// A read that begins or ends within a block: such blocks pass through a page here, whole ones
    /// go straight to the buffer.
    fn read_parts(&self, lock: &BlockLock<'_>, piece: Piece, into: &mut [u8]) -> Result<(), IoError> {
        let (head, first) = (piece.head(), piece.first_block());
        let mut head_page = [0; BLOCK_BYTES];
        if piece.blocks() == 1 {
            self.load(lock, first, Pages::of(&mut head_page))?;
            into.copy_from_slice(&head_page[head..head + piece.len]);
            return Ok(());
        }
        let mut tail_page = [0; BLOCK_BYTES];
        let (head_len, tail_len) = part_lens(piece);
        let (head_into, rest) = into.split_at_mut(head_len);
        let (middle, tail_into) = rest.split_at_mut(rest.len() - tail_len);
        let mut pages = Pages::new();
        if head_len > 0 {
            pages.push(&mut head_page);
        }
        pages.extend(middle);
        if tail_len > 0 {
            pages.push(&mut tail_page);
        }
        self.load(lock, first, pages)?;
        head_into.copy_from_slice(&head_page[BLOCK_BYTES - head_len..]);
        tail_into.copy_from_slice(&tail_page[..tail_len]);
        Ok(())
    }

    /// Loads locked neighbours from block `first` of a leaf.
    pub(super) fn load(
        &self,
        lock: &BlockLock<'_>,
        first: usize,
        mut pages: Pages<'_>,
    ) -> Result<(), IoError> {
        let mask = mask_of(first, pages.len());
        let at_of = |block: usize| (lock.leaf * LEAF_BYTES + block * BLOCK_BYTES) as u64;
        let lost = self.block_locks.lost(lock.leaf) & mask;
        if lost != 0 {
            return Err(IoError::Lost { at: at_of(lost.trailing_zeros() as usize) });
        }
        let stored = self.stored(lock, mask);
        if stored == mask {
            return self.load_stored(lock, stored, pages.as_mut_slice());
        }
        let mut there = Pages::new();
        for (block, page) in (first..).zip(pages.into_pages()) {
            if stored >> block & 1 == 1 {
                there.push(page);
            } else {
                page.fill(0);
            }
        }
        match stored {
            0 => Ok(()),
            _ => self.load_stored(lock, stored, there.as_mut_slice()),
        }
    }

    fn load_stored(&self, lock: &BlockLock<'_>, mask: u16, pages: &mut [&mut Page]) -> Result<(), IoError> {
        let at_of = |index: usize| {
            let block = (0..LEAF_BLOCKS).filter(|block| mask >> block & 1 == 1).nth(index);
            let block = block.expect("an index of the mask");
            (lock.leaf * LEAF_BYTES + block * BLOCK_BYTES) as u64
        };
        match self.pool().load_masked(GROUP, key_of(lock.leaf), u64::from(mask), pages, Keep::Shared) {
            Ok(()) => Ok(()),
            Err(LoadError::Damaged { index }) => Err(IoError::Damaged { at: at_of(index) }),
            Err(LoadError::Disk { index, offset, fault }) => {
                Err(IoError::Disk { at: at_of(index), offset, fault })
            }
            Err(LoadError::Missing { .. }) => unreachable!("locked blocks stay where they are"),
        }
    }
}
