//! Chooses the templates of a page from a sample of its words: the portable implementation.

use super::format::{word, PageWords};
use super::templates::{hash8, Templates, NO_TAG, PREFIX_MAX};
use super::work::Aligned;

/// Words in the sample: one line of every four.
pub(crate) const SAMPLES: usize = 128;
/// The sampled line of each group of four, by the group's number modulo four. Rotation keeps
/// structures whose size divides four lines from hiding from the sample.
pub(crate) const SAMPLE_PHASE: [usize; 4] = [0, 2, 1, 3];

#[inline(always)]
pub(crate) const fn sample_line(group: usize) -> usize {
    4 * group + SAMPLE_PHASE[group % 4]
}

/// Counters of hash buckets, in four sets that the samples use in turn.
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) words: [Aligned<[u8; 256]>; 4],
    pub(crate) prefixes: [Aligned<[u8; 256]>; 4],
    /// The last sample of each bucket; meaningless for buckets without samples.
    pub(crate) word_last: Aligned<[u8; 256]>,
    /// The same for prefixes, with a second half for zero words.
    pub(crate) prefix_last: Aligned<[u8; 512]>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        let empty = || [0; 4].map(|_: i32| Aligned([0; 256]));
        Counters {
            words: empty(),
            prefixes: empty(),
            word_last: Aligned([0; 256]),
            prefix_last: Aligned([0; 512]),
        }
    }
}

/// Buckets of a table that have a score, in ascending order, with the scores.
struct Candidates {
    buckets: [u8; 64],
    scores: [u8; 64],
    len: usize,
}

impl Candidates {
    /// Lists buckets of two or more samples, at most 64 of 128. `score` gets bucket and count.
    #[inline(always)]
    fn new(counts: &[u8; 256], mut score: impl FnMut(u8, u8) -> u8) -> Candidates {
        let mut candidates = Candidates { buckets: [0; 64], scores: [0; 64], len: 0 };
        for (quarter, counts) in counts.as_chunks::<64>().0.iter().enumerate() {
            let mut set = 0u64;
            for (eighth, counts) in counts.as_chunks::<8>().0.iter().enumerate() {
                // Bit 7 of the bytes that are 2 to 128, then these bits side by side.
                let counts = u64::from_le_bytes(*counts);
                let bits = (counts | (counts + 0x7e7e_7e7e_7e7e_7e7e)) >> 7 & 0x0101_0101_0101_0101;
                set |= (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * eighth);
            }
            while set != 0 {
                let bit = set.trailing_zeros() as usize;
                set &= set - 1;
                let bucket = (64 * quarter + bit) as u8;
                let at = candidates.len % 64;
                candidates.buckets[at] = bucket;
                candidates.scores[at] = score(bucket, counts[bit]);
                candidates.len += 1;
            }
        }
        debug_assert!(candidates.len <= 64);
        candidates
    }

    /// Keeps the `limit` candidates with the highest scores, the lower bucket if equal.
    #[inline(always)]
    fn keep_best(&mut self, limit: usize) {
        if self.len <= limit {
            return;
        }
        // Keys are positive as signed numbers, which SSE2 compares, and below the first `least`.
        let mut keys = [0i16; 64];
        for (at, (key, &score)) in keys.iter_mut().zip(&self.scores).enumerate().take(self.len) {
            *key = i16::from(score) << 7 | (126 - at as i16);
        }
        let keys = keys[..self.len.next_multiple_of(16)].as_chunks::<16>().0;
        let mut least = i16::MAX;
        for _ in 0..limit {
            let mut highest = [0i16; 16];
            for keys in keys {
                for (highest, &key) in highest.iter_mut().zip(keys) {
                    *highest = (*highest).max(if key < least { key } else { 0 });
                }
            }
            least = highest.into_iter().fold(0, i16::max);
        }
        let mut len = 0;
        for (at, &key) in keys.as_flattened().iter().enumerate().take(self.len) {
            self.buckets[len] = self.buckets[at];
            self.scores[len] = self.scores[at];
            len += usize::from(key >= least);
        }
        self.len = len;
    }
}

