//! Decodes templates, then tag lines, then the literals' places per 64 words, then the words line
//! by line.

use std::arch::x86_64::*;

use super::{low_bits, Aligned, COUNTING};
use crate::t16::format::{Damaged, Layout, LINES, PAGE_SIZE, TAG_RAW, TAG_REF};

const CLASS_A: i8 = 1;
const CLASS_B: i8 = 2;
const CLASS_ROTATED: i8 = 4;
const CLASS_REF: i8 = 8;
const CLASS_RAW: i8 = 16;

/// Word indices that interleave the low (or high) 16 words of two registers.
const fn interleave(from: u16) -> Aligned<[u16; 32]> {
    let mut words = [0; 32];
    let mut at = 0;
    while at < 16 {
        words[2 * at] = from + at as u16;
        words[2 * at + 1] = 32 + from + at as u16;
        at += 1;
    }
    Aligned(words)
}
static INTERLEAVE_LOW: Aligned<[u16; 32]> = interleave(0);
static INTERLEAVE_HIGH: Aligned<[u16; 32]> = interleave(16);

/// Decodes `object` into `page`. The machine must have the features.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512ifma,bmi1,bmi2,lzcnt,popcnt"
)]
pub(crate) fn decode(object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
    let layout = Layout::parse(object)?;
    let base = object.as_ptr();
    let (first, wide_first) = (layout.prefix_first(), layout.wide_first());
    // Tags of the prefix and wide classes, of the wide class, of the exact class.
    let coded = 0x3fff & !low_bits(first) as u16;
    let wide = 0x3fff & !low_bits(wide_first) as u16;
    let exact = low_bits(layout.exact + 1) as u16 & !1;
    let rotated = _pext_u64(layout.kinds, 0x8888_8888_8888_8888) as u16 & coded;

    let mut classes = _mm_maskz_set1_epi8(coded, CLASS_A);
    classes = _mm_or_si128(classes, _mm_maskz_set1_epi8(wide, CLASS_B));
    classes = _mm_or_si128(classes, _mm_maskz_set1_epi8(rotated, CLASS_ROTATED));
    classes = _mm_mask_mov_epi8(classes, 1 << TAG_REF, _mm_set1_epi8(CLASS_REF));
    classes = _mm_mask_mov_epi8(classes, 1 << TAG_RAW, _mm_set1_epi8(CLASS_RAW));

    // Prefix and wide templates. The high half's index is the low three bits of the kind.
    let shifts = _mm512_set_epi64(28, 24, 20, 16, 12, 8, 4, 0);
    let kinds_low = _mm512_srlv_epi64(_mm512_set1_epi64(layout.kinds as i64), shifts);
    let kinds_high = _mm512_srlv_epi64(_mm512_set1_epi64((layout.kinds >> 32) as i64), shifts);
    // SAFETY: an object has at least 67 bytes behind the header of 20, and this reads bytes 16 to
    // 47.
    let highs = unsafe { _mm256_loadu_si256(base.add(layout.highs_at - 4).cast()) };
    let highs = _mm512_maskz_cvtepu32_epi64((low_bits(layout.highs) << 1) as u8, highs);
    let highs = _mm512_slli_epi64::<32>(highs);
    // SAFETY: reads only the lanes of prefix tags; the layout has as many middle quarters at
    // `mids_at`.
    let mids = unsafe {
        _mm256_maskz_loadu_epi16(
            coded & !wide,
            base.wrapping_add(layout.mids_at).wrapping_sub(2 * first).cast(),
        )
    };
    let mids_low = _mm512_slli_epi64::<16>(_mm512_cvtepu16_epi64(_mm256_castsi256_si128(mids)));
    let mids_high = _mm512_slli_epi64::<16>(_mm512_cvtepu16_epi64(_mm256_extracti128_si256::<1>(mids)));
    let mut values_low =
        _mm512_or_si512(mids_low, _mm512_maskz_permutexvar_epi64(coded as u8, kinds_low, highs));
    let mut values_high =
        _mm512_or_si512(mids_high, _mm512_maskz_permutexvar_epi64((coded >> 8) as u8, kinds_high, highs));

    let fresh = layout.fresh;
    // SAFETY: the index and the lines behind it are 64 - d + 4 d >= 67 bytes.
    let index = unsafe { _mm512_loadu_si512(base.add(layout.index_at).cast()) };
    let repeats = u64::MAX.checked_shr(layout.lines_len as u32).unwrap_or(0);
    if _mm512_mask_cmpge_epu8_mask(repeats, index, _mm512_set1_epi8(layout.lines_len as i8)) != 0 {
        return Err(Damaged);
    }
    // SAFETY: 64 bytes, aligned.
    let counting = unsafe { _mm512_load_si512(COUNTING.0.as_ptr().cast()) };
    let ranks = _mm512_maskz_expand_epi8(fresh, counting);
    let ranks = _mm512_mask_expand_epi8(ranks, !fresh, index);

    // The tag line of each line: a lookup in a table of 64 words of 32 bits.
    let mut lines = Aligned([0u32; LINES]);
    {
        let present = u64::MAX >> (LINES - layout.lines_len);
        let at = base.wrapping_add(layout.lines_at).cast::<i32>();
        // SAFETY: reads only the lanes of the object's lines.
        let table: [__m512i; 4] = std::array::from_fn(|quarter| unsafe {
            _mm512_maskz_loadu_epi32((present >> (16 * quarter)) as u16, at.wrapping_add(16 * quarter))
        });
        let quarters = [
            _mm512_castsi512_si128(ranks),
            _mm512_extracti32x4_epi32::<1>(ranks),
            _mm512_extracti32x4_epi32::<2>(ranks),
            _mm512_extracti32x4_epi32::<3>(ranks),
        ];
        for (quarter, ranks) in quarters.into_iter().enumerate() {
            let ranks = _mm512_cvtepu8_epi32(ranks);
            let low = _mm512_permutex2var_epi32(table[0], ranks, table[1]);
            let high = _mm512_permutex2var_epi32(table[2], ranks, table[3]);
            let upper = _mm512_test_epi32_mask(ranks, _mm512_set1_epi32(32));
            // SAFETY: four times 16 words of 64, aligned.
            unsafe {
                _mm512_store_si512(
                    lines.0.as_mut_ptr().add(16 * quarter).cast(),
                    _mm512_mask_mov_epi32(low, upper, high),
                );
            }
        }
    }

    // Places of the literals, 64 words at a time.
    let class_table = _mm512_broadcast_i32x4(classes);
    let mut a_masks = [0u64; 8];
    let mut b_masks = [0u64; 8];
    let mut raw_masks = [0u64; 8];
    let mut rotated_masks = [0u64; 8];
    let mut ref_masks = [0u64; 8];
    let (mut a_sum, mut b_sum, mut raw_sum, mut ref_sum) = (0, 0, 0, 0);
    for block in 0..8 {
        // SAFETY: eight times 32 bytes of 256, aligned.
        let nibbles = unsafe { _mm256_load_si256(lines.0.as_ptr().add(8 * block).cast()) };
        let nibbles = _mm512_cvtepu8_epi16(nibbles);
        // The low byte's upper half is garbage, but the table repeats every 16 entries.
        let nibbles = _mm512_or_si512(nibbles, _mm512_slli_epi16::<4>(nibbles));
        let classes = _mm512_permutexvar_epi8(nibbles, class_table);
        a_masks[block] = _mm512_test_epi8_mask(classes, _mm512_set1_epi8(CLASS_A));
        b_masks[block] = _mm512_test_epi8_mask(classes, _mm512_set1_epi8(CLASS_B));
        raw_masks[block] = _mm512_test_epi8_mask(classes, _mm512_set1_epi8(CLASS_RAW));
        ref_masks[block] = _mm512_test_epi8_mask(classes, _mm512_set1_epi8(CLASS_REF));
        rotated_masks[block] = _mm512_test_epi8_mask(classes, _mm512_set1_epi8(CLASS_ROTATED));
        a_sum += a_masks[block].count_ones();
        b_sum += b_masks[block].count_ones();
        raw_sum += raw_masks[block].count_ones();
        ref_sum += ref_masks[block].count_ones();
    }

    // Exact templates are words like the others, whose tags are the kinds of the exact tags.
    let codes = _mm_and_si128(
        _mm_unpacklo_epi8(
            _mm_cvtsi64_si128(layout.kinds as i64),
            _mm_cvtsi64_si128((layout.kinds >> 4) as i64),
        ),
        _mm_set1_epi8(15),
    );
    let code_classes = _mm_maskz_shuffle_epi8(exact, classes, codes);
    let exact_a = _mm_test_epi8_mask(code_classes, _mm_set1_epi8(CLASS_A));
    let exact_b = _mm_test_epi8_mask(code_classes, _mm_set1_epi8(CLASS_B));
    let exact_raw = _mm_test_epi8_mask(code_classes, _mm_set1_epi8(CLASS_RAW));
    let exact_rotated = _mm_test_epi8_mask(code_classes, _mm_set1_epi8(CLASS_ROTATED));
    a_sum += exact_a.count_ones();
    b_sum += exact_b.count_ones();
    raw_sum += exact_raw.count_ones();
    if a_sum as usize != layout.a_len
        || b_sum as usize != layout.b_len
        || raw_sum as usize != layout.raw_len
        || ref_sum as usize != layout.ref_len
    {
        return Err(Damaged);
    }
    // From here on the streams hold exactly what the tags take, and at least 67 bytes of index and
    // lines follow each of them. So a full-width load that starts within a stream or at its end is
    // in bounds.
    let mut a = base.wrapping_add(layout.a_at).cast::<i16>();
    let mut b = base.wrapping_add(layout.b_at).cast::<i16>();
    let raw_start = base.wrapping_add(layout.raw_at).cast::<i64>();
    let mut raw = raw_start;

    {
        // SAFETY: see above.
        let (a_halves, b_halves) = unsafe { (_mm256_loadu_si256(a.cast()), _mm256_loadu_si256(b.cast())) };
        let a_halves = _mm256_maskz_expand_epi16(exact_a, a_halves);
        let b_halves = _mm256_maskz_expand_epi16(exact_b, b_halves);
        let build = |kinds: __m512i, shift: u32, a: __m128i, b: __m128i, raw: __m512i| {
            let mut words = _mm512_permutex2var_epi64(values_low, kinds, values_high);
            words = _mm512_or_si512(words, _mm512_cvtepu16_epi64(a));
            words = _mm512_or_si512(words, _mm512_slli_epi64::<16>(_mm512_cvtepu16_epi64(b)));
            words = _mm512_mask_rol_epi64::<32>(words, (exact_rotated >> shift) as u8, words);
            _mm512_mask_expand_epi64(words, (exact_raw >> shift) as u8, raw)
        };
        // SAFETY: see above; the second load starts at most at the end of the raw stream.
        let (raw_low, raw_high) = unsafe {
            let low = _mm512_loadu_si512(raw.cast());
            (low, _mm512_loadu_si512(raw.add((exact_raw & 0xff).count_ones() as usize).cast()))
        };
        let low =
            build(kinds_low, 0, _mm256_castsi256_si128(a_halves), _mm256_castsi256_si128(b_halves), raw_low);
        let high = build(
            kinds_high,
            8,
            _mm256_extracti128_si256::<1>(a_halves),
            _mm256_extracti128_si256::<1>(b_halves),
            raw_high,
        );
        values_low = _mm512_mask_mov_epi64(values_low, exact as u8, low);
        values_high = _mm512_mask_mov_epi64(values_high, (exact >> 8) as u8, high);
        a = a.wrapping_add(exact_a.count_ones() as usize);
        b = b.wrapping_add(exact_b.count_ones() as usize);
        raw = raw.wrapping_add(exact_raw.count_ones() as usize);
    }

    // SAFETY: constants of 64 bytes, aligned.
    let (interleave_low, interleave_high) = unsafe {
        (
            _mm512_load_si512(INTERLEAVE_LOW.0.as_ptr().cast()),
            _mm512_load_si512(INTERLEAVE_HIGH.0.as_ptr().cast()),
        )
    };
    let mut halves = Aligned([0u32; 64]);
    let out = page.as_mut_ptr();
    for block in 0..8 {
        // Literals of 64 words: A in the low, B in the high half of 32 bits.
        for part in 0..2 {
            let (a_mask, b_mask) =
                ((a_masks[block] >> (32 * part)) as u32, (b_masks[block] >> (32 * part)) as u32);
            // SAFETY: see above.
            let (a_halves, b_halves) =
                unsafe { (_mm512_loadu_si512(a.cast()), _mm512_loadu_si512(b.cast())) };
            let a_halves = _mm512_maskz_expand_epi16(a_mask, a_halves);
            let b_halves = _mm512_maskz_expand_epi16(b_mask, b_halves);
            a = a.wrapping_add(a_mask.count_ones() as usize);
            b = b.wrapping_add(b_mask.count_ones() as usize);
            // SAFETY: two times 32 of 64 words, aligned.
            unsafe {
                let at = halves.0.as_mut_ptr().add(32 * part);
                _mm512_store_si512(at.cast(), _mm512_permutex2var_epi16(a_halves, interleave_low, b_halves));
                _mm512_store_si512(
                    at.add(16).cast(),
                    _mm512_permutex2var_epi16(a_halves, interleave_high, b_halves),
                );
            }
        }
        for line in 0..8 {
            let tags = _mm512_set1_epi32(lines.0[8 * block + line] as i32);
            let words = _mm512_permutex2var_epi64(values_low, _mm512_srlv_epi64(tags, shifts), values_high);
            // SAFETY: eight times 32 bytes of 256, aligned.
            let literals = unsafe { _mm256_load_si256(halves.0.as_ptr().add(8 * line).cast()) };
            let mut words = _mm512_or_si512(words, _mm512_cvtepu32_epi64(literals));
            if rotated != 0 {
                words = _mm512_mask_rol_epi64::<32>(words, (rotated_masks[block] >> (8 * line)) as u8, words);
            }
            let raw_mask = (raw_masks[block] >> (8 * line)) as u8;
            // SAFETY: see above.
            let raws = unsafe { _mm512_loadu_si512(raw.cast()) };
            words = _mm512_mask_expand_epi64(words, raw_mask, raws);
            raw = raw.wrapping_add(raw_mask.count_ones() as usize);
            // SAFETY: 64 times 64 bytes of a page.
            unsafe { _mm512_storeu_si512(out.add(64 * (8 * block + line)).cast(), words) };
        }
    }

    // Repeats of raw words are few: one by one.
    if layout.ref_len != 0 {
        let refs = &object[layout.refs_at..layout.index_at];
        let mut refs = refs.iter();
        for (block, mut mask) in ref_masks.into_iter().enumerate() {
            while mask != 0 {
                let at = 64 * block + mask.trailing_zeros() as usize;
                mask &= mask - 1;
                let Some(&number) = refs.next() else { break };
                if usize::from(number) >= layout.raw_len {
                    return Err(Damaged);
                }
                // SAFETY: the number is a raw word's, and `at` is a word of the page.
                unsafe {
                    let word = raw_start.add(usize::from(number)).read_unaligned();
                    out.cast::<i64>().add(at).write_unaligned(word);
                }
            }
        }
    }
    Ok(())
}
