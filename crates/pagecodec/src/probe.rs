//! Cheap tests of a page before any codec runs.

use crate::t16::{hash8, page_words, word};
use crate::PAGE_SIZE;

/// Returns the 64-bit word that fills the whole page, if any. Most pages differ in an early cache
/// line; a filled page costs one pass.
#[inline]
pub fn same_filled(page: &[u8; PAGE_SIZE]) -> Option<u64> {
    let words = page_words(page);
    let first = word(words, 0);
    for line in words.chunks_exact(8) {
        // Eight words at a time without a branch, so that the compiler vectorises.
        let differ = line.iter().fold(0, |differ, word| differ | (u64::from_le_bytes(*word) ^ first));
        if differ != 0 {
            return None;
        }
    }
    Some(first)
}

/// Returns how many of 256 hash buckets the high 48 bits of 64 words hit, taken from eight lines
/// spread over the page.
///
/// Heaps of pointers and small integers yield 10 to 25; random bytes, text, machine code and arrays
/// of numbers 45 to 60. From 50 on T16 hardly ever helps. It predicts nothing about other formats.
#[inline]
pub fn distinct_prefixes(page: &[u8; PAGE_SIZE]) -> u32 {
    let words = page_words(page);
    // A byte per bucket instead of a bit, so that writes do not depend on each other.
    let mut seen = [0u8; 256];
    for line in 0..8 {
        // Lines 0, 9, 18 .. 63: a different place in each group of eight.
        for at in 72 * line..72 * line + 8 {
            seen[hash8(word(words, at) >> 16)] = 1;
        }
    }
    // Sums of 16 bytes in parallel.
    let sums = seen
        .as_chunks::<16>()
        .0
        .iter()
        .fold([0u8; 16], |sums, part| std::array::from_fn(|at| sums[at] + part[at]));
    sums.iter().map(|&sum| u32::from(sum)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_page_is_told_by_its_word() {
        let mut page = [0u8; PAGE_SIZE];
        assert_eq!(same_filled(&page), Some(0));
        page.as_chunks_mut::<8>().0.fill(0x0123_4567_89ab_cdefu64.to_le_bytes());
        assert_eq!(same_filled(&page), Some(0x0123_4567_89ab_cdef));
        for at in [0, 7, 8, 63, 64, 2048, 4095] {
            let mut other = page;
            other[at] ^= 1;
            assert_eq!(same_filled(&other), None, "byte {at}");
        }
    }

    #[test]
    fn the_probe_counts_prefixes() {
        let mut page = [0u8; PAGE_SIZE];
        assert_eq!(distinct_prefixes(&page), 1);
        for (number, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (0x5555_0000_0000u64 + 24 * number as u64).to_le_bytes();
        }
        assert_eq!(distinct_prefixes(&page), 1);
        for (number, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        }
        assert!(distinct_prefixes(&page) > 45);
    }
}
