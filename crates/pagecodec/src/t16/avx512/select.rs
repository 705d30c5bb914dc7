//! Chooses the templates. Only the counting of hash buckets is scalar.

use std::arch::x86_64::*;

use super::{
    choose, low_bits, spread_counting, Aligned, Table, COUNTING, EVEN_DWORDS, LINE_ORDER, ODD_DWORDS,
};
use crate::t16::format::{PAGE_SIZE, VERSION};
use crate::t16::select::{sample_line, Counters, SAMPLES};
use crate::t16::templates::{Templates, HASH_MULTIPLIER, NO_TAG, PREFIX_MAX};
use crate::t16::work::through_memory;

/// 255, 254 .. for 32 candidates: of two with equal scores the first has the higher key.
static PREFER_FIRST: Aligned<[u16; 64]> = Aligned({
    let mut values = spread_counting!(u16, 64, 1, 0);
    let mut at = 0;
    while at < 64 {
        values[at] = 255 - values[at];
        at += 1;
    }
    values
});

static SAMPLE_AT: [u16; SAMPLES] = {
    let mut offsets = [0; SAMPLES];
    let mut at = 0;
    while at < SAMPLES {
        offsets[at] = (64 * sample_line(at / 8) + 8 * (at % 8)) as u16;
        at += 1;
    }
    offsets
};

/// Buckets that may get a template, in ascending order, as sets of 64.
struct Candidates {
    sets: [u64; 4],
    /// Index of the first of each set.
    offsets: [usize; 4],
    len: usize,
}

impl Candidates {
    #[inline]
    #[target_feature(enable = "popcnt")]
    fn new(sets: [u64; 4]) -> Candidates {
        let mut len = 0;
        let offsets = sets.map(|set| {
            let offset = len;
            len += set.count_ones() as usize;
            offset
        });
        // Each has two of 128 samples.
        debug_assert!(len <= 64);
        Candidates { sets, offsets, len }
    }

    /// Picks the candidates' entries of a table of 256 bytes, followed by zeros.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    fn pick(&self, table: &[__m512i; 4]) -> __m512i {
        let counting = counting();
        let mut picked = _mm512_maskz_compress_epi8(self.sets[0], table[0]);
        for (part, table) in table.iter().enumerate().skip(1) {
            let compressed = _mm512_maskz_compress_epi8(self.sets[part], *table);
            let indices = _mm512_sub_epi8(counting, _mm512_set1_epi8(self.offsets[part] as i8));
            let behind = u64::MAX.checked_shl(self.offsets[part] as u32).unwrap_or(0);
            picked = _mm512_mask_permutexvar_epi8(picked, behind, indices, compressed);
        }
        picked
    }

    /// Returns the `limit` candidates with the highest scores, as a set of indices.
    ///
    /// Has no features of its own, so that it can always be inlined: a call would save and clear
    /// all registers. The caller must have the features of this module.
    #[inline(always)]
    unsafe fn best(&self, scores: __m512i, limit: usize) -> u64 {
        // SAFETY: the caller's promise; 64 bytes, aligned.
        unsafe {
            if self.len > 32 {
                return self.best_of_many(scores, limit);
            }
            let low = keys(scores, 0);
            let mut listed = Aligned([0u16; 32]);
            _mm512_store_si512(listed.0.as_mut_ptr().cast(), low);
            // A candidate's rank is the number of higher keys. Keys behind the last are the lowest.
            let one = _mm512_set1_epi16(1);
            let mut ranks = [_mm512_setzero_si512(); 2];
            for start in [0, 16] {
                if start != 0 && self.len <= start {
                    break;
                }
                for (at, key) in listed.0[start..start + 16].iter().enumerate() {
                    let higher = _mm512_cmplt_epu16_mask(low, _mm512_set1_epi16(*key as i16));
                    ranks[at % 2] = _mm512_mask_add_epi16(ranks[at % 2], higher, ranks[at % 2], one);
                }
            }
            let ranks = _mm512_add_epi16(ranks[0], ranks[1]);
            u64::from(_mm512_cmplt_epu16_mask(ranks, _mm512_set1_epi16(limit as i16))) & low_bits(self.len)
        }
    }

    /// The same for more than 32 candidates, which are rare.
    #[cold]
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,bmi2")]
    fn best_of_many(&self, scores: __m512i, limit: usize) -> u64 {
        let (low, high) = (keys(scores, 0), keys(scores, 1));
        let mut listed = Aligned([0u16; 64]);
        // SAFETY: two times 64 bytes of 128, aligned.
        unsafe {
            _mm512_store_si512(listed.0.as_mut_ptr().cast(), low);
            _mm512_store_si512(listed.0.as_mut_ptr().add(32).cast(), high);
        }
        let limit = _mm512_set1_epi16(limit as i16);
        let one = _mm512_set1_epi16(1);
        let (mut low_ranks, mut high_ranks) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        for key in &listed.0[..self.len] {
            let key = _mm512_set1_epi16(*key as i16);
            low_ranks = _mm512_mask_add_epi16(low_ranks, _mm512_cmplt_epu16_mask(low, key), low_ranks, one);
            high_ranks =
                _mm512_mask_add_epi16(high_ranks, _mm512_cmplt_epu16_mask(high, key), high_ranks, one);
        }
        let best = u64::from(_mm512_cmplt_epu16_mask(low_ranks, limit))
            | u64::from(_mm512_cmplt_epu16_mask(high_ranks, limit)) << 32;
        best & (low_bits(self.len - 1) << 1 | 1)
    }

    /// Returns a byte table: `first`, `first + 1` .. at the chosen buckets, `none` elsewhere.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    fn tags(&self, chosen: u64, first: usize, none: u8) -> Table {
        let mut tag = first;
        let none = _mm512_set1_epi8(none as i8);
        Table(std::array::from_fn(|part| {
            let chosen = chosen.checked_shr(self.offsets[part] as u32).unwrap_or(0);
            let buckets = _pdep_u64(chosen, self.sets[part]);
            let tags = _mm512_add_epi8(counting(), _mm512_set1_epi8(tag as i8));
            tag += buckets.count_ones() as usize;
            _mm512_mask_expand_epi8(none, buckets, tags)
        }))
    }
}

