//! Encodes tags and literals 64 words at a time, then finds repeats among lines and raw words, then
//! writes the object.

use std::arch::x86_64::*;

use super::select::select;
use super::{choose, Aligned, Table, COUNTING, EVEN_DWORDS, EVEN_WORDS, LINE_ORDER, ODD_WORDS};
use crate::t16::format::{page_words, HEADER, LINES, PAGE_SIZE, TAG_RAW};
use crate::t16::templates::{Templates, HASH_MULTIPLIER, NO_TAG};
use crate::t16::work::{through_memory, Work};
use crate::t16::{portable, prefetch, raws};

/// From this many raw words on they are fetched line by line. Fewer are found faster one by one.
const RAWS_MANY: usize = 80;

/// First half of the encoder, like the portable one. Prefetches `next` in small portions, because
/// 64 lines at once would hold up everything else.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512ifma,bmi1,bmi2,lzcnt,popcnt"
)]
pub(crate) fn analyse(work: &mut Work, page: &[u8; PAGE_SIZE], next: &[u8; PAGE_SIZE]) -> usize {
    select(&mut work.templates, page);
    if work.templates.rotated_prefix.is_some() || work.templates.rotated_wide.is_some() {
        assign::<true>(work, page, next)
    } else {
        assign::<false>(work, page, next)
    }
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512ifma,bmi1,bmi2,lzcnt,popcnt"
)]
fn assign<const ROTATES: bool>(work: &mut Work, page: &[u8; PAGE_SIZE], next: &[u8; PAGE_SIZE]) -> usize {
    let templates = &work.templates;
    let exact_tags = Table::load(&templates.exact_tags);
    let prefix_tags = Table::load(&templates.prefix_tags);
    // SAFETY: two times eight of 16 values.
    let (exact_low, exact_high) = unsafe {
        let at = templates.values.as_ptr();
        (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(8).cast()))
    };
    let prefix_low = _mm512_srli_epi64::<16>(exact_low);
    // No word shifted right by 16 has all bits set, so entry 15 ("no template") never matches.
    let prefix_high =
        _mm512_mask_set1_epi64(_mm512_srli_epi64::<16>(exact_high), 1 << (NO_TAG - 8), u64::MAX as i64);
    let wide_base = _mm512_set1_epi64(templates.values[Templates::WIDE] as i64);
    let wide_limit = _mm512_set1_epi64(1 << 32);
    let low_half = _mm512_set1_epi64(u32::MAX as i64);
    let upper_limit = _mm512_set1_epi64(1 << 48);
    let rotated_prefix = _mm512_set1_epi8(templates.rotated_prefix.unwrap_or(0) as i8);
    let rotated_wide = _mm512_set1_epi8(templates.rotated_wide.unwrap_or(0) as i8);
    let prefix_first = _mm512_set1_epi8(templates.prefix_first() as i8);
    let wide_first = _mm512_set1_epi8(templates.wide_first() as i8);
    let multiplier = _mm512_set1_epi64(HASH_MULTIPLIER as i64);
    let zero = _mm512_setzero_si512();
    // SAFETY: constants of 64 bytes.
    let (line_order, even_dwords, even_words, odd_words, counting) = unsafe {
        (
            _mm512_load_si512(LINE_ORDER.0.as_ptr().cast()),
            _mm512_load_si512(EVEN_DWORDS.0.as_ptr().cast()),
            _mm512_load_si512(EVEN_WORDS.0.as_ptr().cast()),
            _mm512_load_si512(ODD_WORDS.0.as_ptr().cast()),
            _mm512_load_si512(COUNTING.0.as_ptr().cast()),
        )
    };

    let (mut a_len, mut b_len, mut raw_len) = (0, 0, 0);
    for block in 0..LINES / 8 {
        prefetch(&next[512 * block..512 * (block + 1)]);
        // SAFETY: 64 times 64 bytes of a page.
        let words: [__m512i; 8] = std::array::from_fn(|line| unsafe {
            _mm512_loadu_si512(page.as_ptr().add(512 * block + 64 * line).cast())
        });
        // Bits 44 to 51 of the products; byte `line` of lane `k` for word `k` of the line.
        let take = _mm512_set1_epi8(44);
        let (mut word_hashes, mut prefix_hashes) = (zero, zero);
        for (line, &words) in words.iter().enumerate() {
            let place = 0x0101_0101_0101_0101 << line;
            let product = _mm512_madd52lo_epu64(zero, words, multiplier);
            word_hashes = _mm512_mask_multishift_epi64_epi8(word_hashes, place, take, product);
            let product = _mm512_madd52lo_epu64(zero, _mm512_srli_epi64::<16>(words), multiplier);
            prefix_hashes = _mm512_mask_multishift_epi64_epi8(prefix_hashes, place, take, product);
        }
        let exact = exact_tags.look_up(word_hashes);
        let prefix = prefix_tags.look_up(prefix_hashes);

        // From the lowest priority to the highest, each overriding the one before.
        let mut tags = _mm512_set1_epi8(TAG_RAW as i8);
        macro_rules! line {
            ($line:literal) => {{
                let byte = _mm512_set1_epi64(0xff << (8 * $line));
                let word = words[$line];
                let wide = _mm512_cmplt_epu64_mask(_mm512_xor_si512(word, wide_base), wide_limit);
                tags = choose(tags, wide, byte, _mm512_set1_epi8(Templates::WIDE as i8));
                if ROTATES {
                    let low_clear = _mm512_testn_epi64_mask(word, low_half);
                    if templates.rotated_wide.is_some() {
                        tags = choose(tags, low_clear, byte, rotated_wide);
                    }
                    if templates.rotated_prefix.is_some() {
                        let small = _mm512_mask_cmplt_epu64_mask(low_clear, word, upper_limit);
                        tags = choose(tags, small, byte, rotated_prefix);
                    }
                }
                let expected = _mm512_permutex2var_epi64(
                    prefix_low,
                    _mm512_srli_epi64::<{ 8 * $line }>(prefix),
                    prefix_high,
                );
                let same = _mm512_cmpeq_epi64_mask(_mm512_srli_epi64::<16>(word), expected);
                tags = choose(tags, same, byte, prefix);
                let expected = _mm512_permutex2var_epi64(
                    exact_low,
                    _mm512_srli_epi64::<{ 8 * $line }>(exact),
                    exact_high,
                );
                let same = _mm512_cmpeq_epi64_mask(word, expected);
                tags = choose(tags, same, byte, exact);
            }};
        }
        line!(0);
        line!(1);
        line!(2);
        line!(3);
        line!(4);
        line!(5);
        line!(6);
        line!(7);
        let tags = _mm512_permutexvar_epi8(line_order, tags);

        let nibbles = _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(tags, _mm512_set1_epi16(0x1001)));
        // SAFETY: eight times eight lines of 64.
        unsafe { _mm256_storeu_si256(work.all_lines.as_mut_ptr().add(8 * block).cast(), nibbles) };

        let raw_mask = _mm512_cmpeq_epi8_mask(tags, _mm512_set1_epi8(TAG_RAW as i8));
        let a_mask = _mm512_cmpge_epu8_mask(tags, prefix_first) & !raw_mask;
        let b_mask = _mm512_cmpge_epu8_mask(tags, wide_first) & !raw_mask;

        let mut halves = words;
        if ROTATES {
            let rotated =
                _mm512_cmpeq_epi8_mask(tags, rotated_wide) | _mm512_cmpeq_epi8_mask(tags, rotated_prefix);
            for (line, half) in halves.iter_mut().enumerate() {
                // Tag 0 may be included if one rotated template is missing; zero rotated is zero.
                *half = _mm512_mask_rol_epi64::<32>(*half, (rotated >> (8 * line)) as u8, *half);
            }
        }
        let lows: [__m512i; 4] = std::array::from_fn(|pair| {
            _mm512_permutex2var_epi32(halves[2 * pair], even_dwords, halves[2 * pair + 1])
        });
        for part in 0..2 {
            let (low, high) = (lows[2 * part], lows[2 * part + 1]);
            let mask = (a_mask >> (32 * part)) as u32;
            let half = _mm512_maskz_compress_epi16(mask, _mm512_permutex2var_epi16(low, even_words, high));
            // SAFETY: there are at most 512 literals, and the buffer has room for 32 more.
            unsafe { _mm512_storeu_si512(work.a.as_mut_ptr().add(a_len).cast(), half) };
            a_len += mask.count_ones() as usize;
            let mask = (b_mask >> (32 * part)) as u32;
            let half = _mm512_maskz_compress_epi16(mask, _mm512_permutex2var_epi16(low, odd_words, high));
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(work.b.as_mut_ptr().add(b_len).cast(), half) };
            b_len += mask.count_ones() as usize;
        }

        let places = _mm512_maskz_compress_epi8(raw_mask, counting);
        let base = _mm512_set1_epi16(64 * block as i16);
        // SAFETY: there are at most 512 raw words, and the buffer has room for 64 more.
        unsafe {
            let at = work.raw_places.as_mut_ptr().add(raw_len);
            let low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(places));
            let high = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64::<1>(places));
            _mm512_storeu_si512(at.cast(), _mm512_add_epi16(low, base));
            _mm512_storeu_si512(at.add(32).cast(), _mm512_add_epi16(high, base));
        }
        raw_len += raw_mask.count_ones() as usize;
        work.raw_masks[block] = raw_mask;
    }
    (work.a_len, work.b_len, work.all_raws_len) = (a_len, b_len, raw_len);
    raw_len
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512ifma,bmi1,bmi2,lzcnt,popcnt"
)]
pub(crate) fn reduce(work: &mut Work, page: &[u8; PAGE_SIZE]) {
    if work.all_raws_len < RAWS_MANY {
        raws::refer(work, page_words(page));
    } else {
        refer_many(work, page);
    }
    share_lines(work);
}

