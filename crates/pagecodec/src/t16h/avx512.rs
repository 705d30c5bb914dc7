//! Splitting and joining with AVX-512 (VBMI, VBMI2). As in T16, values are compressed to a register
//! and stored whole, and nothing is gathered or scattered.

use std::arch::x86_64::*;

use super::symbols::{Symbols, A_MAX};
use super::Damaged;
use crate::t16::Layout;

static COUNTING: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        bytes[at] = at as u8;
        at += 1;
    }
    bytes
};

/// The order in which unpacking nibbles within 128 bits sorts 16 lines: 0, 1, 8, 9, 2, 3 and so on.
static LINE_ORDER: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        let (group, k) = (at / 16 * 16, at % 16);
        bytes[at] = (group + k / 4 * 2 + k % 2 + 8 * (k / 2 % 2)) as u8;
        at += 1;
    }
    bytes
};

/// Index that moves word `k - distance` to word `k`.
const fn shifted(distance: usize) -> [u16; 32] {
    let mut words = [0; 32];
    let mut at = distance;
    while at < 32 {
        words[at] = (at - distance) as u16;
        at += 1;
    }
    words
}
static SHIFTED: [[u16; 32]; 5] = [shifted(1), shifted(2), shifted(4), shifted(8), shifted(16)];

/// Most registers of tags, including the exact templates'.
const GROUPS_MAX: usize = A_MAX.div_ceil(64);

