//! Choosing the templates of a page from a sample of its words: the portable implementation.

use super::format::{word, PageWords};
use super::templates::{hash8, Templates, NO_TAG, PREFIX_MAX};
use super::work::Aligned;

/// Words in the sample: one line of every four.
pub(crate) const SAMPLES: usize = 128;
/// Which line of each group of four is sampled, by the group's number modulo four. Rotating the place keeps
/// structures whose size divides four lines from hiding from the sample.
pub(crate) const SAMPLE_PHASE: [usize; 4] = [0, 2, 1, 3];

/// The line that holds samples `8 * group ..`.
#[inline(always)]
pub(crate) const fn sample_line(group: usize) -> usize {
    4 * group + SAMPLE_PHASE[group % 4]
}

/// Counters of hash buckets, in four sets that the samples use in turn.
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) words: [Aligned<[u8; 256]>; 4],
    pub(crate) prefixes: [Aligned<[u8; 256]>; 4],
    /// The last sample of each bucket of words; meaningless for buckets without samples.
    pub(crate) word_last: Aligned<[u8; 256]>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        let empty = || [0; 4].map(|_: i32| Aligned([0; 256]));
        Counters { words: empty(), prefixes: empty(), word_last: Aligned([0; 256]) }
    }
}

/// The `limit` buckets with the highest scores, at least 1 each, the lower bucket first when equal; in ascending order
/// of bucket. Answers how many.
fn best(scores: &[u8; 256], best: &mut [u8; 16], limit: usize) -> usize {
    let mut counts = [0u16; 256];
    for &score in scores {
        counts[usize::from(score)] += 1;
    }
    // The score of the last one taken, and how many with that score are.
    let (mut least, mut room) = (255, limit);
    while least > 1 && usize::from(counts[least]) < room {
        room -= usize::from(counts[least]);
        least -= 1;
    }
    let mut len = 0;
    for (bucket, &score) in scores.iter().enumerate() {
        let score = usize::from(score);
        if score > least || (score == least && room > 0) {
            room -= usize::from(score == least);
            best[len] = bucket as u8;
            len += 1;
        }
    }
    len
}

/// Chooses the templates of `page`.
pub(crate) fn select(templates: &mut Templates, page: &PageWords) {
    let (mut word_counts, mut prefix_counts) = ([0u8; 256], [0u8; 256]);
    let (mut word_last, mut prefix_last) = ([0u16; 256], [0u16; 256]);
    let (mut small_upper, mut large_upper) = (0u8, 0u8);
    for group in 0..SAMPLES / 8 {
        let line = 8 * sample_line(group);
        for at in line..line + 8 {
            let word = word(page, at);
            if word == 0 {
                continue;
            }
            let (bucket, prefix) = (hash8(word), hash8(word >> 16));
            word_counts[bucket] += 1;
            word_last[bucket] = at as u16;
            prefix_counts[prefix] += 1;
            prefix_last[prefix] = at as u16;
            let low_clear = word as u32 == 0;
            small_upper += u8::from(low_clear && word >> 48 == 0);
            large_upper += u8::from(low_clear && word >> 48 != 0);
        }
    }
    // The bucket of the word zero is needed for tag 0.
    word_counts[0] = 0;

    // Prefix templates and what goes above them.
    let mut scores = prefix_counts.map(|count| if count >= 2 { count } else { 0 });
    let mut chosen = [0u8; 16];
    let prefixes = best(&scores, &mut chosen, PREFIX_MAX);
    templates.values = [0; 16];
    templates.prefix_tags = [NO_TAG; 256];
    let mut first = Templates::WIDE;
    first -= usize::from(large_upper >= 1);
    templates.rotated_wide = (large_upper >= 1).then_some(first as u8);
    templates.wide = 14 - first;
    first -= usize::from(small_upper >= 2);
    templates.rotated_prefix = (small_upper >= 2).then_some(first as u8);
    first -= prefixes;
    templates.prefix = 14 - templates.wide - first;
    let mut wide_count = 0;
    for (at, &bucket) in chosen[..prefixes].iter().enumerate() {
        let word = word(page, usize::from(prefix_last[usize::from(bucket)]));
        templates.values[first + at] = word >> 16 << 16;
        templates.prefix_tags[usize::from(bucket)] = (first + at) as u8;
        let count = prefix_counts[usize::from(bucket)];
        if word >> 32 != 0 && count > wide_count {
            wide_count = count;
            templates.values[Templates::WIDE] = word >> 32 << 32;
        }
    }

    // Exact templates take the tags that are left. A repeated word saves four times as much when no prefix template
    // would have caught it.
    for (bucket, (score, &count)) in scores.iter_mut().zip(&word_counts).enumerate() {
        let last = word(page, usize::from(word_last[bucket]));
        let covered = templates.prefix_tags[hash8(last >> 16)] != NO_TAG;
        *score = match count {
            0 | 1 => 0,
            _ if covered => count,
            _ => count.saturating_mul(4),
        };
    }
    templates.exact = best(&scores, &mut chosen, first - 1);
    templates.exact_tags = [0; 256];
    for (at, &bucket) in chosen[..templates.exact].iter().enumerate() {
        templates.values[1 + at] = word(page, usize::from(word_last[usize::from(bucket)]));
        templates.exact_tags[usize::from(bucket)] = 1 + at as u8;
    }
    templates.finish();
}
