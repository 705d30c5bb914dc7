//! Reads: pieces from the pool and from the backing.

use std::sync::atomic::Ordering;

use uzswap::{Keep, LoadError, Page};

use super::{key_of, part_lens, Device, GROUP};
use crate::claims::Claim;
use crate::error::IoError;
use crate::pages::Pages;
use crate::pieces::{mask_of, Piece, BLOCK_BYTES, LEAF_BLOCKS, LEAF_BYTES};

impl Device {
    pub(super) fn read_piece(&self, claim: &Claim<'_>, piece: Piece, into: &mut [u8]) -> Result<(), IoError> {
        let (head, tail, first) = (piece.head(), piece.tail(), piece.first_block());
        let mut pages = Pages::new();
        if head == 0 && tail == 0 {
            pages.extend(into);
            return self.load(claim, first, pages);
        }
        self.read_parts(claim, piece, into)
    }

    /// A read that begins or ends within a block: such blocks go through a page here, whole ones straight to the buffer.
    fn read_parts(&self, claim: &Claim<'_>, piece: Piece, into: &mut [u8]) -> Result<(), IoError> {
        let (head, first) = (piece.head(), piece.first_block());
        let mut head_page = [0; BLOCK_BYTES];
        if piece.blocks() == 1 {
            self.load(claim, first, Pages::of(&mut head_page))?;
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
        self.load(claim, first, pages)?;
        head_into.copy_from_slice(&head_page[BLOCK_BYTES - head_len..]);
        tail_into.copy_from_slice(&tail_page[..tail_len]);
        Ok(())
    }

    /// Loads claimed neighbours from block `first` of a leaf.
    pub(super) fn load(&self, claim: &Claim<'_>, first: usize, mut pages: Pages<'_>) -> Result<(), IoError> {
        let mask = mask_of(first, pages.len());
        let at_of = |block: usize| (claim.leaf * LEAF_BYTES + block * BLOCK_BYTES) as u64;
        let lost = self.claims.lost(claim.leaf) & mask;
        if lost != 0 {
            return Err(IoError::Lost { at: at_of(lost.trailing_zeros() as usize) });
        }
        let (stored, held) = self.places(claim, mask);
        if stored == mask {
            return self.load_stored(claim, stored, pages.as_mut_slice());
        }
        let (mut from_pool, mut from_backing) = (Pages::new(), Pages::new());
        for (block, page) in (first..).zip(pages.into_pages()) {
            if stored >> block & 1 == 1 {
                from_pool.push(page);
            } else if held >> block & 1 == 1 {
                from_backing.push(page);
            } else {
                page.fill(0);
            }
        }
        if stored != 0 {
            self.load_stored(claim, stored, from_pool.as_mut_slice())?;
        }
        if held != 0 {
            let backing = self.config.backing.as_ref().expect("it holds blocks");
            backing
                .read(key_of(claim.leaf), held, from_backing.as_mut_slice())
                .map_err(|reason| IoError::Backing { at: at_of(held.trailing_zeros() as usize), reason })?;
            self.backing_reads.fetch_add(u64::from(held.count_ones()), Ordering::Relaxed);
        }
        Ok(())
    }

    fn load_stored(&self, claim: &Claim<'_>, mask: u16, pages: &mut [&mut Page]) -> Result<(), IoError> {
        match self.pool.load_masked(GROUP, key_of(claim.leaf), u64::from(mask), pages, Keep::Shared) {
            Ok(()) => Ok(()),
            // The pool has no swap file of its own here, so that none of its pages is on a disk.
            Err(LoadError::Damaged { index } | LoadError::Disk { index, .. }) => {
                let block = (0..LEAF_BLOCKS).filter(|block| mask >> block & 1 == 1).nth(index);
                let block = block.expect("an index of the mask");
                Err(IoError::Damaged { at: (claim.leaf * LEAF_BYTES + block * BLOCK_BYTES) as u64 })
            }
            Err(LoadError::Missing { .. }) => unreachable!("claimed blocks stay where they are"),
        }
    }
}