/// [`raws::refer`] for many raw words: fetches them line by line, and checks the winners 64 at a
/// time.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512ifma,bmi1,bmi2,lzcnt,popcnt"
)]
fn refer_many(work: &mut Work, page: &[u8; PAGE_SIZE]) {
    fetch(work, page);
    raws::refer_many(work, |winners, chunk| {
        // SAFETY: 64 bytes each.
        let (winners, counting) = unsafe {
            (_mm512_loadu_si512(winners.as_ptr().cast()), _mm512_load_si512(COUNTING.0.as_ptr().cast()))
        };
        let known = _mm512_cmpneq_epi8_mask(winners, _mm512_set1_epi8(raws::NO_WINNER as i8));
        // Numbers from 256 on do not fit a byte and cannot win.
        if chunk < 4 {
            let own = _mm512_add_epi8(counting, _mm512_set1_epi8((64 * chunk) as i8));
            _mm512_mask_cmpneq_epi8_mask(known, winners, own)
        } else {
            known
        }
    });
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512ifma,bmi1,bmi2,lzcnt,popcnt"
)]
fn fetch(work: &mut Work, page: &[u8; PAGE_SIZE]) {
    let mut len = 0;
    for (block, raws) in work.raw_masks.iter().enumerate() {
        for line in 0..8 {
            let mask = (raws >> (8 * line)) as u8;
            // SAFETY: reads a line of the page; there are at most 512 raw words, and the buffer has
            // room for eight more.
            unsafe {
                let words = _mm512_loadu_si512(page.as_ptr().add(512 * block + 64 * line).cast());
                let kept = _mm512_maskz_compress_epi64(mask, words);
                _mm512_storeu_si512(work.all_raws.as_mut_ptr().add(len).cast(), kept);
            }
            len += mask.count_ones() as usize;
        }
    }
    debug_assert_eq!(len, work.all_raws_len);
    let multiplier = _mm512_set1_epi64(HASH_MULTIPLIER as i64);
    for first in (0..len).step_by(8) {
        // SAFETY: both buffers have room for eight more than 512.
        unsafe {
            let words = _mm512_loadu_si512(work.all_raws.as_ptr().add(first).cast());
            let product = _mm512_madd52lo_epu64(_mm512_setzero_si512(), words, multiplier);
            // Bits 43 to 51, the product's highest.
            let buckets = _mm512_cvtepi64_epi16(_mm512_srli_epi64::<43>(product));
            _mm_storeu_si128(work.raw_buckets.as_mut_ptr().add(first).cast(), buckets);
        }
    }
}

