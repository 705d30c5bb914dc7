//! Encoding: hash lookups one by one, everything else 32 words at a time.

use std::arch::x86_64::*;

use super::{paired, shuffle, unpaired, Aligned, Planes, COMPRESS};
use crate::t16::format::{page_words, LINES, PAGE_SIZE, TAG_RAW};
use crate::t16::select::select;
use crate::t16::templates::{hash8, Templates, NO_TAG};
use crate::t16::work::Work;
use crate::t16::{portable, prefetch, raws};

/// First half of the encoder; see the portable one. Fetches `next` from memory, in small portions: 64 lines at once
/// would hold up everything else.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(crate) fn analyse(work: &mut Work, page: &[u8; PAGE_SIZE], next: &[u8; PAGE_SIZE]) -> usize {
    select(&mut work.templates, page_words(page));
    if work.templates.rotated_prefix.is_some() || work.templates.rotated_wide.is_some() {
        assign::<true>(work, page, next)
    } else {
        assign::<false>(work, page, next)
    }
}

/// The tags that the hashes of 32 words suggest: exact ones, then prefix ones.
#[inline(always)]
fn suggest(templates: &Templates, words: &[[u8; 8]; 32], suggested: &mut [Aligned<[u8; 32]>; 2]) {
    let [exact, prefix] = suggested;
    for ((word, exact), prefix) in words.iter().zip(&mut exact.0).zip(&mut prefix.0) {
        let word = u64::from_le_bytes(*word);
        // Volatile, as the compiler would else gather bytes in vectors, one slow insertion each.
        // SAFETY: two bytes of the arrays.
        unsafe {
            std::ptr::write_volatile(exact, templates.exact_tags[hash8(word)]);
            std::ptr::write_volatile(prefix, templates.prefix_tags[hash8(word >> 16)]);
        }
    }
}

/// One byte for each word, in paired order, of eight registers of words that are all ones or zero.
#[inline]
#[target_feature(enable = "avx2")]
fn pack(words: [__m256i; 8]) -> __m256i {
    let [w0, w1, w2, w3, w4, w5, w6, w7] = words;
    let low = _mm256_packs_epi16(_mm256_packs_epi32(w0, w1), _mm256_packs_epi32(w2, w3));
    let high = _mm256_packs_epi16(_mm256_packs_epi32(w4, w5), _mm256_packs_epi32(w6, w7));
    _mm256_packs_epi16(low, high)
}

