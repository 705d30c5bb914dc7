//! Writes bit streams with AVX2: joins and appends the codes of all eight streams in parallel.

use std::arch::x86_64::*;

use super::bits::{BitStreams, ROUND, STREAMS, STREAM_MAX};

/// Byte order by stream: even streams have the first bits in the highest byte; odd ones, which grow
/// downwards, are unchanged.
const ORDER: [u8; 16] = [7, 6, 5, 4, 3, 2, 1, 0, 8, 9, 10, 11, 12, 13, 14, 15];

/// Joined codes for four streams and their lengths in bits, 64 bits for each stream.
struct Joined {
    bits: __m256i,
    len: __m256i,
}

#[inline]
#[target_feature(enable = "avx2")]
fn look_up(symbols: &[u8; STREAMS], codes: &[u16; 256]) -> __m128i {
    // Inserted one by one: a joint load of single stores would stall.
    let code = |at: usize| i32::from(codes[usize::from(symbols[at])]);
    let mut row = _mm_cvtsi32_si128(code(0));
    row = _mm_insert_epi16::<1>(row, code(1));
    row = _mm_insert_epi16::<2>(row, code(2));
    row = _mm_insert_epi16::<3>(row, code(3));
    row = _mm_insert_epi16::<4>(row, code(4));
    row = _mm_insert_epi16::<5>(row, code(5));
    row = _mm_insert_epi16::<6>(row, code(6));
    _mm_insert_epi16::<7>(row, code(7))
}

/// Joins the codes of a round stream by stream: streams 0 to 3 and 4 to 7.
#[inline]
#[target_feature(enable = "avx2")]
fn join(round: &[u8; ROUND], codes: &[u16; 256]) -> [Joined; 2] {
    let (rows, _) = round.as_chunks::<STREAMS>();
    let [r0, r1, r2, r3] = [0, 1, 2, 3].map(|at| _mm256_cvtepu16_epi32(look_up(&rows[at], codes)));
    let len = |row| _mm256_and_si256(row, _mm256_set1_epi32(15));
    let code = |row| _mm256_srli_epi32::<4>(row);
    let pair = |first, second| {
        let bits = _mm256_or_si256(_mm256_sllv_epi32(code(first), len(second)), code(second));
        (bits, _mm256_add_epi32(len(first), len(second)))
    };
    let ((front, front_len), (back, back_len)) = (pair(r0, r1), pair(r2, r3));
    let wide = |words: __m256i| {
        [
            _mm256_cvtepu32_epi64(_mm256_castsi256_si128(words)),
            _mm256_cvtepu32_epi64(_mm256_extracti128_si256::<1>(words)),
        ]
    };
    let (front, back, back_len) = (wide(front), wide(back), wide(back_len));
    let front_len = wide(front_len);
    [0, 1].map(|half| Joined {
        bits: _mm256_or_si256(_mm256_sllv_epi64(front[half], back_len[half]), back[half]),
        len: _mm256_add_epi64(front_len[half], back_len[half]),
    })
}

impl BitStreams {
    /// [`BitStreams::put`] with AVX2 and BMI1/2, which the machine must have.
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) unsafe fn put_avx2(&mut self, symbols: &[u8], codes: &[u16; 256]) {
        let (rounds, rest) = symbols.as_chunks::<ROUND>();
        // SAFETY: arrays of 8 words of 64 bits (of 32 bits: of lengths); 16 bytes.
        let (mut pending, mut lens, order) = unsafe {
            let at = self.pending.as_ptr().cast::<__m256i>();
            let lens = self.pending_len.as_ptr().cast::<__m128i>();
            (
                [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))],
                [
                    _mm256_cvtepu32_epi64(_mm_loadu_si128(lens)),
                    _mm256_cvtepu32_epi64(_mm_loadu_si128(lens.add(1))),
                ],
                _mm256_broadcastsi128_si256(_mm_loadu_si128(ORDER.as_ptr().cast())),
            )
        };
        let mut ends = self.ends;
        for round in rounds {
            for (half, joined) in join(round, codes).into_iter().enumerate() {
                // At most 7 + 40 bits.
                let len = _mm256_add_epi64(lens[half], joined.len);
                let shift = _mm256_sub_epi64(_mm256_set1_epi64x(64), len);
                let bits = _mm256_or_si256(pending[half], _mm256_sllv_epi64(joined.bits, shift));
                let whole = _mm256_and_si256(len, _mm256_set1_epi64x(0x38));
                pending[half] = _mm256_sllv_epi64(bits, whole);
                lens[half] = _mm256_and_si256(len, _mm256_set1_epi64x(7));
                let bytes = _mm256_shuffle_epi8(bits, order);
                let (low, high) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
                let mut grown = [0u64; 4];
                // SAFETY: 32 bytes.
                unsafe { _mm256_storeu_si256(grown.as_mut_ptr().cast(), _mm256_srli_epi64::<3>(len)) };
                for (pair, words) in [low, high].into_iter().enumerate() {
                    let stream = 4 * half + 2 * pair;
                    let (even, odd) = (ends[stream], ends[stream + 1]);
                    assert!(even.max(odd) <= STREAM_MAX - 8, "a stream longer than the longest");
                    // SAFETY: eight bytes each at places within the streams' arrays, as asserted.
                    unsafe {
                        _mm_storel_epi64(self.bytes[stream].as_mut_ptr().add(even).cast(), words);
                        let place = self.bytes[stream + 1].as_mut_ptr().add(STREAM_MAX - 8 - odd);
                        _mm_storeh_pd(place.cast(), _mm_castsi128_pd(words));
                    }
                    ends[stream] += grown[2 * pair] as usize;
                    ends[stream + 1] += grown[2 * pair + 1] as usize;
                }
            }
        }
        self.ends = ends;
        // SAFETY: as above.
        unsafe {
            let mut list = [0u64; STREAMS];
            for half in 0..2 {
                _mm256_storeu_si256(self.pending.as_mut_ptr().cast::<__m256i>().add(half), pending[half]);
                _mm256_storeu_si256(list.as_mut_ptr().cast::<__m256i>().add(half), lens[half]);
            }
            self.pending_len = list.map(|len| len as u32);
        }
        self.put_rest(rest, codes);
    }
}