/// Keeps each distinct tag line once.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512ifma,bmi1,bmi2,lzcnt,popcnt"
)]
fn share_lines(work: &mut Work) {
    let mut buckets = Aligned([0u8; LINES]);
    // SAFETY: four times 16 lines of 64.
    let lines: [__m512i; 4] = std::array::from_fn(|part| unsafe {
        _mm512_loadu_si512(work.all_lines.as_ptr().add(16 * part).cast())
    });
    for (part, lines) in lines.iter().enumerate() {
        let product = _mm512_mullo_epi32(*lines, _mm512_set1_epi32(portable::LINE_MULTIPLIER as i32));
        let bytes = _mm512_cvtepi32_epi8(_mm512_srli_epi32::<24>(product));
        // SAFETY: four times 16 bytes of 64, aligned.
        unsafe { _mm_store_si128(buckets.0.as_mut_ptr().add(16 * part).cast(), bytes) };
    }
    through_memory(&mut buckets);
    for line in (0..LINES).rev() {
        work.line_winners[usize::from(buckets.0[line])] = line as u8;
    }
    let mut winners = Aligned([0u8; LINES]);
    for (winner, bucket) in winners.0.iter_mut().zip(&buckets.0) {
        // Volatile, because the compiler would otherwise gather bytes by slow vector insertions.
        // SAFETY: bytes of the arrays.
        unsafe { std::ptr::write_volatile(winner, work.line_winners[usize::from(*bucket)]) };
    }
    through_memory(&mut winners);
    // SAFETY: 64 bytes each.
    let (winners, counting) = unsafe {
        (_mm512_load_si512(winners.0.as_ptr().cast()), _mm512_load_si512(COUNTING.0.as_ptr().cast()))
    };
    let parts = [
        _mm512_castsi512_si128(winners),
        _mm512_extracti32x4_epi32::<1>(winners),
        _mm512_extracti32x4_epi32::<2>(winners),
        _mm512_extracti32x4_epi32::<3>(winners),
    ];
    let mut same = 0u64;
    for (part, winners) in parts.into_iter().enumerate() {
        let winners = _mm512_cvtepu8_epi32(winners);
        let low = _mm512_permutex2var_epi32(lines[0], winners, lines[1]);
        let high = _mm512_permutex2var_epi32(lines[2], winners, lines[3]);
        let upper = _mm512_test_epi32_mask(winners, _mm512_set1_epi32(32));
        let line = _mm512_mask_mov_epi32(low, upper, high);
        same |= u64::from(_mm512_cmpeq_epi32_mask(line, lines[part])) << (16 * part);
    }
    let repeats = _mm512_mask_cmpneq_epi8_mask(same, winners, counting);
    let fresh = !repeats;
    let ranks = _mm512_maskz_expand_epi8(fresh, counting);
    let index = _mm512_maskz_compress_epi8(repeats, _mm512_permutexvar_epi8(winners, ranks));
    // SAFETY: the buffer has 128 bytes.
    unsafe { _mm512_storeu_si512(work.index.as_mut_ptr().cast(), index) };
    let mut distinct = 0;
    for (part, lines) in lines.iter().enumerate() {
        let mask = (fresh >> (16 * part)) as u16;
        let kept = _mm512_maskz_compress_epi32(mask, *lines);
        // SAFETY: there are at most 64 lines, and the buffer has room for 16 more.
        unsafe { _mm512_storeu_si512(work.lines.as_mut_ptr().add(distinct).cast(), kept) };
        distinct += mask.count_ones() as usize;
    }
    work.fresh = fresh;
}

