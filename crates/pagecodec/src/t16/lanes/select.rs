//! Chooses the templates of a page from a sample of its words.

use std::mem::MaybeUninit;

use super::classify::Classifier;
use super::encode::append;
use super::{all, Planes};
use crate::lanes::Lanes;
use crate::t16::format::{PAGE_SIZE, VERSION};
use crate::t16::select::{sample_line, Counters, SAMPLES};
use crate::t16::templates::{Templates, HASH_MULTIPLIER, PREFIX_MAX};
use crate::t16::work::{through_memory, Aligned};

const CANDIDATES_MAX: usize = SAMPLES / 2;

/// For each set of eight: its members, one a byte from the lowest on.
static MEMBERS: Aligned<[u64; 256]> = {
    let mut table = [0; 256];
    let mut set = 0;
    while set < 256 {
        let (mut k, mut rank) = (0, 0);
        while k < 8 {
            if set >> k & 1 == 1 {
                table[set] |= k << (8 * rank);
                rank += 1;
            }
            k += 1;
        }
        set += 1;
    }
    Aligned(table)
};
const ONES: u64 = 0x0101_0101_0101_0101;

/// Offset in the page of the line that holds samples `8 * group ..`.
#[inline(always)]
fn sample_at(group: usize) -> usize {
    64 * sample_line(group)
}

#[inline(always)]
fn sample(page: &[u8; PAGE_SIZE], number: usize) -> u64 {
    static PLACES: [u16; SAMPLES] = {
        let mut places = [0; SAMPLES];
        let mut at = 0;
        while at < SAMPLES {
            places[at] = (64 * sample_line(at / 8) + 8 * (at % 8)) as u16;
            at += 1;
        }
        places
    };
    let at = usize::from(PLACES[number % SAMPLES]);
    // SAFETY: the table holds offsets of words in a page.
    u64::from_le(unsafe { page.as_ptr().add(at).cast::<u64>().read_unaligned() })
}

#[repr(C, align(64))]
struct Samples {
    word_hashes: [u8; SAMPLES],
    prefix_hashes: [u8; SAMPLES],
    /// All ones for zero words.
    zeros: [u8; SAMPLES],
    /// Numbers of words that are zero: wholly, in the lower half, in all but the third quarter.
    zero: usize,
    low_clear: usize,
    small: usize,
}

impl Samples {
    const EMPTY: Samples = Samples {
        word_hashes: [0; SAMPLES],
        prefix_hashes: [0; SAMPLES],
        zeros: [0; SAMPLES],
        zero: 0,
        low_clear: 0,
        small: 0,
    };

    /// The machine must have the instructions of `L`.
    #[inline(always)]
    unsafe fn take<L: Lanes>(&mut self, page: &[u8; PAGE_SIZE]) {
        let line = |group: usize| page.as_ptr().wrapping_add(sample_at(group));
        // SAFETY: all places are lines of the page; a block has 2 * COUNT lines of the 16, whose
        // bytes go to three arrays of 128.
        unsafe {
            for pair in 0..SAMPLES / 16 {
                let lines = [line(2 * pair), line(2 * pair + 1)];
                let at = 16 * pair;
                L::hash::<0>(lines, HASH_MULTIPLIER).store(self.word_hashes.as_mut_ptr().add(at), 0);
                L::hash::<16>(lines, HASH_MULTIPLIER).store(self.prefix_hashes.as_mut_ptr().add(at), 0);
            }
            let none = L::splat(0);
            for block in 0..SAMPLES / L::BYTES {
                let rows = std::array::from_fn(|row| {
                    L::join(|lane| {
                        let group = 2 * (L::COUNT * block + lane) + row / 4;
                        L::Lane::load(line(group).add(16 * (row % 4)), 0)
                    })
                });
                let words = Planes::<L>::of(rows).0;
                let low = words[0].or(words[1]).or(words[2].or(words[3]));
                let rest = low.or(words[6].or(words[7]));
                let zero = rest.or(words[4].or(words[5])).same(none);
                zero.store(self.zeros.as_mut_ptr().add(L::BYTES * block), 16);
                self.zero += zero.bits::<7>().count_ones() as usize;
                self.low_clear += low.same(none).bits::<7>().count_ones() as usize;
                self.small += rest.same(none).bits::<7>().count_ones() as usize;
            }
        }
    }

