//! The encoder in plain Rust, the reference for the others.

use crate::t16::format::{page_words, PageWords, LINES, PAGE_SIZE, TAG_RAW, WORDS};
use crate::t16::prefetch;
use crate::t16::raws;
use crate::t16::select::select;
use crate::t16::templates::{hash8, Templates, NO_TAG};
use crate::t16::work::Work;

pub(crate) const LINE_MULTIPLIER: u32 = 0x9E37_79B1;

#[inline(always)]
pub(crate) fn line_bucket(line: u32) -> usize {
    (line.wrapping_mul(LINE_MULTIPLIER) >> 24) as usize
}

/// First half: templates, tag lines, literals. Prefetches `next`. Returns the number of raw words,
/// including repeats.
pub(crate) fn analyse(work: &mut Work, page: &[u8; PAGE_SIZE], next: &[u8; PAGE_SIZE]) -> usize {
    prefetch(next);
    let page = page_words(page);
    select(&mut work.templates, page);
    if work.templates.rotated_prefix.is_some() || work.templates.rotated_wide.is_some() {
        assign::<true>(work, page)
    } else {
        assign::<false>(work, page)
    }
}

/// Selects by arithmetic, because the compiler makes branches of anything else.
#[inline(always)]
fn choose(condition: bool, then: u8, otherwise: u8) -> u8 {
    let mask = u8::from(condition).wrapping_neg();
    otherwise ^ (then ^ otherwise) & mask
}

/// Codes all words. No branches: the tag of a word is unpredictable.
#[inline(always)]
fn assign<const ROTATES: bool>(work: &mut Work, page: &PageWords) -> usize {
    let templates = &work.templates;
    let (prefix_first, wide_first) = (templates.prefix_first(), templates.wide_first());
    let exact_values = templates.values;
    let mut prefix_values = templates.values.map(|value| value >> 16);
    // No word shifted right by 16 has all bits set, so the entry for "no template" never matches.
    prefix_values[usize::from(NO_TAG)] = u64::MAX;
    let wide_value = templates.values[Templates::WIDE] >> 32;
    let a_taken: [u8; 16] = std::array::from_fn(|tag| u8::from((prefix_first..14).contains(&tag)));
    let b_taken: [u8; 16] = std::array::from_fn(|tag| u8::from((wide_first..14).contains(&tag)));
    let shift: [u8; 16] = std::array::from_fn(|tag| if templates.is_rotated(tag) { 32 } else { 0 });
    let (mut a_len, mut b_len, mut raw_len) = (0, 0, 0);
    for (line, words) in page.as_chunks::<8>().0.iter().enumerate() {
        let mut tags = 0;
        for (k, word) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            let mut tag = choose(word >> 32 == wide_value, Templates::WIDE as u8, 15);
            if ROTATES {
                let low_clear = word as u32 == 0;
                let small = low_clear & (word >> 48 == 0);
                tag = choose(low_clear, templates.rotated_wide.unwrap_or(tag), tag);
                tag = choose(small, templates.rotated_prefix.unwrap_or(tag), tag);
            }
            let prefix = templates.prefix_tags[hash8(word >> 16)];
            let same = prefix_values[usize::from(prefix) % 16] == word >> 16;
            tag = choose(same, prefix, tag);
            let exact = templates.exact_tags[hash8(word)];
            let same = exact_values[usize::from(exact) % 16] == word;
            tag = choose(same, exact, tag);

            let tag = usize::from(tag) % 16;
            tags |= (tag as u32) << (4 * k);
            let low = if ROTATES { (word >> shift[tag]) as u32 } else { word as u32 };
            // The masks change nothing: no stream gets more literals than there are words.
            work.a[a_len % WORDS] = low as u16;
            work.b[b_len % WORDS] = (low >> 16) as u16;
            work.raw_places[raw_len % WORDS] = (8 * line + k) as u16;
            a_len += usize::from(a_taken[tag]);
            b_len += usize::from(b_taken[tag]);
            raw_len += usize::from(tag == TAG_RAW as usize);
        }
        work.all_lines[line] = tags;
    }
    (work.a_len, work.b_len, work.all_raws_len) = (a_len, b_len, raw_len);
    raw_len
}

/// Second half of the encoder: references among raw words, distinct tag lines.
pub(crate) fn reduce(work: &mut Work, page: &[u8; PAGE_SIZE]) {
    raws::refer(work, page_words(page));
    share_lines(work);
}

