//! Decoding: ranks and tag lines with bit deposits, the literals' places with byte shuffles, words from byte planes.

use std::arch::x86_64::*;

use super::{paired, shuffle, Aligned, Planes, EXPAND};
use crate::t16::format::{Damaged, Layout, LINES, PAGE_SIZE, TAG_RAW, TAG_REF};
use crate::t16::portable::{rules, Cursor};

/// Bits of a tag's class, from the sign bit down.
const CLASS_A: u8 = 0x80;
const CLASS_B: u8 = 0x40;
const CLASS_RAW: u8 = 0x20;
const CLASS_REF: u8 = 0x10;

/// A byte with this value in each place.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Decodes `object` into `page`.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(crate) fn decode(object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
    let layout = Layout::parse(object)?;
    let base = object.as_ptr();
    let mut rules = rules(object, &layout);

    // Rank of each line among the distinct ones, eight at a time.
    let mut ranks = Aligned([0u64; LINES / 8]);
    {
        let (mut distinct, mut repeats) = (0, 0);
        for (at, ranks) in ranks.0.iter_mut().enumerate() {
            let fresh = layout.fresh >> (8 * at) & 0xff;
            let places = _pdep_u64(fresh, ONES) * 0xff;
            // SAFETY: at most 56 index bytes come before these eight, and index and lines are at least 67.
            let index = unsafe { base.add(layout.index_at + repeats).cast::<u64>().read_unaligned() };
            let counting = 0x0706_0504_0302_0100 + distinct as u64 * ONES;
            *ranks = _pdep_u64(counting, places) | _pdep_u64(index, !places);
            let count = fresh.count_ones() as usize;
            distinct += count;
            repeats += 8 - count;
        }
        let limit = _mm256_set1_epi8(layout.lines_len as i8);
        // SAFETY: two times 32 bytes of 64, aligned.
        let (low, high) = unsafe {
            let at = ranks.0.as_ptr().cast::<__m256i>();
            (_mm256_load_si256(at), _mm256_load_si256(at.add(1)))
        };
        let reach = |ranks| _mm256_cmpeq_epi8(_mm256_max_epu8(ranks, limit), ranks);
        if _mm256_movemask_epi8(_mm256_or_si256(reach(low), reach(high))) != 0 {
            return Err(Damaged);
        }
    }
    let mut lines = Aligned([0u32; LINES]);
    for (lines, &ranks) in lines.0.chunks_exact_mut(8).zip(&ranks.0) {
        for (k, line) in lines.iter_mut().enumerate() {
            let rank = (ranks >> (8 * k)) as usize & 0xff;
            // SAFETY: the rank is less than the number of lines.
            *line = unsafe { base.add(layout.lines_at + 4 * rank).cast::<u32>().read_unaligned() };
        }
    }

    // Where the literals go, 32 words at a time.
    let mut classes = [0u8; 16];
    let mut shifts = [0u8; 16];
    for (tag, rule) in rules.iter().enumerate() {
        let a = if rule.takes & 0xffff != 0 { CLASS_A } else { 0 };
        let b = if rule.takes >> 16 & 0xffff != 0 { CLASS_B } else { 0 };
        classes[tag] = a | b;
        shifts[tag] = rule.shift as u8;
    }
    classes[TAG_RAW as usize] = CLASS_RAW;
    classes[TAG_REF as usize] = CLASS_REF;
    let rotates = shifts != [0; 16];
    // SAFETY: 16 bytes each.
    let (classes, shifts) = unsafe {
        (
            _mm256_broadcastsi128_si256(_mm_loadu_si128(classes.as_ptr().cast())),
            _mm256_broadcastsi128_si256(_mm_loadu_si128(shifts.as_ptr().cast())),
        )
    };
    let mut tags = Aligned([[0u8; 32]; 16]);
    let mut a_masks = [0u32; 16];
    let mut b_masks = [0u32; 16];
    let mut raw_masks = [0u32; 16];
    let mut ref_masks = [0u32; 16];
    let (mut a_sum, mut b_sum, mut raw_sum, mut ref_sum) = (0, 0, 0, 0);
    for block in 0..16 {
        // SAFETY: sixteen times 16 bytes of 256, aligned.
        let nibbles = unsafe { _mm_load_si128(lines.0.as_ptr().add(4 * block).cast()) };
        let nibbles = _mm256_cvtepu8_epi16(nibbles);
        let nibbles = _mm256_or_si256(nibbles, _mm256_slli_epi16::<4>(nibbles));
        let nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
        // SAFETY: 32 bytes, aligned.
        unsafe { _mm256_store_si256(tags.0[block].as_mut_ptr().cast(), nibbles) };
        let classes = _mm256_shuffle_epi8(classes, nibbles);
        let (a, b) = (_mm256_movemask_epi8(classes), _mm256_movemask_epi8(_mm256_slli_epi16::<1>(classes)));
        let raw = _mm256_movemask_epi8(_mm256_slli_epi16::<2>(classes));
        let reference = _mm256_movemask_epi8(_mm256_slli_epi16::<3>(classes));
        (a_masks[block], b_masks[block]) = (a as u32, b as u32);
        (raw_masks[block], ref_masks[block]) = (raw as u32, reference as u32);
        a_sum += a.count_ones();
        b_sum += b.count_ones();
        raw_sum += raw.count_ones();
        ref_sum += reference.count_ones();
    }
    let mut sum =
        u64::from(a_sum) | u64::from(b_sum) << 16 | u64::from(ref_sum) << 32 | u64::from(raw_sum) << 48;
    for tag in 1..=layout.exact {
        // An exact template cannot be a reference: tag 14 takes nothing here.
        let code = layout.kind(tag);
        sum += if code == TAG_REF as usize { 0 } else { rules[code].takes };
    }
    let holds = layout.a_len as u64
        | (layout.b_len as u64) << 16
        | (layout.ref_len as u64) << 32
        | (layout.raw_len as u64) << 48;
    if sum != holds {
        return Err(Damaged);
    }

    // From here on the streams are known to hold exactly what the tags take, and behind each of them come at least
    // 67 bytes of index and lines: every load of up to 64 bytes that starts within a stream or at its end is in bounds.
    let at = |offset: usize| base.wrapping_add(offset);
    let mut cursor = Cursor { a: at(layout.a_at), b: at(layout.b_at), raw: at(layout.raw_at) };
    let mut values = [0u64; 16];
    for tag in 1..=layout.exact {
        let code = layout.kind(tag);
        // SAFETY: see above.
        values[tag & 15] = unsafe { cursor.word(&rules[code]) };
        if code == TAG_RAW as usize {
            // SAFETY: see above.
            values[tag & 15] = unsafe { cursor.raw.cast::<u64>().read_unaligned() };
            cursor.raw = cursor.raw.wrapping_add(8);
        }
    }
    for (rule, value) in rules.iter_mut().zip(values).take(layout.exact + 1).skip(1) {
        rule.value = value;
    }
    let planes = Planes::new(&rules.map(|rule| rule.value));

    let out = page.as_mut_ptr();
    let mut line_shifts = Aligned([0u8; 32]);
    for block in 0..16 {
        // SAFETY: 32 bytes, aligned.
        let tags = unsafe { _mm256_load_si256(tags.0[block].as_ptr().cast()) };
        let words = planes.look_up(paired(tags));
        if rotates {
            // SAFETY: 32 bytes, aligned.
            unsafe {
                _mm256_store_si256(line_shifts.0.as_mut_ptr().cast(), _mm256_shuffle_epi8(shifts, tags))
            };
        }
        for line in 0..4 {
            let a_mask = a_masks[block] >> (8 * line) & 0xff;
            let b_mask = b_masks[block] >> (8 * line) & 0xff;
            // SAFETY: see above.
            let (a, b) = unsafe { (_mm_loadu_si128(cursor.a.cast()), _mm_loadu_si128(cursor.b.cast())) };
            let a = _mm_shuffle_epi8(a, shuffle(&EXPAND, a_mask));
            let b = _mm_shuffle_epi8(b, shuffle(&EXPAND, b_mask));
            cursor.a = cursor.a.wrapping_add(2 * a_mask.count_ones() as usize);
            cursor.b = cursor.b.wrapping_add(2 * b_mask.count_ones() as usize);
            let mut literals = [
                _mm256_cvtepu32_epi64(_mm_unpacklo_epi16(a, b)),
                _mm256_cvtepu32_epi64(_mm_unpackhi_epi16(a, b)),
            ];
            if rotates {
                for (half, literals) in literals.iter_mut().enumerate() {
                    // SAFETY: eight times four bytes of 32.
                    let shifts = unsafe {
                        line_shifts.0.as_ptr().add(8 * line + 4 * half).cast::<i32>().read_unaligned()
                    };
                    *literals = _mm256_sllv_epi64(*literals, _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(shifts)));
                }
            }
            for (half, literals) in literals.into_iter().enumerate() {
                let words = _mm256_or_si256(words[2 * line + half], literals);
                // SAFETY: 128 times 32 bytes of a page.
                unsafe { _mm256_storeu_si256(out.add(256 * block + 64 * line + 32 * half).cast(), words) };
            }
        }
        let mut mask = raw_masks[block];
        while mask != 0 {
            let word = 32 * block + mask.trailing_zeros() as usize;
            mask &= mask - 1;
            // SAFETY: see above; the word is one of the page's.
            unsafe { out.cast::<u64>().add(word).write_unaligned(cursor.raw.cast::<u64>().read_unaligned()) };
            cursor.raw = cursor.raw.wrapping_add(8);
        }
    }

    if layout.ref_len != 0 {
        let mut refs = object[layout.refs_at..layout.index_at].iter();
        for (block, &(mut mask)) in ref_masks.iter().enumerate() {
            while mask != 0 {
                let word = 32 * block + mask.trailing_zeros() as usize;
                mask &= mask - 1;
                let Some(&number) = refs.next() else { break };
                if usize::from(number) >= layout.raw_len {
                    return Err(Damaged);
                }
                let source = at(layout.raw_at + 8 * usize::from(number));
                // SAFETY: the number is that of a raw word, and `word` that of a word of the page.
                unsafe { out.cast::<u64>().add(word).write_unaligned(source.cast::<u64>().read_unaligned()) };
            }
        }
    }
    Ok(())
}
