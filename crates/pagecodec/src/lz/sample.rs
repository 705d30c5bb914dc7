//! Tests whether matches are likely in a page.

use super::index::MULTIPLIER;
use crate::{Isa, PAGE_SIZE};

/// Places that [`repeats`] looks at.
pub const SAMPLES: usize = 512;
const RUN: usize = 16;
/// Log2 of the slots that remember samples.
const SLOT_BITS: u32 = 10;

/// The start of each run within its part of the page: runs at equal distances would rarely match in
/// a periodic page. Found by search: misses as few periods as possible up to 2048, and up to 512 if
/// they fill half a page.
const JITTER: [usize; SAMPLES / RUN] = [
    31, 118, 46, 93, 6, 27, 0, 21, 97, 57, 2, 120, 88, 22, 77, 123, 116, 54, 120, 49, 93, 60, 82, 26, 15,
    121, 29, 77, 86, 106, 31, 47,
];

/// Counts the places, of 512 in 32 runs of 16 spread over the page, whose first four bytes equal
/// those of an earlier sampled place (each hash slot remembers its last place).
///
/// Random bytes yield 0 or 1: 0 already if no place of every other run repeats another. Text, where
/// matches save half of the page, yields 100 and more.
pub fn repeats(isa: Isa, page: &[u8; PAGE_SIZE]) -> u32 {
    with_isa!(
        isa,
        fn run(page: &[u8; PAGE_SIZE]) -> u32 {
            count(page)
        }
    )
}

/// [`repeats`] for 256 places of `bytes`, in 16 runs of 16 spread over them.
///
/// # Panics
/// If there are fewer than 256 bytes.
pub fn repeats_in(isa: Isa, bytes: &[u8]) -> u32 {
    with_isa!(
        isa,
        fn run(bytes: &[u8]) -> u32 {
            assert!(bytes.len() >= SAMPLES / 2, "{} bytes", bytes.len());
            count_half(bytes, 0, SAMPLES / RUN / 2, &mut [0; 1 << SLOT_BITS])
        }
    )
}

#[inline(always)]
fn count(page: &[u8; PAGE_SIZE]) -> u32 {
    // The upper ten bits of a product (reversible, so equal products mean equal bytes) index the
    // slot, which keeps the next sixteen. Products that differ only in the last six bits are too
    // rare to matter.
    let mut slots = [0u16; 1 << SLOT_BITS];
    let mut count = 0;
    for half in 0..2 {
        count += count_half(page, half, SAMPLES / RUN, &mut slots);
        if count == 0 {
            break;
        }
    }
    count
}

/// Counts sixteen runs, one in each `parts / 16`th of `parts` parts of the page, from `first` on.
#[inline(always)]
fn count_half(page: &[u8], first: usize, parts: usize, slots: &mut [u16; 1 << SLOT_BITS]) -> u32 {
    let part_len = (page.len() - RUN - 4) / parts;
    let (mut names, mut tags) = ([0u16; SAMPLES / 2], [0u16; SAMPLES / 2]);
    for run in 0..SAMPLES / RUN / 2 {
        let part = first + run * (parts / (SAMPLES / RUN / 2));
        let at = part * part_len + JITTER[part] % part_len;
        let bytes: &[u8; RUN + 4] = page[at..].first_chunk().expect("the last run ends before the page");
        // Places 0, 4, 8, 12, then 1, 5 and so on: each four form one vector.
        for k in 0..4 {
            let fours: &[u8; RUN] = bytes[k..].first_chunk().expect("RUN + 4 bytes");
            for (lane, four) in fours.as_chunks::<4>().0.iter().enumerate() {
                let product = u32::from_le_bytes(*four).wrapping_mul(MULTIPLIER);
                names[run * RUN + k * 4 + lane] = (product >> (32 - SLOT_BITS)) as u16;
                tags[run * RUN + k * 4 + lane] = (product >> (32 - SLOT_BITS - 16)) as u16;
            }
        }
    }
    // The exchange alone: the compiler would delay comparisons to vectorise them.
    let mut before = [0u16; SAMPLES / 2];
    for ((&name, &tag), before) in names.iter().zip(&tags).zip(&mut before) {
        *before = std::mem::replace(&mut slots[usize::from(name) % (1 << SLOT_BITS)], tag);
    }
    tags.iter().zip(&before).map(|(tag, before)| u16::from(tag == before)).sum::<u16>().into()
}
