//! Repeats among the raw words of a page. Scalar for every instruction set: a page has 30 to 100 of
//! them, and the work is table lookups.

use super::format::{word, PageWords, WORDS};
use super::templates::HASH_MULTIPLIER;
use super::work::Work;

pub(crate) const BUCKETS: usize = 512;
/// Raw words from this one on are never referred to: a reference is one byte, and up to 13 raw
/// words of exact templates come first.
const REFERABLE: usize = 240;
/// Winner of a bucket whose first word cannot be referred to.
pub(crate) const NO_WINNER: u8 = 255;

#[inline(always)]
fn bucket(word: u64) -> usize {
    (word.wrapping_mul(HASH_MULTIPLIER) >> 43) as usize % BUCKETS
}

/// Finds the raw words that repeat an earlier one, given their places: sets the bits of
/// [`Work::repeats`], writes the references and changes the repeats' tags from raw to reference.
/// References name only the first raw word of a bucket.
#[inline(always)]
pub(crate) fn refer(work: &mut Work, page: &PageWords) {
    let len = work.all_raws_len;
    assert!(len <= WORDS);
    // In descending order, so that the first of a bucket is stored last. The table is not cleared,
    // because only buckets stored to are read.
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

    let words = &work.all_raws;
    for (chunk, repeats) in work.repeats.iter_mut().enumerate().take(len.div_ceil(64)) {
        let mut set = 0u64;
        for number in 64 * chunk..len.min(64 * chunk + 64) {
            let winner = winner_of(&work.raw_winners, work.raw_buckets[number]);
            // No branches: repeats are unpredictable.
            let same = words[usize::from(winner)] == words[number];
            let earlier = usize::from(winner) < number;
            set |= u64::from(same & earlier & (winner != NO_WINNER)) << (number % 64);
        }
        *repeats = set;
    }
    write_references(work);
}

#[inline(always)]
fn winner_of(winners: &[u8; BUCKETS], bucket: u16) -> u8 {
    // Volatile, because the compiler would otherwise make gathers, which cost more than the loads.
    // SAFETY: a byte of the table.
    unsafe { std::ptr::read_volatile(&winners[usize::from(bucket) % BUCKETS]) }
}

/// [`refer`] for many raw words that have been fetched and whose buckets are known. `suspects` gets
/// the winners of the raw words `64 * chunk ..`. It returns the words whose bucket's winner is
/// neither themselves nor [`NO_WINNER`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn refer_many(work: &mut Work, suspects: impl Fn(&[u8; 64], usize) -> u64) {
    let len = work.all_raws_len;
    assert!(len <= WORDS);
    for (number, &bucket) in work.raw_buckets[..len].iter().enumerate().rev() {
        let winner = if number < REFERABLE { number as u8 } else { NO_WINNER };
        work.raw_winners[usize::from(bucket) % BUCKETS] = winner;
    }
    for (winner, &bucket) in work.winners.iter_mut().zip(&work.raw_buckets[..len]) {
        *winner = winner_of(&work.raw_winners, bucket);
    }
    let words = &work.all_raws;
    let chunks = work.repeats.iter_mut().zip(work.winners.as_chunks::<64>().0);
    for (chunk, (repeats, winners)) in chunks.enumerate().take(len.div_ceil(64)) {
        let mut left = suspects(winners, chunk) & u64::MAX >> (64 - 64.min(len - 64 * chunk));
        let mut set = left;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let differs = words[usize::from(winners[at])] != words[64 * chunk + at];
            set ^= u64::from(differs) << at;
        }
        *repeats = set;
    }
    write_references(work);
}

#[inline(always)]
fn write_references(work: &mut Work) {
    let len = work.all_raws_len;
    let mut refs = 0;
    let mut before = [0usize; REFERABLE / 64 + 1];
    for (chunk, &repeats) in work.repeats.iter().enumerate().take(len.div_ceil(64)) {
        if let Some(before) = before.get_mut(chunk) {
            *before = refs;
        }
        let mut set = repeats;
        while set != 0 {
            let number = 64 * chunk + set.trailing_zeros() as usize;
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
        // Its place in the stream, which omits the repeats before it.
        let source = usize::from(source);
        let chunk = source / 64 % before.len();
        let skipped =
            before[chunk] + (work.repeats[chunk] & ((1 << (source % 64)) - 1)).count_ones() as usize;
        *reference = (work.templates.raw_len + source - skipped) as u8;
        let place = usize::from(place) % WORDS;
        work.all_lines[place / 8] ^= 1 << (4 * (place % 8));
    }
    work.raw_len = len - refs;
    work.ref_len = refs;
}
