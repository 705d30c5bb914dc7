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
pub(crate) const NO_WINNER: u8 = 255;

/// Bucket of a raw word.
#[inline(always)]
fn bucket(word: u64) -> usize {
    (word.wrapping_mul(HASH_MULTIPLIER) >> 43) as usize % BUCKETS
}

/// Finds the raw words that repeat an earlier one: sets the bits of [`Work::repeats`], writes the references and turns the
/// tags of repeats from raw to reference. Their places are known.
///
/// The first raw word of each bucket is the only one that others can refer to.
#[inline(always)]
pub(crate) fn refer(work: &mut Work, page: &PageWords) {
    fetch(work, page);
    enter(work);
    settle(work, suspects);
}

/// Fetches the raw words and finds their buckets.
#[inline(always)]
pub(crate) fn fetch(work: &mut Work, page: &PageWords) {
    for number in 0..work.all_raws_len {
        // Volatile, or the compiler makes gathers of it, which cost more than the loads.
        // SAFETY: one of the places.
        let place = unsafe { std::ptr::read_volatile(&work.raw_places[number]) };
        let word = word(page, usize::from(place) % WORDS);
        work.all_raws[number] = word;
        work.raw_buckets[number] = bucket(word) as u16;
    }
}

/// Finds the first raw word of each bucket, and for each raw word that of its bucket.
#[inline(always)]
pub(crate) fn enter(work: &mut Work) {
    let len = work.all_raws_len;
    assert!(len <= WORDS);
    // In descending order, so that the first of a bucket is stored last. The table need not be cleared: only buckets
    // stored to are read.
    for number in (REFERABLE..len).rev() {
        work.raw_winners[usize::from(work.raw_buckets[number]) % BUCKETS] = NO_WINNER;
    }
    for number in (0..len.min(REFERABLE)).rev() {
        work.raw_winners[usize::from(work.raw_buckets[number]) % BUCKETS] = number as u8;
    }
    for (winner, &bucket) in work.winners.iter_mut().zip(&work.raw_buckets).take(len) {
        // Volatile as above.
        // SAFETY: a byte of the table.
        *winner = unsafe { std::ptr::read_volatile(&work.raw_winners[usize::from(bucket) % BUCKETS]) };
    }
}

/// Which of the raw words `64 * chunk ..` are not the first of their bucket, whose winners these are. Those from
/// [`REFERABLE`] on never are.
#[inline(always)]
fn suspects(winners: &[u8; 64], chunk: usize) -> u64 {
    let mut set = 0;
    for (at, &winner) in winners.iter().enumerate() {
        set |= u64::from(winner != NO_WINNER && usize::from(winner) != 64 * chunk + at) << at;
    }
    set
}

/// Compares the raw words that are not the first of their bucket with it. `suspects` is the function of that name.
#[inline(always)]
pub(crate) fn settle(work: &mut Work, suspects: impl Fn(&[u8; 64], usize) -> u64) {
    let len = work.all_raws_len;
    let mut refs = 0;
    let mut before = [0usize; REFERABLE / 64 + 1];
    let words = &work.all_raws;
    let chunks = work.repeats.iter_mut().zip(work.winners.as_chunks::<64>().0);
    for (chunk, (repeats, winners)) in chunks.enumerate().take(len.div_ceil(64)) {
        let first = 64 * chunk;
        if let Some(before) = before.get_mut(chunk) {
            *before = refs;
        }
        let mut left = suspects(winners, chunk) & u64::MAX >> (64 - 64.min(len - first));
        let mut set = 0;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let winner = winners[at];
            // No branches: whether a word repeats cannot be foreseen.
            let same = words[usize::from(winner)] == words[first + at];
            set |= u64::from(same) << at;
            (work.sources[refs % WORDS], work.ref_places[refs % WORDS]) =
                (winner, work.raw_places[first + at]);
            refs += usize::from(same);
        }
        *repeats = set;
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