/// Sort keys of candidates `32 * part ..`: score first, then the lower bucket.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn keys(scores: __m512i, part: usize) -> __m512i {
    let scores =
        if part == 0 { _mm512_castsi512_si256(scores) } else { _mm512_extracti64x4_epi64::<1>(scores) };
    // SAFETY: two times 64 bytes of 128, aligned.
    let prefer = unsafe { _mm512_load_si512(PREFER_FIRST.0.as_ptr().add(32 * part).cast()) };
    _mm512_or_si512(_mm512_slli_epi16::<8>(_mm512_cvtepu8_epi16(scores)), prefer)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn counting() -> __m512i {
    // SAFETY: 64 bytes, aligned.
    unsafe { _mm512_load_si512(COUNTING.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn merge(counters: &[Aligned<[u8; 256]>; 4]) -> [__m512i; 4] {
    std::array::from_fn(|part| {
        // SAFETY: four times 64 bytes of 256, aligned.
        let set = |set: usize| unsafe { _mm512_load_si512(counters[set].0.as_ptr().add(64 * part).cast()) };
        _mm512_add_epi8(_mm512_add_epi8(set(0), set(1)), _mm512_add_epi8(set(2), set(3)))
    })
}

#[inline(always)]
fn sample(page: &[u8; PAGE_SIZE], number: usize) -> u64 {
    let at = usize::from(SAMPLE_AT[number % SAMPLES]);
    // SAFETY: the table holds offsets of words in a page.
    unsafe { page.as_ptr().add(at).cast::<u64>().read_unaligned() }
}

/// Chooses the templates of `page`, like the portable one.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512ifma,bmi1,bmi2,lzcnt,popcnt"
)]
pub(super) fn select(templates: &mut Templates, page: &[u8; PAGE_SIZE]) {
    let zero = _mm512_setzero_si512();
    let multiplier = _mm512_set1_epi64(HASH_MULTIPLIER as i64);
    let take = _mm512_set1_epi8(44);
    let ones = _mm512_set1_epi8(-1);
    let one = _mm512_set1_epi64(1);
    let low_half = _mm512_set1_epi64(u32::MAX as i64);
    let upper_limit = _mm512_set1_epi64(1 << 48);
    // SAFETY: 64 bytes, aligned.
    let line_order = unsafe { _mm512_load_si512(LINE_ORDER.0.as_ptr().cast()) };

    let (mut word_hashes, mut prefix_hashes) = ([zero; 2], [zero; 2]);
    let mut present = [0u64; 2];
    let (mut low_clear, mut small, mut zeros) = (zero, zero, zero);
    for part in 0..2 {
        let (mut word_hash, mut prefix_hash, mut nonzero) = (zero, zero, zero);
        for line in 0..8 {
            // SAFETY: a line of the page.
            let words =
                unsafe { _mm512_loadu_si512(page.as_ptr().add(64 * sample_line(8 * part + line)).cast()) };
            let place = 0x0101_0101_0101_0101 << line;
            let byte = _mm512_set1_epi64(0xff << (8 * line));
            let product = _mm512_madd52lo_epu64(zero, words, multiplier);
            word_hash = _mm512_mask_multishift_epi64_epi8(word_hash, place, take, product);
            let product = _mm512_madd52lo_epu64(zero, _mm512_srli_epi64::<16>(words), multiplier);
            prefix_hash = _mm512_mask_multishift_epi64_epi8(prefix_hash, place, take, product);
            let is_zero = _mm512_testn_epi64_mask(words, words);
            nonzero = choose(nonzero, !is_zero, byte, ones);
            let is_low_clear = _mm512_testn_epi64_mask(words, low_half);
            let is_small = _mm512_mask_cmplt_epu64_mask(is_low_clear, words, upper_limit);
            zeros = _mm512_mask_add_epi64(zeros, is_zero, zeros, one);
            low_clear = _mm512_mask_add_epi64(low_clear, is_low_clear, low_clear, one);
            small = _mm512_mask_add_epi64(small, is_small, small, one);
        }
        word_hashes[part] = _mm512_permutexvar_epi8(line_order, word_hash);
        prefix_hashes[part] = _mm512_permutexvar_epi8(line_order, prefix_hash);
        present[part] = _mm512_movepi8_mask(_mm512_permutexvar_epi8(line_order, nonzero));
    }
    // All three in one sum: each is at most 128.
    let sums = _mm512_or_si512(
        zeros,
        _mm512_or_si512(_mm512_slli_epi64::<16>(low_clear), _mm512_slli_epi64::<32>(small)),
    );
    let sums = _mm512_reduce_add_epi64(sums) as u64;
    let (zeros, low_clear, small) = (sums & 0xffff, sums >> 16 & 0xffff, sums >> 32);
    let (small_upper, large_upper) = (small - zeros, low_clear - small);

    // Counts into four sets in turn, because equal words often follow each other, and reading a
    // counter that was just written takes eight cycles.
    let counters = &mut templates.counters;
    for set in 0..4 {
        for part in 0..4 {
            // SAFETY: four times 64 bytes of 256, aligned.
            unsafe {
                _mm512_store_si512(counters.words[set].0.as_mut_ptr().add(64 * part).cast(), zero);
                _mm512_store_si512(counters.prefixes[set].0.as_mut_ptr().add(64 * part).cast(), zero);
            }
        }
        // Otherwise the compiler calls memset, which starts microcode for 2 KiB.
        through_memory(counters);
    }
    let mut hashes = Aligned([[0u8; SAMPLES]; 2]);
    for part in 0..2 {
        // SAFETY: two times 64 bytes of 128, aligned.
        unsafe {
            _mm512_store_si512(hashes.0[0].as_mut_ptr().add(64 * part).cast(), word_hashes[part]);
            _mm512_store_si512(hashes.0[1].as_mut_ptr().add(64 * part).cast(), prefix_hashes[part]);
        }
    }
    through_memory(&mut hashes);
    count(counters, &hashes.0[0], &hashes.0[1]);
    let mut word_counts = merge(&counters.words);
    let mut prefix_counts = merge(&counters.prefixes);
    // Zero words do not count, and tag 0 needs their bucket.
    word_counts[0] = _mm512_mask_mov_epi8(word_counts[0], 1, zero);
    prefix_counts[0] =
        _mm512_mask_sub_epi8(prefix_counts[0], 1, prefix_counts[0], _mm512_set1_epi8(zeros as i8));

    let least = _mm512_set1_epi8(2);
    let candidates = Candidates::new(prefix_counts.map(|counts| _mm512_cmpge_epu8_mask(counts, least)));
    let counts = candidates.pick(&prefix_counts);
    // SAFETY: this function has the features.
    let chosen = unsafe { candidates.best(counts, PREFIX_MAX) };
    let prefixes = chosen.count_ones() as usize;
    let mut first = Templates::WIDE;
    first -= usize::from(large_upper >= 1);
    templates.rotated_wide = (large_upper >= 1).then_some(first as u8);
    templates.wide = 14 - first;
    first -= usize::from(small_upper >= 2);
    templates.rotated_prefix = (small_upper >= 2).then_some(first as u8);
    first -= prefixes;
    templates.prefix = 14 - templates.wide - first;
    let prefix_tags = candidates.tags(chosen, first, NO_TAG);
    prefix_tags.store(&mut templates.prefix_tags);

    let buckets: [__m512i; 4] =
        std::array::from_fn(|part| _mm512_add_epi8(counting(), _mm512_set1_epi8((64 * part) as i8)));
    let buckets = _mm512_maskz_compress_epi8(chosen, candidates.pick(&buckets));
    let counts = _mm512_maskz_compress_epi8(chosen, counts);
    let mut listed = Aligned([[0u8; 16]; 2]);
    // SAFETY: two times 16 bytes.
    unsafe {
        _mm_store_si128(listed.0[0].as_mut_ptr().cast(), _mm512_castsi512_si128(buckets));
        _mm_store_si128(listed.0[1].as_mut_ptr().cast(), _mm512_castsi512_si128(counts));
    }
    let values = &mut templates.values;
    // SAFETY: two times eight of 16 values.
    unsafe {
        _mm512_store_si512(values.as_mut_ptr().cast(), zero);
        _mm512_store_si512(values.as_mut_ptr().add(8).cast(), zero);
    }
    let (mut wide, mut wide_count) = (0, 0);
    for at in 0..prefixes {
        let bucket = _mm512_set1_epi8(listed.0[0][at] as i8);
        let low = _mm512_mask_cmpeq_epi8_mask(present[0], prefix_hashes[0], bucket);
        let high = _mm512_mask_cmpeq_epi8_mask(present[1], prefix_hashes[1], bucket);
        let last = if high != 0 { 127 - high.leading_zeros() } else { 63 - low.leading_zeros() };
        let word = sample(page, last as usize);
        values[first + at] = word >> 16 << 16;
        let count = listed.0[1][at];
        let better = count > wide_count && word >> 32 != 0;
        wide = if better { word >> 32 << 32 } else { wide };
        wide_count = if better { count } else { wide_count };
    }
    values[Templates::WIDE] = wide;

    let covered = [0, 1].map(|part| {
        let tags = prefix_tags.look_up(prefix_hashes[part]);
        _mm512_movm_epi8(_mm512_cmpneq_epi8_mask(tags, _mm512_set1_epi8(NO_TAG as i8)))
    });
    // SAFETY: four times 64 bytes of 256, aligned.
    let last: [__m512i; 4] = std::array::from_fn(|part| unsafe {
        _mm512_load_si512(counters.word_last.0.as_ptr().add(64 * part).cast())
    });
    let candidates = Candidates::new(word_counts.map(|counts| _mm512_cmpge_epu8_mask(counts, least)));
    let scores: [__m512i; 4] = std::array::from_fn(|part| {
        let once = word_counts[part];
        let twice = _mm512_adds_epu8(once, once);
        let covered = _mm512_permutex2var_epi8(covered[0], last[part], covered[1]);
        _mm512_mask_mov_epi8(_mm512_adds_epu8(twice, twice), _mm512_movepi8_mask(covered), once)
    });
    // SAFETY: this function has the features.
    let chosen = unsafe { candidates.best(candidates.pick(&scores), first - 1) };
    templates.exact = chosen.count_ones() as usize;
    candidates.tags(chosen, 1, 0).store(&mut templates.exact_tags);
    let last = _mm512_maskz_compress_epi8(chosen, candidates.pick(&last));
    // SAFETY: 16 bytes, aligned.
    unsafe { _mm_store_si128(listed.0[0].as_mut_ptr().cast(), _mm512_castsi512_si128(last)) };
    for (value, &last) in values[1..].iter_mut().zip(&listed.0[0]).take(templates.exact) {
        *value = sample(page, usize::from(last));
    }
    describe(templates, &prefix_tags);
}

#[inline]
fn count(counters: &mut Counters, word_hashes: &[u8; SAMPLES], prefix_hashes: &[u8; SAMPLES]) {
    for (at, (word, prefix)) in word_hashes.chunks_exact(4).zip(prefix_hashes.chunks_exact(4)).enumerate() {
        for set in 0..4 {
            counters.words[set].0[usize::from(word[set])] += 1;
            counters.word_last.0[usize::from(word[set])] = (4 * at + set) as u8;
            counters.prefixes[set].0[usize::from(prefix[set])] += 1;
        }
    }
}

/// Computes the header fields; see [`Templates::finish`].
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512ifma,bmi1,bmi2,lzcnt,popcnt"
)]
fn describe(templates: &mut Templates, prefix_tags: &Table) {
    let first = templates.prefix_first();
    let coded = 0x3fff & !low_bits(first) as u16;
    let exact = low_bits(templates.exact + 1) as u16 & !1;
    // SAFETY: two times eight of 16 values; 64 bytes each.
    let (low, high, even_dwords, odd_dwords) = unsafe {
        (
            _mm512_load_si512(templates.values.as_ptr().cast()),
            _mm512_load_si512(templates.values.as_ptr().add(8).cast()),
            _mm512_load_si512(EVEN_DWORDS.0.as_ptr().cast()),
            _mm512_load_si512(ODD_DWORDS.0.as_ptr().cast()),
        )
    };

    let highs = _mm512_permutex2var_epi32(low, odd_dwords, high);
    let mut kinds = _mm512_setzero_si512();
    let mut left = _mm512_mask_test_epi32_mask(coded, highs, highs);
    templates.highs_len = 0;
    while left != 0 {
        let tag = left.trailing_zeros() as usize;
        let value = (templates.values[tag % 16] >> 32) as u32;
        templates.highs[templates.highs_len % 8] = value;
        templates.highs_len += 1;
        let same = _mm512_mask_cmpeq_epi32_mask(left, highs, _mm512_set1_epi32(value as i32));
        kinds = _mm512_mask_set1_epi32(kinds, same, templates.highs_len as i32);
        left &= !same;
    }
    let mut rotated = 0u16;
    rotated |= templates.rotated_prefix.map_or(0, |tag| 1 << tag);
    rotated |= templates.rotated_wide.map_or(0, |tag| 1 << tag);
    kinds = _mm512_mask_set1_epi32(kinds, rotated, 8);

    // Codes of the exact templates: as in `assign`, for 16 words and without the exact tags.
    let multiplier = _mm512_set1_epi64(HASH_MULTIPLIER as i64);
    let zero = _mm512_setzero_si512();
    let hash = |words| {
        let product = _mm512_madd52lo_epu64(zero, _mm512_srli_epi64::<16>(words), multiplier);
        _mm512_cvtepi64_epi8(_mm512_srli_epi64::<44>(product))
    };
    let hashes = _mm_unpacklo_epi64(hash(low), hash(high));
    let tags = _mm512_castsi512_si128(prefix_tags.look_up(_mm512_castsi128_si512(hashes)));
    let tags_high = _mm512_cvtepu8_epi64(_mm_unpackhi_epi64(tags, tags));
    let tags_low = _mm512_cvtepu8_epi64(tags);
    let prefix_low = _mm512_srli_epi64::<16>(low);
    let prefix_high =
        _mm512_mask_set1_epi64(_mm512_srli_epi64::<16>(high), 1 << (NO_TAG - 8), u64::MAX as i64);
    let wide_base = _mm512_set1_epi64(templates.values[Templates::WIDE] as i64);
    let code = |words: __m512i, prefix: __m512i| {
        let wide = _mm512_cmplt_epu64_mask(_mm512_xor_si512(words, wide_base), _mm512_set1_epi64(1 << 32));
        let mut codes = _mm512_mask_set1_epi64(_mm512_set1_epi64(15), wide, Templates::WIDE as i64);
        let low_clear = _mm512_testn_epi64_mask(words, _mm512_set1_epi64(u32::MAX as i64));
        if let Some(tag) = templates.rotated_wide {
            codes = _mm512_mask_set1_epi64(codes, low_clear, i64::from(tag));
        }
        if let Some(tag) = templates.rotated_prefix {
            let small = _mm512_mask_cmplt_epu64_mask(low_clear, words, _mm512_set1_epi64(1 << 48));
            codes = _mm512_mask_set1_epi64(codes, small, i64::from(tag));
        }
        let expected = _mm512_permutex2var_epi64(prefix_low, prefix, prefix_high);
        let same = _mm512_cmpeq_epi64_mask(_mm512_srli_epi64::<16>(words), expected);
        _mm512_cvtepi64_epi8(_mm512_mask_mov_epi64(codes, same, prefix))
    };
    let codes = _mm_unpacklo_epi64(code(low, tags_low), code(high, tags_high));
    let raw = _mm_mask_cmpeq_epi8_mask(exact, codes, _mm_set1_epi8(15));
    let a = _mm_mask_cmpge_epu8_mask(exact & !raw, codes, _mm_set1_epi8(first as i8));
    let b = _mm_mask_cmpge_epu8_mask(exact & !raw, codes, _mm_set1_epi8(templates.wide_first() as i8));
    // Tag 0 may stand for a missing rotated template, but is no code.
    let code_rotated = _mm_cmpeq_epi8_mask(codes, _mm_set1_epi8(templates.rotated_prefix.unwrap_or(0) as i8))
        | _mm_cmpeq_epi8_mask(codes, _mm_set1_epi8(templates.rotated_wide.unwrap_or(0) as i8));
    let lows = _mm512_permutex2var_epi32(low, even_dwords, high);
    let lows = _mm512_mask_mov_epi32(lows, code_rotated, highs);
    let a_halves = _mm256_maskz_compress_epi16(a, _mm512_cvtepi32_epi16(lows));
    let b_halves = _mm256_maskz_compress_epi16(b, _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(lows)));
    let raw_low = _mm512_maskz_compress_epi64(raw as u8, low);
    let raw_high = _mm512_maskz_compress_epi64((raw >> 8) as u8, high);
    // SAFETY: 16 literals of each kind fit; at most eight raw words precede the second eight.
    unsafe {
        _mm256_storeu_si256(templates.a.as_mut_ptr().cast(), a_halves);
        _mm256_storeu_si256(templates.b.as_mut_ptr().cast(), b_halves);
        _mm512_storeu_si512(templates.raw.as_mut_ptr().cast(), raw_low);
        let at = (raw & 0xff).count_ones() as usize;
        _mm512_storeu_si512(templates.raw.as_mut_ptr().add(at).cast(), raw_high);
    }
    templates.a_len = a.count_ones() as usize;
    templates.b_len = b.count_ones() as usize;
    templates.raw_len = raw.count_ones() as usize;

    let nibbles = _mm_mask_mov_epi8(_mm512_cvtepi32_epi8(kinds), exact, codes);
    let bytes = _mm_maddubs_epi16(nibbles, _mm_set1_epi16(0x1001));
    templates.kinds = _mm_cvtsi128_si64(_mm_cvtepi16_epi8(bytes)) as u64
        | templates.exact as u64
        | (templates.prefix as u64) << 56
        | (templates.wide as u64) << 60
        | VERSION << 62;
}
