//! Choosing the templates of a page from a sample of its words: the portable implementation.

use super::format::{word, PageWords};
use super::templates::{hash8, Templates, NO_TAG, PREFIX_MAX};

/// Words in the sample: one line of every four.
pub(crate) const SAMPLES: usize = 128;
/// Which line of each group of four is sampled, by the group's number modulo four. Rotating the place keeps
/// structures whose size divides four lines from hiding from the sample.
pub(crate) const SAMPLE_PHASE: [usize; 4] = [0, 2, 1, 3];

/// The line that holds samples `8 * group ..`.
#[inline(always)]
pub(crate) fn sample_line(group: usize) -> usize {
    4 * group + SAMPLE_PHASE[group % 4]
}

/// One more than the highest score: count 128 times weight 8.
const SCORES: usize = 1025;

/// Writes the `limit` best of `scores` (bucket by bucket; zero never counts), best first, lower bucket first when
/// equal, into `best`; answers how many.
fn best(scores: &[u16; 256], best: &mut [u8], limit: usize) -> usize {
    let mut len = 0;
    // Insertion into a short sorted list: few buckets have a score at all.
    let mut kept = [0u16; 16];
    for (bucket, &score) in scores.iter().enumerate() {
        if score == 0 || (len == limit && (limit == 0 || kept[len - 1] >= score)) {
            continue;
        }
        debug_assert!((score as usize) < SCORES);
        let mut at = if len < limit { len } else { len - 1 };
        while at > 0 && kept[at - 1] < score {
            (kept[at], best[at]) = (kept[at - 1], best[at - 1]);
            at -= 1;
        }
        (kept[at], best[at]) = (score, bucket as u8);
        len = (len + 1).min(limit);
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

    // Prefix templates and what goes above them, from tag 13 downwards.
    let mut scores = [0u16; 256];
    for (score, &count) in scores.iter_mut().zip(&prefix_counts) {
        *score = if count >= 2 { u16::from(count) } else { 0 };
    }
    let mut ranked = [0u8; 16];
    let prefixes = best(&scores, &mut ranked, PREFIX_MAX);
    templates.values = [0; 16];
    templates.prefix_tags = [NO_TAG; 256];
    let mut tag = Templates::WIDE;
    templates.rotated_wide = (large_upper >= 1).then(|| {
        tag -= 1;
        tag as u8
    });
    templates.wide = 14 - tag;
    templates.rotated_prefix = (small_upper >= 2).then(|| {
        tag -= 1;
        tag as u8
    });
    for &bucket in &ranked[..prefixes] {
        tag -= 1;
        let word = word(page, prefix_last[bucket as usize] as usize);
        templates.values[tag] = word >> 16 << 16;
        templates.prefix_tags[bucket as usize] = tag as u8;
        if templates.values[Templates::WIDE] == 0 {
            templates.values[Templates::WIDE] = word >> 32 << 32;
        }
    }
    templates.prefix = 14 - templates.wide - tag;

    // Exact templates take the tags that are left. A repeated word saves six bytes more each time when no prefix
    // template would have caught it.
    for (bucket, (score, &count)) in scores.iter_mut().zip(&word_counts).enumerate() {
        let last = word(page, word_last[bucket] as usize);
        let covered = templates.prefix_tags[hash8(last >> 16)] != NO_TAG;
        let weight = if covered { 2 } else { 8 };
        *score = if count >= 2 { u16::from(count) * weight } else { 0 };
    }
    templates.exact = best(&scores, &mut ranked, tag - 1);
    templates.exact_tags = [0; 256];
    for (rank, &bucket) in ranked[..templates.exact].iter().enumerate() {
        templates.values[1 + rank] = word(page, word_last[bucket as usize] as usize);
        templates.exact_tags[bucket as usize] = 1 + rank as u8;
    }
    templates.finish();
}
