//! Writes pieces to the pool, and drops blocks.

use uzswap::Page;

use super::{key_of, part_lens, Device};
use crate::admission::Admission;
use crate::block_locks::BlockLock;
use crate::error::IoError;
use crate::memory::GROUP;
use crate::pages::Pages;
use crate::split::{mask_of, Piece, BLOCK_BYTES, LEAF_BLOCKS, LEAF_BYTES};

impl Device {
    fn admit(&self, piece: Piece) -> Result<Option<Admission<'_>>, IoError> {
        let at = (piece.leaf * LEAF_BYTES + piece.start) as u64;
        self.memory.admit(piece.blocks()).ok_or(IoError::NoSpace { at })
    }

    pub(super) fn write_piece(&self, piece: Piece, from: &[u8]) -> Result<(), IoError> {
        let (head, tail) = (piece.head(), piece.tail());
        if head == 0 && tail == 0 {
            let (pages, _) = from.as_chunks::<BLOCK_BYTES>();
            if pages.iter().all(is_zero) {
                self.drop_whole_blocks(piece);
                return Ok(());
            }
            let _admission = self.admit(piece)?;
            let lock = self.block_locks.lock(piece.leaf, piece.mask());
            let mut refs = [&pages[0]; LEAF_BLOCKS];
            for (slot, page) in refs.iter_mut().zip(pages) {
                *slot = page;
            }
            return self.store(&lock, piece, &refs[..pages.len()]);
        }
        self.write_with_parts(piece, from)
    }

    /// A write that begins or ends within a block, whose rest is read first.
    fn write_with_parts(&self, piece: Piece, from: &[u8]) -> Result<(), IoError> {
        let _admission = self.admit(piece)?;
        let lock = self.block_locks.lock(piece.leaf, piece.mask());
        let (head, tail, first, blocks) = (piece.head(), piece.tail(), piece.first_block(), piece.blocks());
        let (mut head_page, mut tail_page) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
        if head > 0 || blocks == 1 {
            self.load(&lock, first, Pages::of(&mut head_page))?;
        }
        if blocks == 1 {
            head_page[head..head + piece.len].copy_from_slice(from);
            return self.store(&lock, piece, &[&head_page]);
        }
        if tail > 0 {
            self.load(&lock, first + blocks - 1, Pages::of(&mut tail_page))?;
        }
        let (head_len, tail_len) = part_lens(piece);
        let (head_from, rest) = from.split_at(head_len);
        let (middle, tail_from) = rest.split_at(rest.len() - tail_len);
        head_page[BLOCK_BYTES - head_len..].copy_from_slice(head_from);
        tail_page[..tail_len].copy_from_slice(tail_from);
        let (middle, _) = middle.as_chunks::<BLOCK_BYTES>();
        let mut refs = [&head_page; LEAF_BLOCKS];
        let from_head = usize::from(head > 0);
        for (slot, page) in refs[from_head..].iter_mut().zip(middle) {
            *slot = page;
        }
        if tail > 0 {
            refs[blocks - 1] = &tail_page;
        }
        self.store(&lock, piece, &refs[..blocks])
    }

    /// Zeroes a part of a block. Does nothing if the block is absent.
    pub(super) fn write_part_of_zeroes(&self, part: Piece, zeroes: &[u8]) -> Result<(), IoError> {
        {
            let lock = self.block_locks.lock(part.leaf, part.mask());
            let stored = self.stored(&lock, part.mask());
            if (stored | self.block_locks.lost(part.leaf)) & part.mask() == 0 {
                return Ok(());
            }
        }
        self.write_with_parts(part, zeroes)
    }

    fn store(&self, lock: &BlockLock<'_>, piece: Piece, pages: &[&Page]) -> Result<(), IoError> {
        let mask = piece.mask();
        let first = key_of(lock.leaf) + piece.first_block() as u64;
        if self.pool().store_any(GROUP, first, pages).is_err() {
            // The earlier content is gone, in memory and on disk.
            lock.lose(mask);
            return Err(IoError::Lost { at: first * BLOCK_BYTES as u64 });
        }
        lock.regain(mask);
        self.memory.note_gone(pages.len() as u64);
        Ok(())
    }

    pub(super) fn drop_whole_blocks(&self, piece: Piece) {
        let (first, count) = piece.whole_blocks();
        if count > 0 {
            let lock = self.block_locks.lock(piece.leaf, mask_of(first, count));
            self.drop_blocks(&lock, mask_of(first, count));
        }
    }

    fn drop_blocks(&self, lock: &BlockLock<'_>, mask: u16) {
        let key = key_of(lock.leaf);
        let (first, count) = (mask.trailing_zeros(), mask.count_ones());
        debug_assert_eq!(mask, mask_of(first as usize, count as usize));
        let gone = self.pool().invalidate(GROUP, key + u64::from(first), u64::from(count));
        lock.regain(mask);
        self.memory.note_gone(gone);
    }
}

fn is_zero(page: &Page) -> bool {
    let (words, _) = page.as_chunks::<32>();
    words.iter().all(|word| *word == [0; 32])
}
