//! A page's checksum: finds damage, not malice.

use acomp::Page;

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Four independent multiply-and-rotate lanes over the page's words, folded to 32 bits.
pub(crate) fn of(page: &Page) -> u32 {
    let mut lanes = [1u64, 2, 3, 4];
    for block in page.chunks_exact(32) {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            *lane = (lane.rotate_left(29) ^ word).wrapping_mul(MULTIPLIER);
        }
    }
    let mut sum = 0u64;
    for lane in lanes {
        sum = (sum.rotate_left(23) ^ lane ^ (lane >> 32)).wrapping_mul(MULTIPLIER);
    }
    (sum >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_seen() {
        let mut page = [0x5Au8; 4096];
        let sum = of(&page);
        for bit in 0..4096 * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(&page), sum, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(of(&page), sum);
    }

    #[test]
    fn swapped_words_are_seen() {
        let mut page = [0u8; 4096];
        page[0] = 1;
        let first = of(&page);
        page[0] = 0;
        page[32] = 1;
        assert_ne!(of(&page), first);
    }
}