const ONES: u64 = 0x0101_0101_0101_0101;

#[inline(always)]
pub(crate) fn share_lines(work: &mut Work) {
    let lines = &work.all_lines;
    let mut buckets = [0u8; LINES];
    for (bucket, line) in buckets.iter_mut().zip(lines) {
        *bucket = line_bucket(*line) as u8;
    }
    for (line, &bucket) in buckets.iter().enumerate().rev() {
        work.line_winners[usize::from(bucket)] = line as u8;
    }
    // Whether each line differs from its winner.
    let mut winners = [0u8; LINES];
    let mut fresh = 0u64;
    for at in 0..LINES {
        let winner = work.line_winners[usize::from(buckets[at])];
        winners[at] = winner;
        let repeats = (lines[usize::from(winner) % LINES] == lines[at]) & (usize::from(winner) != at);
        fresh |= u64::from(!repeats) << at;
    }
    // The number of fresh lines before each.
    let mut ranks = [[0u8; 8]; LINES / 8];
    for (part, ranks) in ranks.iter_mut().enumerate() {
        let bits = fresh >> (8 * part) & 0xff;
        // Isolates bit k in byte k, then moves it to bit 0.
        let bytes = bits.wrapping_mul(ONES) & 0x8040_2010_0804_0201;
        let bytes = (bytes + 0x7f * ONES) >> 7 & ONES;
        let before = (fresh & !(u64::MAX << (8 * part))).count_ones() as u64;
        *ranks = (bytes.wrapping_mul(ONES << 8) + before * ONES).to_le_bytes();
    }
    let ranks = ranks.as_flattened();
    let mut distinct = 0;
    for at in 0..LINES {
        work.index[at - distinct] = ranks[usize::from(winners[at]) % LINES];
        work.lines[distinct] = lines[at];
        distinct += (fresh >> at & 1) as usize;
    }
    work.fresh = fresh;
}

/// Writes the object into `out`, whose length is exactly [`Work::object_len`].
#[inline(always)]
pub(crate) fn write(work: &Work, out: &mut [u8]) {
    let templates = &work.templates;
    let mut rest = out;
    put(&mut rest, &[templates.kinds]);
    put(&mut rest, &[work.counts()]);
    put(&mut rest, &[work.fresh]);
    put(&mut rest, &templates.highs[..templates.highs_len]);
    let first = templates.prefix_first();
    for value in &templates.values[first..first + templates.prefix] {
        put(&mut rest, &[(value >> 16) as u16]);
    }
    put(&mut rest, &templates.a[..templates.a_len]);
    put(&mut rest, &work.a[..work.a_len]);
    put(&mut rest, &templates.b[..templates.b_len]);
    put(&mut rest, &work.b[..work.b_len]);
    put(&mut rest, &templates.raw[..templates.raw_len]);
    // The parts that follow, at least 67 bytes, overwrite repeats.
    let mut kept = 0;
    for (number, raw) in work.all_raws[..work.all_raws_len].iter().enumerate() {
        rest[8 * kept..8 * kept + 8].copy_from_slice(&raw.to_le_bytes());
        kept += 1 - (work.repeats[number / 64 % 8] >> (number % 64) & 1) as usize;
    }
    rest = &mut rest[8 * kept..];
    put(&mut rest, &work.refs[..work.ref_len]);
    put(&mut rest, &work.index[..LINES - work.lines_len()]);
    put(&mut rest, &work.lines[..work.lines_len()]);
    assert!(rest.is_empty());
}

trait Unsigned: Copy {
    fn to_le(self) -> Self;
}

macro_rules! unsigned {
    ($($type:ty),*) => {
        $(impl Unsigned for $type {
            #[inline(always)]
            fn to_le(self) -> Self {
                <$type>::to_le(self)
            }
        })*
    };
}
unsigned!(u8, u16, u32, u64);

/// Writes values at the start of `rest`, least significant byte first, and moves it behind them.
#[inline(always)]
fn put<T: Unsigned>(rest: &mut &mut [u8], values: &[T]) {
    let (now, later) = std::mem::take(rest).split_at_mut(size_of_val(values));
    for (at, value) in values.iter().enumerate() {
        // SAFETY: `now` has the size of the values, which are plain integers.
        unsafe { now.as_mut_ptr().cast::<T>().add(at).write_unaligned(value.to_le()) };
    }
    *rest = later;
}