#[inline(always)]
pub(crate) fn select(templates: &mut Templates, page: &PageWords) {
    let counters = &mut templates.counters;
    for set in 0..4 {
        counters.words[set].0.fill(0);
        counters.prefixes[set].0.fill(0);
    }
    let (mut zeros, mut low_clear, mut small) = (0u8, 0u8, 0u8);
    for group in 0..SAMPLES / 8 {
        let line = 8 * sample_line(group);
        for k in 0..8 {
            let at = line + k;
            let word = word(page, at);
            let (bucket, prefix) = (hash8(word), hash8(word >> 16));
            counters.words[k % 4].0[bucket] += 1;
            counters.word_last.0[bucket] = (8 * group + k) as u8;
            counters.prefixes[k % 4].0[prefix] += 1;
            // Zero has an entry of its own, so that it never becomes its bucket's prefix.
            let entry = prefix | usize::from(word == 0) << 8;
            counters.prefix_last.0[entry] = (8 * group + k) as u8;
            zeros += u8::from(word == 0);
            low_clear += u8::from(word as u32 == 0);
            small += u8::from(word & 0xffff_0000_ffff_ffff == 0);
        }
    }
    let merge = |sets: &[Aligned<[u8; 256]>; 4]| {
        let mut sum = [0u8; 256];
        for (at, sum) in sum.iter_mut().enumerate() {
            *sum = sets[0].0[at] + sets[1].0[at] + sets[2].0[at] + sets[3].0[at];
        }
        sum
    };
    let (mut word_counts, mut prefix_counts) = (merge(&counters.words), merge(&counters.prefixes));
    // Zero words do not count, and tag 0 needs their bucket.
    word_counts[0] = 0;
    prefix_counts[0] -= zeros;
    let (small_upper, large_upper) = (small - zeros, low_clear - small);
    let sample = |number: u8| {
        let number = usize::from(number) % SAMPLES;
        word(page, 8 * sample_line(number / 8) + number % 8)
    };

    // Prefix templates and the templates above them.
    let mut chosen = Candidates::new(&prefix_counts, |_, count| count);
    chosen.keep_best(PREFIX_MAX);
    let prefixes = chosen.len;
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
    let (mut wide, mut wide_count) = (0, 0);
    for at in 0..prefixes {
        let (bucket, count) = (usize::from(chosen.buckets[at]), chosen.scores[at]);
        let word = sample(templates.counters.prefix_last.0[bucket]);
        templates.values[(first + at) % 16] = word >> 16 << 16;
        templates.prefix_tags[bucket] = (first + at) as u8;
        let better = word >> 32 != 0 && count > wide_count;
        wide = if better { word >> 32 << 32 } else { wide };
        wide_count = if better { count } else { wide_count };
    }
    templates.values[Templates::WIDE] = wide;

    // Exact templates take the remaining tags. A repeated word saves four times as much if no
    // prefix template would have caught it.
    let word_last = &templates.counters.word_last.0;
    let prefix_tags = &templates.prefix_tags;
    let mut chosen = Candidates::new(&word_counts, |bucket, count| {
        let last = sample(word_last[usize::from(bucket)]);
        let covered = prefix_tags[hash8(last >> 16)] != NO_TAG;
        // A multiplication instead of a branch: 1 or 4.
        count.saturating_mul(1 + 3 * u8::from(!covered))
    });
    chosen.keep_best(first - 1);
    templates.exact = chosen.len;
    templates.exact_tags = [0; 256];
    for (at, &bucket) in chosen.buckets[..chosen.len].iter().enumerate() {
        templates.values[(1 + at) % 16] = sample(templates.counters.word_last.0[usize::from(bucket)]);
        templates.exact_tags[usize::from(bucket)] = 1 + at as u8;
    }
    templates.finish();
}