    /// Counts the buckets of all nonzero samples. The machine must have the instructions of `L`.
    #[inline(always)]
    unsafe fn count<L: Lanes>(&self, counters: &mut Counters) {
        // SAFETY: the caller vouches for the machine; all parts lie within the 256 bytes.
        unsafe {
            let none = L::splat(0);
            for set in counters.words.iter_mut().chain(&mut counters.prefixes) {
                for part in 0..256 / L::BYTES {
                    none.store(set.0.as_mut_ptr().add(L::BYTES * part), 16);
                }
                // Otherwise the compiler calls memset, which is slow for so little.
                through_memory(set);
            }
        }
        let words = self.word_hashes.as_chunks::<4>().0;
        let prefixes = self.prefix_hashes.as_chunks::<4>().0;
        for (at, (words, prefixes)) in words.iter().zip(prefixes).enumerate() {
            for set in 0..4 {
                counters.words[set].0[usize::from(words[set])] += 1;
                counters.word_last.0[usize::from(words[set])] = (4 * at + set) as u8;
                counters.prefixes[set].0[usize::from(prefixes[set])] += 1;
            }
        }
        // Bucket 0 of the words belongs to zero.
        for set in &mut counters.words {
            set.0[0] = 0;
        }
        let first = &mut counters.prefixes[0].0[0];
        *first = first.wrapping_sub(self.zero as u8);
    }

    /// Returns the last sample of prefix bucket `bucket` that is not zero. Marks all its samples in
    /// `covered`. The machine must have the instructions of `L`.
    #[inline(always)]
    unsafe fn last<L: Lanes>(&self, bucket: u8, covered: &mut [u8; SAMPLES]) -> usize {
        let mut set = 0u128;
        // SAFETY: the caller vouches for the machine; all parts lie within the 128 bytes.
        unsafe {
            let bucket = L::splat(bucket);
            for at in (0..SAMPLES).step_by(L::BYTES) {
                let same = L::load(self.prefix_hashes.as_ptr().add(at), 16).same(bucket);
                let present = same.without(L::load(self.zeros.as_ptr().add(at), 16));
                set |= u128::from(present.bits::<7>()) << at;
                let place = covered.as_mut_ptr().add(at);
                L::load(place, 16).or(same).store(place, 16);
            }
        }
        debug_assert!(set != 0);
        127 - set.leading_zeros() as usize
    }
}

/// Buckets with two samples or more, in ascending order, and their scores.
struct Candidates {
    counts: Aligned<[MaybeUninit<u8>; 256]>,
    buckets: [MaybeUninit<u8>; CANDIDATES_MAX + 8],
    /// Number of listed buckets. If it is not 0, all counts are set, too.
    len: usize,
}

impl Candidates {
    const EMPTY: Candidates = Candidates {
        counts: Aligned([const { MaybeUninit::uninit() }; 256]),
        buckets: [const { MaybeUninit::uninit() }; CANDIDATES_MAX + 8],
        len: 0,
    };

    /// Adds the counters and lists the candidates. The machine must have the instructions of `L`.
    #[inline(always)]
    unsafe fn list<L: Lanes>(&mut self, counters: &[Aligned<[u8; 256]>; 4]) {
        self.len = 0;
        for at in (0..256).step_by(L::BYTES) {
            // SAFETY: the caller vouches for the machine; all parts lie within the 256 bytes.
            let set = unsafe {
                let set = |set: usize| L::load(counters[set].0.as_ptr().add(at), 16);
                let sum = set(0).add(set(1)).add(set(2).add(set(3)));
                sum.store(self.counts.0.as_mut_ptr().cast::<u8>().add(at), 16);
                sum.max(L::splat(2)).same(sum).bits::<7>()
            };
            for part in 0..L::BYTES / 8 {
                let set = (set >> (8 * part)) as usize & 0xff;
                let members = MEMBERS.0[set] | ((at + 8 * part) as u64 * ONES);
                // SAFETY: at most 64 buckets have two of 128 samples, with room for eight more.
                unsafe {
                    let place = self.buckets.as_mut_ptr().add(self.len);
                    place.cast::<u64>().write_unaligned(members);
                }
                self.len += set.count_ones() as usize;
            }
        }
        assert!(self.len <= CANDIDATES_MAX);
    }

    /// Returns the listed bucket `at` and its count. Panics if there is none.
    #[inline(always)]
    fn bucket(&self, at: usize) -> (usize, u8) {
        assert!(at < self.len);
        // SAFETY: `list` has set `len` buckets, and all counts.
        unsafe {
            let bucket = usize::from(self.buckets[at].assume_init());
            (bucket, self.counts.0[bucket].assume_init())
        }
    }

