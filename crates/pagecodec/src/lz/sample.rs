//! A look at a page that tells whether matches are to be expected.

use super::index::MULTIPLIER;
use crate::{Isa, PAGE_SIZE};

/// Places that [`repeats`] looks at.
pub const SAMPLES: usize = 512;
/// Places in a row.
const RUN: usize = 16;
/// Log2 of the slots that remember what was seen.
const SLOT_BITS: u32 = 10;

/// Where in its part of the page each run starts: runs at equal distances would hardly meet again
/// in a page with a period. Found by trying: of the periods up to 2048 as few as can be are missed,
/// and of those up to 512 when they fill half a page.
const JITTER: [usize; SAMPLES / RUN] = [
    31, 118, 46, 93, 6, 27, 0, 21, 97, 57, 2, 120, 88, 22, 77, 123, 116, 54, 120, 49, 93, 60, 82, 26, 15,
    121, 29, 77, 86, 106, 31, 47,
];

/// How many of 512 places, in 32 runs of 16 spread over the page, begin with four bytes that a
/// sampled place before them began with (the last such place of each hash slot is remembered).
///
/// Random bytes yield 0 or 1: 0 already when no place of every other run repeats another. Text,
/// where a match saves half of the page, yields 100 and more.
pub fn repeats(isa: Isa, page: &[u8; PAGE_SIZE]) -> u32 {
    with_isa!(
        isa,
        fn run(page: &[u8; PAGE_SIZE]) -> u32 {
            count(page)
        }
    )
}

/// How many of 256 places of `bytes`, in 16 runs of 16 spread over them, repeat an earlier one as
/// in [`repeats`].
///
/// # Panics
/// When there are fewer than 256 bytes.
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
    // Of a product (reversible: equal ones mean equal bytes) the upper ten bits name the slot and
    // the next sixteen are kept in it; two that differ in the last six bits alone are too rare to
    // matter.
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

/// Sixteen runs: each `parts / 16`th of `parts` equal parts of the page has one, from part `first`
/// on.
#[inline(always)]
fn count_half(page: &[u8], first: usize, parts: usize, slots: &mut [u16; 1 << SLOT_BITS]) -> u32 {
    let part_len = (page.len() - RUN - 4) / parts;
    let (mut names, mut tags) = ([0u16; SAMPLES / 2], [0u16; SAMPLES / 2]);
    for run in 0..SAMPLES / RUN / 2 {
        let part = first + run * (parts / (SAMPLES / RUN / 2));
        let at = part * part_len + JITTER[part] % part_len;
        let bytes: &[u8; RUN + 4] = page[at..].first_chunk().expect("the last run ends before the page");
        // Places 0, 4, 8, 12, then 1, 5 and so on: each four of them are one vector.
        for k in 0..4 {
            let fours: &[u8; RUN] = bytes[k..].first_chunk().expect("RUN + 4 bytes");
            for (lane, four) in fours.as_chunks::<4>().0.iter().enumerate() {
                let product = u32::from_le_bytes(*four).wrapping_mul(MULTIPLIER);
                names[run * RUN + k * 4 + lane] = (product >> (32 - SLOT_BITS)) as u16;
                tags[run * RUN + k * 4 + lane] = (product >> (32 - SLOT_BITS - 16)) as u16;
            }
        }
    }
    // The exchange by itself, without comparisons that would be held back to be made several at a
    // time.
    let mut before = [0u16; SAMPLES / 2];
    for ((&name, &tag), before) in names.iter().zip(&tags).zip(&mut before) {
        *before = std::mem::replace(&mut slots[usize::from(name) % (1 << SLOT_BITS)], tag);
    }
    tags.iter().zip(&before).map(|(tag, before)| u16::from(tag == before)).sum::<u16>().into()
}