/// Copies `len` bytes in steps of 64. Up to 63 bytes more are read and written, so all must be
/// accessible at `from` and `to`, which must not overlap.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast())) };
        at += 64;
    }
}

/// Writes the object, like the portable one.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512ifma,bmi1,bmi2,lzcnt,popcnt"
)]
pub(crate) fn write(work: &Work, out: &mut [u8]) {
    assert_eq!(out.len(), work.object_len());
    let templates = &work.templates;
    let first = templates.prefix_first();
    let distinct = work.lines_len();
    // Writes the parts in the order of their places. Every part but the last two may write up to 63
    // bytes of garbage behind itself; the last two have at least 67 bytes and overwrite it.
    // SAFETY: the length was checked above; the sources are buffers of `work` with room behind
    // their content.
    unsafe {
        let base = out.as_mut_ptr();
        base.cast::<u64>().write_unaligned(templates.kinds);
        base.add(8).cast::<u32>().write_unaligned(work.counts());
        base.add(12).cast::<u64>().write_unaligned(work.fresh);
        let mut at = base.add(HEADER);
        _mm256_storeu_si256(at.cast(), _mm256_loadu_si256(templates.highs.as_ptr().cast()));
        at = at.add(4 * templates.highs_len);
        let values = templates.values.as_ptr();
        let low = _mm512_cvtepi64_epi16(_mm512_srli_epi64::<16>(_mm512_loadu_si512(values.cast())));
        let high = _mm512_cvtepi64_epi16(_mm512_srli_epi64::<16>(_mm512_loadu_si512(values.add(8).cast())));
        let mids = _mm256_set_m128i(high, low);
        let mask = (0xffff_u32 << first) as u16;
        _mm256_storeu_si256(at.cast(), _mm256_maskz_compress_epi16(mask, mids));
        at = at.add(2 * templates.prefix);
        _mm256_storeu_si256(at.cast(), _mm256_loadu_si256(templates.a.as_ptr().cast()));
        at = at.add(2 * templates.a_len);
        copy(work.a.as_ptr().cast(), at, 2 * work.a_len);
        at = at.add(2 * work.a_len);
        _mm256_storeu_si256(at.cast(), _mm256_loadu_si256(templates.b.as_ptr().cast()));
        at = at.add(2 * templates.b_len);
        copy(work.b.as_ptr().cast(), at, 2 * work.b_len);
        at = at.add(2 * work.b_len);
        copy(templates.raw.as_ptr().cast(), at, 8 * templates.raw_len);
        at = at.add(8 * templates.raw_len);
        for (number, words) in
            work.all_raws[..work.all_raws_len.next_multiple_of(8)].chunks_exact(8).enumerate()
        {
            let repeats = (work.repeats[number / 8] >> (8 * (number % 8))) as u8;
            let missing = (8 * number + 8).saturating_sub(work.all_raws_len);
            let kept = !repeats & 0xff >> missing;
            let words = _mm512_loadu_si512(words.as_ptr().cast());
            _mm512_storeu_si512(at.cast(), _mm512_maskz_compress_epi64(kept, words));
            at = at.add(8 * kept.count_ones() as usize);
        }
        copy(work.refs.as_ptr(), at, work.ref_len);
        at = at.add(work.ref_len);
        _mm512_storeu_si512(at.cast(), _mm512_loadu_si512(work.index.as_ptr().cast()));
        at = at.add(LINES - distinct);
        debug_assert_eq!(at.add(4 * distinct), base.add(out.len()));
        let present = u64::MAX >> (LINES - distinct);
        for part in 0..4 {
            let lines = _mm512_loadu_si512(work.lines.as_ptr().add(16 * part).cast());
            let mask = (present >> (16 * part)) as u16;
            _mm512_mask_storeu_epi32(at.wrapping_add(64 * part).cast(), mask, lines);
        }
    }
}