    /// Keeps the `limit` candidates with the highest scores, the lower bucket if equal, in
    /// ascending order. `score` gets a bucket and its count. The machine must have the instructions
    /// of `L`.
    #[inline(always)]
    unsafe fn keep_best<L: Lanes>(&mut self, limit: usize, mut score: impl FnMut(usize, u8) -> u8) {
        if self.len <= limit {
            return;
        }
        // Keys are positive as signed numbers, which vectors compare. Keys behind the last are
        // lower than all.
        let mut keys = Aligned([0i16; CANDIDATES_MAX]);
        for (at, key) in keys.0.iter_mut().enumerate().take(self.len) {
            let (bucket, count) = self.bucket(at);
            *key = i16::from(score(bucket, count)) << 7 | (127 - at as i16);
        }
        // SAFETY: the caller's promise.
        unsafe {
            match self.len.div_ceil(16) {
                1 => self.keep::<L, 16>(&keys, limit),
                2 => self.keep::<L, 32>(&keys, limit),
                _ => self.keep::<L, CANDIDATES_MAX>(&keys, limit),
            }
        }
    }

    /// [`Candidates::keep_best`] of at most `N` with keys. Needs the instructions of `L`.
    #[inline(always)]
    unsafe fn keep<L: Lanes, const N: usize>(&mut self, keys: &Aligned<[i16; CANDIDATES_MAX]>, limit: usize) {
        let words = L::BYTES / 2;
        let mut ranks = [0i16; N];
        // SAFETY: the caller vouches for the machine; all parts lie within the arrays.
        unsafe {
            // A candidate's rank is the number of higher keys. At most 64 / 8 registers.
            let mut counts = [L::splat(0); 8];
            for key in &keys.0[..self.len] {
                let other = L::splat16(*key);
                for (part, count) in counts.iter_mut().enumerate().take(N / words) {
                    let own = L::load(keys.0.as_ptr().add(words * part).cast(), 16);
                    *count = count.sub16(own.less16(other));
                }
            }
            for (part, counts) in counts.iter().enumerate().take(N / words) {
                counts.store(ranks.as_mut_ptr().add(words * part).cast(), 16);
            }
        }
        let mut kept = 0;
        for (at, &rank) in ranks[..self.len].iter().enumerate() {
            self.buckets[kept] = self.buckets[at];
            kept += usize::from(rank < limit as i16);
        }
        self.len = kept;
    }
}

/// Chooses the templates of `page`, like the portable one, but leaves the tables from bucket to tag
/// unset, because lanes do not use them. The machine must have the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn select<L: Lanes>(templates: &mut Templates, page: &[u8; PAGE_SIZE]) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut samples = Samples::EMPTY;
        samples.take::<L>(page);
        let counters = &mut templates.counters;
        samples.count::<L>(counters);
        let (small_upper, large_upper) = (samples.small - samples.zero, samples.low_clear - samples.small);

        // Prefix templates and the templates above them.
        let mut candidates = Candidates::EMPTY;
        candidates.list::<L>(&counters.prefixes);
        candidates.keep_best::<L>(PREFIX_MAX, |_, count| count);
        let prefixes = candidates.len;
        let mut first = Templates::WIDE;
        first -= usize::from(large_upper >= 1);
        templates.rotated_wide = (large_upper >= 1).then_some(first as u8);
        templates.wide = 14 - first;
        first -= usize::from(small_upper >= 2);
        templates.rotated_prefix = (small_upper >= 2).then_some(first as u8);
        first -= prefixes;
        templates.prefix = 14 - templates.wide - first;
        templates.values = [0; 16];
        let mut covered = [0u8; SAMPLES];
        let (mut wide, mut wide_count) = (0, 0);
        for at in 0..prefixes {
            let (bucket, count) = candidates.bucket(at);
            let word = sample(page, samples.last::<L>(bucket as u8, &mut covered));
            templates.values[(first + at) % 16] = word >> 16 << 16;
            let better = word >> 32 != 0 && count > wide_count;
            wide = if better { word >> 32 << 32 } else { wide };
            wide_count = if better { count } else { wide_count };
        }
        templates.values[Templates::WIDE] = wide;

        // Exact templates take the remaining tags. A repeated word saves four times as much if no
        // prefix template would have caught it.
        candidates.list::<L>(&counters.words);
        let word_last = &counters.word_last.0;
        candidates.keep_best::<L>(first - 1, |bucket, count| {
            let covered = covered[usize::from(word_last[bucket]) % SAMPLES];
            // A multiplication instead of a branch: 1 or 4.
            count.saturating_mul(4 - 3 * (covered & 1))
        });
        templates.exact = candidates.len;
        for at in 0..templates.exact {
            let last = word_last[candidates.bucket(at).0];
            templates.values[(1 + at) % 16] = sample(page, usize::from(last));
        }
    }
}