/// Tags and literals of all words.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn assign<const ROTATES: bool>(work: &mut Work, page: &[u8; PAGE_SIZE], next: &[u8; PAGE_SIZE]) -> usize {
    let templates = &work.templates;
    let planes = Planes::new(&templates.values);
    // Prefixes are compared with words whose low quarter is cleared, so that an entry with a bit there never matches:
    // the one that stands for "no template".
    let mut no_match = [0u8; 16];
    no_match[usize::from(NO_TAG)] = 1;
    let mut shifts = [0u8; 16];
    for (tag, shift) in shifts.iter_mut().enumerate() {
        *shift = if templates.is_rotated(tag) { 32 } else { 0 };
    }
    // SAFETY: 16 bytes each.
    let (no_match, shifts) = unsafe {
        (
            _mm256_broadcastsi128_si256(_mm_loadu_si128(no_match.as_ptr().cast())),
            _mm256_broadcastsi128_si256(_mm_loadu_si128(shifts.as_ptr().cast())),
        )
    };
    let zero = _mm256_setzero_si256();
    let mut prefix_planes = planes.0;
    (prefix_planes[0], prefix_planes[1]) = (no_match, zero);
    let prefix_planes = Planes(prefix_planes);
    let wide = _mm256_set1_epi64x((templates.values[Templates::WIDE] >> 32) as i64);
    let above_prefix = _mm256_set1_epi8(templates.prefix_first() as i8 - 1);
    let above_wide = _mm256_set1_epi8(templates.wide_first() as i8 - 1);
    let raw_tag = _mm256_set1_epi8(TAG_RAW as i8);
    let counting = _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7);

    let mut line_shifts = Aligned([0u8; 32]);
    let (mut a_len, mut b_len, mut raw_len) = (0, 0, 0);
    let blocks = page_words(page).as_chunks::<32>().0;
    // Suggestions are made one block ahead: they take other parts of the machine than the vector code, and bytes just
    // stored cannot be loaded as vectors at once.
    let mut suggested = [[Aligned([0; 32]), Aligned([0; 32])], [Aligned([0; 32]), Aligned([0; 32])]];
    suggest(templates, &blocks[0], &mut suggested[0]);
    for block in 0..LINES / 4 {
        suggest(templates, &blocks[(block + 1) % 16], &mut suggested[(block + 1) % 2]);
        prefetch(&next[256 * block..256 * (block + 1)]);
        let [exact, prefix] = &suggested[block % 2];
        // SAFETY: 128 times 32 bytes of a page; 32 bytes, aligned.
        let (words, exact, prefix) = unsafe {
            let words: [__m256i; 8] =
                std::array::from_fn(|at| _mm256_loadu_si256(page.as_ptr().add(256 * block + 32 * at).cast()));
            let exact = _mm256_load_si256(exact.0.as_ptr().cast());
            (words, exact, _mm256_load_si256(prefix.0.as_ptr().cast()))
        };
        let (exact, prefix) = (paired(exact), paired(prefix));
        // From the lowest priority to the highest, each overriding the one before.
        let same = pack(words.map(|word| _mm256_cmpeq_epi64(_mm256_srli_epi64::<32>(word), wide)));
        let mut tags = _mm256_blendv_epi8(raw_tag, _mm256_set1_epi8(Templates::WIDE as i8), same);
        if ROTATES {
            if let Some(tag) = templates.rotated_wide {
                let low = _mm256_set1_epi64x(0xffff_ffff);
                let clear = pack(words.map(|word| _mm256_cmpeq_epi64(_mm256_and_si256(word, low), zero)));
                tags = _mm256_blendv_epi8(tags, _mm256_set1_epi8(tag as i8), clear);
            }
            if let Some(tag) = templates.rotated_prefix {
                let rest = _mm256_set1_epi64x(0xffff_0000_ffff_ffff_u64 as i64);
                let clear = pack(words.map(|word| _mm256_cmpeq_epi64(_mm256_and_si256(word, rest), zero)));
                tags = _mm256_blendv_epi8(tags, _mm256_set1_epi8(tag as i8), clear);
            }
        }
        let upper = _mm256_set1_epi64x(!0xffff);
        let mut same = prefix_planes.look_up(prefix);
        for (same, &word) in same.iter_mut().zip(&words) {
            *same = _mm256_cmpeq_epi64(_mm256_and_si256(word, upper), *same);
        }
        tags = _mm256_blendv_epi8(tags, prefix, pack(same));
        let mut same = planes.look_up(exact);
        for (same, &word) in same.iter_mut().zip(&words) {
            *same = _mm256_cmpeq_epi64(word, *same);
        }
        let tags = unpaired(_mm256_blendv_epi8(tags, exact, pack(same)));

        // Two tags a byte.
        let nibbles = _mm256_maddubs_epi16(tags, _mm256_set1_epi16(0x1001));
        let nibbles = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(nibbles, nibbles));
        // SAFETY: sixteen times four lines of 64.
        unsafe {
            let at = work.all_lines.as_mut_ptr().add(4 * block);
            _mm_storeu_si128(at.cast(), _mm256_castsi256_si128(nibbles));
        }
        let raw = _mm256_movemask_epi8(_mm256_cmpeq_epi8(tags, raw_tag)) as u32;
        let a = _mm256_movemask_epi8(_mm256_cmpgt_epi8(tags, above_prefix)) as u32 & !raw;
        let b = _mm256_movemask_epi8(_mm256_cmpgt_epi8(tags, above_wide)) as u32 & !raw;
        if ROTATES {
            // SAFETY: 32 bytes, aligned.
            unsafe {
                _mm256_store_si256(line_shifts.0.as_mut_ptr().cast(), _mm256_shuffle_epi8(shifts, tags))
            };
        }

        for line in 0..4 {
            let mut halves = [words[2 * line], words[2 * line + 1]];
            if ROTATES {
                for (half, words) in halves.iter_mut().enumerate() {
                    // SAFETY: eight times four bytes of 32.
                    let shifts = unsafe {
                        line_shifts.0.as_ptr().add(8 * line + 4 * half).cast::<i32>().read_unaligned()
                    };
                    *words = _mm256_srlv_epi64(*words, _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(shifts)));
                }
            }
            let [first, second] = halves.map(|half| _mm256_castsi256_ps(half));
            let lows = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(first, second));
            let lows = _mm256_permute4x64_epi64::<0b11_01_10_00>(lows);
            let apart = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
            let quarters = _mm256_shuffle_epi8(lows, _mm256_broadcastsi128_si256(apart));
            let quarters = _mm256_permute4x64_epi64::<0b11_01_10_00>(quarters);
            let (a, b, raw) = (a >> (8 * line) & 0xff, b >> (8 * line) & 0xff, raw >> (8 * line) & 0xff);
            let a_half = _mm_shuffle_epi8(_mm256_castsi256_si128(quarters), shuffle(&COMPRESS, a));
            let b_half = _mm_shuffle_epi8(_mm256_extracti128_si256::<1>(quarters), shuffle(&COMPRESS, b));
            let places = _mm_add_epi16(counting, _mm_set1_epi16(8 * (4 * block + line) as i16));
            let places = _mm_shuffle_epi8(places, shuffle(&COMPRESS, raw));
            // SAFETY: at most 512 of each come, and the buffers have room for 32 more.
            unsafe {
                _mm_storeu_si128(work.a.as_mut_ptr().add(a_len).cast(), a_half);
                _mm_storeu_si128(work.b.as_mut_ptr().add(b_len).cast(), b_half);
                _mm_storeu_si128(work.raw_places.as_mut_ptr().add(raw_len).cast(), places);
            }
            a_len += a.count_ones() as usize;
            b_len += b.count_ones() as usize;
            raw_len += raw.count_ones() as usize;
        }
    }
    (work.a_len, work.b_len, work.all_raws_len) = (a_len, b_len, raw_len);
    raw_len
}

/// Second half of the encoder; see the portable one.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(crate) fn reduce(work: &mut Work, page: &[u8; PAGE_SIZE]) {
    raws::refer(work, page_words(page));
    portable::share_lines(work);
}

/// Writes the object; see the portable one.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(crate) fn write(work: &Work, out: &mut [u8]) {
    portable::write(work, out);
}
