//! Repeats among the raw words of a page. Scalar for every instruction set: there are 30 to 100 of them in a page, and
//! the work is table lookups.

use super::format::{word, PageWords, WORDS};
use super::templates::HASH_MULTIPLIER;
use super::work::Work;

/// Buckets of the table that finds repeated raw words.
pub(crate) const BUCKETS: usize = 512;
/// Raw words from this one on are never referred to: a reference is one byte, and up to 13 raw words of exact
/// templates come first.
const REFERABLE: usize = 240;
/// Winner of a bucket whose first word is not referable.
const NO_WINNER: u8 = 255;

/// Bucket of a raw word.
#[inline(always)]
fn bucket(word: u64) -> usize {
    (word.wrapping_mul(HASH_MULTIPLIER) >> 43) as usize % BUCKETS
}

/// Fetches the raw words, whose places are known, and finds those that repeat an earlier one: sets the bits of
/// [`Work::repeats`], writes the references and turns the tags of repeats from raw to reference.
///
/// The first raw word of each bucket is the only one that others can refer to.
#[inline(always)]
pub(crate) fn refer(work: &mut Work, page: &PageWords) {
    let len = work.all_raws_len;
    assert!(len <= WORDS);
    // In descending order, so that the first of a bucket is stored last. The table need not be cleared: only buckets
    // stored to are read.
    let mut store = |number: usize, winner: u8| {
        // Volatile for the same reason as below.
        // SAFETY: one of the places.
        let place = unsafe { std::ptr::read_volatile(&work.raw_places[number]) };
        let word = word(page, usize::from(place) % WORDS);
        let bucket = bucket(word);
        work.all_raws[number] = word;
        work.raw_buckets[number] = bucket as u16;
        work.raw_winners[bucket] = winner;
    };
    for number in (REFERABLE..len).rev() {
        store(number, NO_WINNER);
    }
    for number in (0..len.min(REFERABLE)).rev() {
        store(number, number as u8);
    }

    let mut refs = 0;
    let mut before = [0usize; REFERABLE / 64 + 1];
    let words = &work.all_raws;
    for (chunk, repeats) in work.repeats.iter_mut().enumerate().take(len.div_ceil(64)) {
        let first = 64 * chunk;
        let mut set = 0u64;
        for number in first..len.min(first + 64) {
            let winner = &work.raw_winners[usize::from(work.raw_buckets[number]) % BUCKETS];
            // Volatile, or the compiler makes gathers of it, which cost more than the loads.
            // SAFETY: a byte of the table.
            let winner = unsafe { std::ptr::read_volatile(winner) };
            // No branches: whether a word repeats cannot be foreseen.
            let same = words[usize::from(winner)] == words[number];
            let earlier = usize::from(winner) < number;
            set |= u64::from(same & earlier & (winner != NO_WINNER)) << (number % 64);
        }
        *repeats = set;
        if let Some(before) = before.get_mut(chunk) {
            *before = refs;
        }
        while set != 0 {
            let number = first + set.trailing_zeros() as usize;
            set &= set - 1;
            let winner = usize::from(work.raw_winners[usize::from(work.raw_buckets[number]) % BUCKETS]);
            (work.sources[refs % WORDS], work.ref_places[refs % WORDS]) =
                (winner as u8, work.raw_places[number]);
            refs += 1;
        }
    }
    for (reference, (&source, &place)) in
        work.refs.iter_mut().zip(work.sources.iter().zip(&work.ref_places)).take(refs)
    {
        // Its place in the stream: repeats before it are not stored.
        let source = usize::from(source);
        let chunk = source / 64 % before.len();
        let skipped =
            before[chunk] + (work.repeats[chunk] & ((1 << (source % 64)) - 1)).count_ones() as usize;
        *reference = (work.templates.raw_len + source - skipped) as u8;
        // Tag 15 becomes 14.
        let place = usize::from(place) % WORDS;
        work.all_lines[place / 8] ^= 1 << (4 * (place % 8));
    }
    work.raw_len = len - refs;
    work.ref_len = refs;
}