/// Bits 0 to `count - 1`, at most all 64.
#[inline(always)]
fn first_bits(count: usize) -> u64 {
    if count >= 64 {
        !0
    } else {
        (1 << count) - 1
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn constant<T, const LEN: usize>(values: &[T; LEN]) -> __m512i {
    const { assert!(size_of::<T>() * LEN == 64) };
    // SAFETY: 64 bytes are read.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

impl Symbols {
    /// Lists the tags whose literals form stream A.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
    )]
    fn list_tags_avx512(&mut self, object: &[u8], layout: &Layout) -> Result<(), Damaged> {
        let first = layout.prefix_first();
        let mut count = self.list_exact_tags(layout);
        assert!(
            layout.index_at + 64 <= object.len() && layout.lines_at + 4 * layout.lines_len == object.len()
        );
        // SAFETY: an object has 64 - n index bytes and four bytes for each of n lines (asserted
        // above), at least 64 together.
        let index = unsafe { _mm512_loadu_si512(object.as_ptr().add(layout.index_at).cast()) };
        let numbers = _mm512_mask_expand_epi8(
            _mm512_maskz_expand_epi8(!layout.fresh, index),
            layout.fresh,
            constant(&COUNTING),
        );
        if _mm512_cmpge_epu8_mask(numbers, _mm512_set1_epi8(layout.lines_len as i8)) != 0 {
            return Err(Damaged);
        }
        let numbers = _mm512_permutexvar_epi8(constant(&LINE_ORDER), numbers);
        let mut lines = [_mm512_setzero_si512(); 4];
        for (part, lines) in lines.iter_mut().enumerate() {
            let mask = first_bits(layout.lines_len.saturating_sub(16 * part)) as u16;
            // SAFETY: the lines that the mask selects end the object; nothing else is read.
            *lines = unsafe {
                let from = object.as_ptr().wrapping_add(layout.lines_at + 64 * part);
                _mm512_maskz_loadu_epi32(mask, from.cast())
            };
        }
        let (lowest, span) = (_mm512_set1_epi8(first as i8), _mm512_set1_epi8(14 - first as i8));
        let nibble = _mm512_set1_epi8(15);
        let quarters = [
            _mm512_castsi512_si128(numbers),
            _mm512_extracti32x4_epi32::<1>(numbers),
            _mm512_extracti32x4_epi32::<2>(numbers),
            _mm512_extracti32x4_epi32::<3>(numbers),
        ];
        for quarter in quarters {
            let number = _mm512_cvtepu8_epi32(quarter);
            let near = _mm512_permutex2var_epi32(lines[0], number, lines[1]);
            let far = _mm512_permutex2var_epi32(lines[2], number, lines[3]);
            let is_far = _mm512_test_epi32_mask(number, _mm512_set1_epi32(32));
            let tags = _mm512_mask_mov_epi32(near, is_far, far);
            let (even, odd) =
                (_mm512_and_si512(tags, nibble), _mm512_and_si512(_mm512_srli_epi32::<4>(tags), nibble));
            for tags in [_mm512_unpacklo_epi8(even, odd), _mm512_unpackhi_epi8(even, odd)] {
                let takes = _mm512_cmplt_epu8_mask(_mm512_sub_epi8(tags, lowest), span);
                let kept = _mm512_maskz_compress_epi8(takes, tags);
                // SAFETY: at most 13 + 7 * 64 tags precede these, and there is room for A_MAX + 64.
                unsafe { _mm512_storeu_si512(self.tags.as_mut_ptr().add(count).cast(), kept) };
                count += takes.count_ones() as usize;
            }
        }
        if count == layout.a_len {
            Ok(())
        } else {
            Err(Damaged)
        }
    }

    /// [`Symbols::split`] with AVX-512. The machine must have the instructions.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
    )]
    pub(super) unsafe fn split_avx512(&mut self, object: &[u8], layout: &Layout) -> Result<(), Damaged> {
        self.list_tags_avx512(object, layout)?;
        let base = object.as_ptr();
        let (a_len, b_len) = (layout.a_len, layout.b_len);
        assert!(a_len <= A_MAX && b_len <= A_MAX && layout.refs_at + 64 <= object.len());
        self.symbols[0][..4 * layout.lines_len].copy_from_slice(&object[layout.lines_at..]);

        // The halves of one tag after the other.
        let groups = a_len.div_ceil(64);
        let (mut place, mut starts) = (1, [0; 16]);
        for (tag, start) in starts.iter_mut().enumerate().take(14).skip(layout.prefix_first()) {
            *start = place;
            let wanted = _mm512_set1_epi8(tag as i8);
            for group in 0..groups {
                // SAFETY: `tags` has room for the last group. At least 67 bytes follow stream A, so
                // its last 128 bytes may be read with a mask, or 64 of them without.
                let (tags, low, high) = unsafe {
                    let from = base.wrapping_add(layout.a_at + 128 * group);
                    (
                        _mm512_loadu_si512(self.tags.as_ptr().add(64 * group).cast()),
                        _mm512_loadu_si512(from.cast()),
                        _mm512_maskz_loadu_epi16(
                            first_bits((a_len - 64 * group).saturating_sub(32)) as u32,
                            from.wrapping_add(64).cast(),
                        ),
                    )
                };
                let mine = _mm512_mask_cmpeq_epu8_mask(first_bits(a_len - 64 * group), tags, wanted);
                for (mask, halves) in [(mine as u32, low), ((mine >> 32) as u32, high)] {
                    let kept = _mm512_maskz_compress_epi16(mask, halves);
                    // SAFETY: at most `a_len` halves precede these, with room for A_MAX + 64.
                    unsafe { _mm512_storeu_si512(self.sorted.as_mut_ptr().add(place).cast(), kept) };
                    place += mask.count_ones() as usize;
                }
            }
        }
        debug_assert!(place == 1 + a_len);
        let [_, lows, highs, ..] = &mut self.symbols;
        for at in (0..a_len).step_by(32) {
            // SAFETY: reads end 33 after A_MAX at most, writes 32 after it; the arrays are longer.
            unsafe {
                let from = self.sorted.as_ptr().add(at);
                let halves = _mm512_loadu_si512(from.add(1).cast());
                let difference = _mm512_sub_epi16(halves, _mm512_loadu_si512(from.cast()));
                let rotated = _mm512_shrdi_epi16::<3>(difference, difference);
                _mm256_storeu_si256(lows.as_mut_ptr().add(at).cast(), _mm512_cvtepi16_epi8(rotated));
                let upper = _mm512_cvtepi16_epi8(_mm512_srli_epi16::<8>(rotated));
                _mm256_storeu_si256(highs.as_mut_ptr().add(at).cast(), upper);
            }
        }
        // The first half of each tag is a difference from zero.
        for &start in &starts[layout.prefix_first()..14] {
            if start <= a_len {
                [lows[start - 1], highs[start - 1]] = self.sorted[start].rotate_right(3).to_le_bytes();
            }
        }

        for at in (0..b_len).step_by(32) {
            // SAFETY: at least 67 bytes follow stream B. Low bytes are written before high ones,
            // which begin where they end; there is room for 64 bytes more.
            unsafe {
                let halves = _mm512_loadu_si512(base.add(layout.b_at + 2 * at).cast());
                let to = self.symbols[3].as_mut_ptr();
                _mm256_storeu_si256(to.add(at).cast(), _mm512_cvtepi16_epi8(halves));
            }
        }
        for at in (0..b_len).step_by(32) {
            // SAFETY: as above.
            unsafe {
                let halves = _mm512_loadu_si512(base.add(layout.b_at + 2 * at).cast());
                let to = self.symbols[3].as_mut_ptr().add(b_len + at);
                _mm256_storeu_si256(to.cast(), _mm512_cvtepi16_epi8(_mm512_srli_epi16::<8>(halves)));
            }
        }
        if self.packed.is_some() {
            return Ok(());
        }
        let [.., lows, highs] = &mut self.symbols;
        for at in (0..layout.raw_len).step_by(8) {
            // SAFETY: at least 67 bytes follow the raw words, of which there are at most 525.
            unsafe {
                let words = _mm512_loadu_si512(base.add(layout.raw_at + 8 * at).cast());
                _mm256_storeu_si256(lows.as_mut_ptr().add(4 * at).cast(), _mm512_cvtepi64_epi32(words));
                let upper = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(words));
                _mm256_storeu_si256(highs.as_mut_ptr().add(4 * at).cast(), upper);
            }
        }
        Ok(())
    }

    /// [`Symbols::join`] with AVX-512. The machine must have the instructions.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
    )]
    pub(super) unsafe fn join_avx512(&mut self, object: &mut [u8], layout: &Layout) -> Result<(), Damaged> {
        self.list_tags_avx512(object, layout)?;
        let (a_len, b_len) = (layout.a_len, layout.b_len);
        assert!(a_len <= A_MAX && b_len <= A_MAX && layout.lines_at <= object.len());
        let base = object.as_mut_ptr();

        // Sums of all differences from the first on. Within a tag they differ from its halves by
        // the sum before it.
        let [_, lows, highs, ..] = &self.symbols;
        let mut carry = _mm512_setzero_si512();
        let last = _mm512_set1_epi16(31);
        self.sorted[0] = 0;
        for at in (0..a_len).step_by(32) {
            // SAFETY: 32 bytes after A_MAX are there, and room for A_MAX + 64 halves.
            let (low, high) = unsafe {
                (
                    _mm256_loadu_si256(lows.as_ptr().add(at).cast()),
                    _mm256_loadu_si256(highs.as_ptr().add(at).cast()),
                )
            };
            let high = _mm512_slli_epi16::<8>(_mm512_cvtepu8_epi16(high));
            let rotated = _mm512_or_si512(high, _mm512_cvtepu8_epi16(low));
            let mut sums = _mm512_shldi_epi16::<3>(rotated, rotated);
            for (step, distance) in SHIFTED.iter().zip([1, 2, 4, 8, 16]) {
                let before = _mm512_maskz_permutexvar_epi16(!0 << distance, constant(step), sums);
                sums = _mm512_add_epi16(sums, before);
            }
            sums = _mm512_add_epi16(sums, carry);
            carry = _mm512_permutexvar_epi16(last, sums);
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(self.sorted.as_mut_ptr().add(1 + at).cast(), sums) };
        }
        let groups = a_len.div_ceil(64);
        let mut halves = [[_mm512_setzero_si512(); 2]; GROUPS_MAX];
        let mut place = 1;
        for tag in layout.prefix_first()..14 {
            let wanted = _mm512_set1_epi8(tag as i8);
            let base = _mm512_set1_epi16(self.sorted[place - 1] as i16);
            for (group, halves) in halves[..groups].iter_mut().enumerate() {
                // SAFETY: `tags` has room for the last group.
                let tags = unsafe { _mm512_loadu_si512(self.tags.as_ptr().add(64 * group).cast()) };
                let mine = _mm512_mask_cmpeq_epu8_mask(first_bits(a_len - 64 * group), tags, wanted);
                for (mask, halves) in [mine as u32, (mine >> 32) as u32].into_iter().zip(halves) {
                    // SAFETY: at most `a_len` halves precede these, and A_MAX + 64 are there.
                    let sums = unsafe { _mm512_loadu_si512(self.sorted.as_ptr().add(place).cast()) };
                    *halves = _mm512_mask_expand_epi16(*halves, mask, _mm512_sub_epi16(sums, base));
                    place += mask.count_ones() as usize;
                }
            }
        }
        for (part, halves) in halves.as_flattened()[..a_len.div_ceil(32)].iter().enumerate() {
            let mask = first_bits(a_len - 32 * part) as u32;
            // SAFETY: the mask ends with stream A.
            unsafe { _mm512_mask_storeu_epi16(base.add(layout.a_at + 64 * part).cast(), mask, *halves) };
        }

        for at in (0..b_len).step_by(32) {
            // SAFETY: 32 bytes after A_MAX are there; the mask ends with stream B.
            unsafe {
                let from = self.symbols[3].as_ptr().add(at);
                let low = _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast()));
                let high = _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.add(b_len).cast()));
                let halves = _mm512_or_si512(low, _mm512_slli_epi16::<8>(high));
                let to = base.add(layout.b_at + 2 * at);
                _mm512_mask_storeu_epi16(to.cast(), first_bits(b_len - at) as u32, halves);
            }
        }
        if self.packed.is_some() {
            return Ok(());
        }
        let [.., lows, highs] = &self.symbols;
        for at in (0..layout.raw_len).step_by(8) {
            // SAFETY: at most 525 raw words, room in the arrays for 544; the mask ends with them.
            unsafe {
                let low = _mm256_loadu_si256(lows.as_ptr().add(4 * at).cast());
                let high = _mm256_loadu_si256(highs.as_ptr().add(4 * at).cast());
                let high = _mm512_slli_epi64::<32>(_mm512_cvtepu32_epi64(high));
                let words = _mm512_or_si512(high, _mm512_cvtepu32_epi64(low));
                let mask = first_bits(layout.raw_len - at) as u8;
                _mm512_mask_storeu_epi64(base.add(layout.raw_at + 8 * at).cast(), mask, words);
            }
        }
        Ok(())
    }
}
