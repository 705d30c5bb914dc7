//! A look at a page that tells whether matches are to be expected.

use super::index::MULTIPLIER;
use crate::{Isa, PAGE_SIZE};

/// Places that [`repeats`] looks at.
pub const SAMPLES: usize = 512;
/// Places in a row.
const RUN: usize = 16;
/// Log2 of the slots that remember what was seen.
const SLOT_BITS: u32 = 10;

/// How many of 512 places, in 32 runs of 16 spread over the page, begin with four bytes that a sampled place before
/// them began with (the last such place of each hash slot is remembered).
///
/// Random bytes answer 0 or 1. Text, where a match saves half of the page, answers 100 and more.
pub fn repeats(isa: Isa, page: &[u8; PAGE_SIZE]) -> u32 {
    with_isa!(
        isa,
        fn run(page: &[u8; PAGE_SIZE]) -> u32 {
            count(page)
        }
    )
}

#[inline(always)]
fn count(page: &[u8; PAGE_SIZE]) -> u32 {
    let mut slots = [0u32; 1 << SLOT_BITS];
    let mut count = 0;
    for run in 0..SAMPLES / RUN {
        // 126 bytes apart, so that runs start at all offsets within a word.
        let bytes = &page[(run * (PAGE_SIZE / 32 - 2))..][..RUN + 4];
        let mut products = [0u32; RUN];
        for (at, product) in products.iter_mut().enumerate() {
            let four = u32::from_le_bytes(*bytes[at..].first_chunk().expect("RUN + 4 bytes"));
            // Reversible: equal products mean equal bytes.
            *product = four.wrapping_mul(MULTIPLIER);
        }
        for product in products {
            let slot = &mut slots[(product >> (32 - SLOT_BITS)) as usize];
            count += u32::from(std::mem::replace(slot, product) == product);
        }
    }
    count
}
