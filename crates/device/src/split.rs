//! Requests, cut where the pool's leaves end: every 16 blocks.

/// Bytes of a block.
pub const BLOCK_BYTES: usize = uzswap::PAGE_SIZE;
/// Blocks of a leaf: one call of the pool concerns one leaf.
pub(crate) const LEAF_BLOCKS: usize = 16;
pub(crate) const LEAF_BYTES: usize = LEAF_BLOCKS * BLOCK_BYTES;

/// The part of a request that lies in one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) leaf: usize,
    pub(crate) start: usize,
    /// Bytes; at least one.
    pub(crate) len: usize,
}

impl Piece {
    pub(crate) fn first_block(self) -> usize {
        self.start / BLOCK_BYTES
    }

    pub(crate) fn blocks(self) -> usize {
        (self.start + self.len).div_ceil(BLOCK_BYTES) - self.first_block()
    }

    /// The blocks that the piece touches, bit `i` for block `i` of the leaf.
    pub(crate) fn mask(self) -> u16 {
        mask_of(self.first_block(), self.blocks())
    }

    /// Bytes of the first block before the piece.
    pub(crate) fn head(self) -> usize {
        self.start % BLOCK_BYTES
    }

    /// Bytes of the last block after the piece.
    pub(crate) fn tail(self) -> usize {
        (self.start + self.len).next_multiple_of(BLOCK_BYTES) - (self.start + self.len)
    }

    /// The piece's whole blocks: the first in the leaf, and their number.
    pub(crate) fn whole_blocks(self) -> (usize, usize) {
        let first = self.start.div_ceil(BLOCK_BYTES);
        let end = (self.start + self.len) / BLOCK_BYTES;
        (first, end.saturating_sub(first))
    }
}

/// `count` blocks from `first` of a leaf.
pub(crate) fn mask_of(first: usize, count: usize) -> u16 {
    debug_assert!(first + count <= LEAF_BLOCKS);
    (((1u32 << count) - 1) << first) as u16
}

pub(crate) fn split(at: u64, len: u64) -> impl Iterator<Item = Piece> {
    let (mut at, end) = (at, at + len);
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let start = (at % LEAF_BYTES as u64) as usize;
            let len = (end - at).min((LEAF_BYTES - start) as u64) as usize;
            let piece = Piece { leaf: (at / LEAF_BYTES as u64) as usize, start, len };
            at += len as u64;
            piece
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_piece_knows_its_blocks() {
        let piece = Piece { leaf: 0, start: 4000, len: 4392 };
        assert_eq!((piece.first_block(), piece.blocks(), piece.mask()), (0, 3, 0b111));
        assert_eq!((piece.head(), piece.tail(), piece.whole_blocks()), (4000, 3896, (1, 1)));
        let inside = Piece { leaf: 0, start: 4097, len: 10 };
        assert_eq!((inside.mask(), inside.whole_blocks().1), (0b10, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pieces_are_the_request(at in 0u64..1 << 40, len in 0u64..3 << 20) {
            let mut next = at;
            for piece in split(at, len) {
                prop_assert_eq!((piece.leaf * LEAF_BYTES + piece.start) as u64, next);
                prop_assert!(piece.len > 0 && piece.start + piece.len <= LEAF_BYTES);
                prop_assert_eq!(piece.head() + piece.len + piece.tail(), piece.blocks() * BLOCK_BYTES);
                prop_assert_eq!(piece.mask().count_ones() as usize, piece.blocks());
                let edges = usize::from(piece.head() > 0) + usize::from(piece.tail() > 0);
                prop_assert!(piece.blocks() - piece.whole_blocks().1 <= edges);
                next += piece.len as u64;
            }
            prop_assert_eq!(next, at + len);
        }
    }
}