/// Computes the header fields; see [`Templates::finish`]. Needs the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn describe<L: Lanes>(
    templates: &mut Templates,
    classifier: &Classifier<'_, L>,
    rotates: bool,
) {
    let first = templates.prefix_first();
    let exact = (2u32 << templates.exact) - 2;
    let coded = 0x3fff & !((1u32 << first) - 1);
    let mut kinds = Aligned([0u8; 16]);
    // SAFETY: the caller vouches for the machine; 16 bytes.
    unsafe {
        let planes = classifier.planes.first_lane();
        let mut indices = L::Lane::splat(0);
        let none = planes.0[4].or(planes.0[5]).or(planes.0[6].or(planes.0[7])).same(L::Lane::splat(0));
        let mut left = coded & !none.bits::<7>();
        templates.highs_len = 0;
        while left != 0 {
            let tag = left.trailing_zeros();
            templates.highs[templates.highs_len % 8] = (templates.values[tag as usize % 16] >> 32) as u32;
            templates.highs_len += 1;
            let tag = L::Lane::splat(tag as u8);
            let same: [L::Lane; 4] =
                std::array::from_fn(|byte| planes.0[4 + byte].same(planes.0[4 + byte].shuffle(tag)));
            let same = all(same);
            indices = indices.or(same.and(L::Lane::splat(templates.highs_len as u8)));
            left &= !same.bits::<7>();
        }
        indices.store(kinds.0.as_mut_ptr(), 0);
        // Values below the first coded tag may have the same halves.
        for (tag, kind) in kinds.0.iter_mut().enumerate() {
            *kind &= 0u8.wrapping_sub((coded >> tag & 1) as u8);
        }

        // Codes of the exact templates: those of words without exact templates.
        let values = classifier.planes;
        let codes = if rotates {
            classifier.tags::<true, false>(values)
        } else {
            classifier.tags::<false, false>(values)
        };
        let codes = codes.lane(0);
        let raw = codes.same(L::Lane::splat(15)).bits::<7>() & exact;
        let at_least = |tag: usize| codes.max(L::Lane::splat(tag as u8)).same(codes).bits::<7>();
        let a = at_least(first) & exact & !raw;
        let b = at_least(templates.wide_first()) & exact & !raw;
        let mut halves = [planes.0[0], planes.0[1], planes.0[2], planes.0[3]];
        for tag in [templates.rotated_prefix, templates.rotated_wide].into_iter().flatten() {
            kinds.0[usize::from(tag) % 16] |= 8;
            let rotated = codes.same(L::Lane::splat(tag));
            for (byte, half) in halves.iter_mut().enumerate() {
                *half = planes.0[4 + byte].choose(rotated, *half);
            }
        }
        let append_both = |low: L::Lane, high: L::Lane, set: u32, to: &mut [u16; 16]| {
            let (first, second) = low.zip8(high);
            let len = append(first, set, to.as_mut_ptr());
            // At most eight precede these.
            len + append(second, set >> 8, to.as_mut_ptr().add(len))
        };
        templates.a_len = append_both(halves[0], halves[1], a, &mut templates.a);
        templates.b_len = append_both(halves[2], halves[3], b, &mut templates.b);
        let mut codes_list = [0u8; 16];
        codes.store(codes_list.as_mut_ptr(), 0);
        templates.raw_len = 0;
        for tag in 1..=templates.exact {
            kinds.0[tag % 16] = codes_list[tag % 16];
            templates.raw[templates.raw_len % 16] = templates.values[tag % 16];
            templates.raw_len += (raw >> tag & 1) as usize;
        }
        let mut nibbles = [0u8; 8];
        L::Lane::load(kinds.0.as_ptr(), 0).store_nibbles(nibbles.as_mut_ptr());
        templates.kinds = u64::from_le_bytes(nibbles)
            | templates.exact as u64
            | (templates.prefix as u64) << 56
            | (templates.wide as u64) << 60
            | VERSION << 62;
    }
}
