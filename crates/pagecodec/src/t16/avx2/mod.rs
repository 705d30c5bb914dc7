//! The encoder and decoder with AVX2 and BMI1/2.
//!
//! AVX2 has no permute that looks up 64-bit values by 16 indices at a time. [`Planes`] takes its place: byte `j` of all
//! sixteen values in one register, looked up for 32 tags with one byte shuffle, and eight such results transposed back to
//! words: one instruction a word, against three and a half for scalar loads.

mod decode;
mod encode;

use std::arch::x86_64::*;

pub(crate) use decode::decode;
pub(crate) use encode::{analyse, reduce, write};

use super::work::Aligned;

/// For each set of eight: byte indices that move the 16-bit words of the set to the front, in order.
static COMPRESS: Aligned<[[u8; 16]; 256]> = Aligned(shuffles(true));
/// For each set of eight: byte indices that move the first 16-bit words to the places of the set; zero elsewhere.
static EXPAND: Aligned<[[u8; 16]; 256]> = Aligned(shuffles(false));

const fn shuffles(compress: bool) -> [[u8; 16]; 256] {
    let mut table = [[0x80; 16]; 256];
    let mut set = 0;
    while set < 256 {
        let (mut k, mut rank) = (0, 0);
        while k < 8 {
            if set >> k & 1 == 1 {
                let (to, from) = if compress { (rank, k) } else { (k, rank) };
                table[set][2 * to] = 2 * from as u8;
                table[set][2 * to + 1] = 2 * from as u8 + 1;
                rank += 1;
            }
            k += 1;
        }
        set += 1;
    }
    table
}

/// The entry of one of the two tables for the low eight bits of `set`.
#[inline]
#[target_feature(enable = "avx2")]
fn shuffle(table: &Aligned<[[u8; 16]; 256]>, set: u32) -> __m128i {
    // SAFETY: 16 bytes, aligned.
    unsafe { _mm_load_si128(table.0[set as usize & 255].as_ptr().cast()) }
}

/// Sixteen 64-bit values, byte by byte.
struct Planes([__m256i; 8]);

impl Planes {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(values: &[u64; 16]) -> Planes {
        // SAFETY: eight times two of 16 values.
        let pairs: [__m128i; 8] =
            std::array::from_fn(|at| unsafe { _mm_loadu_si128(values.as_ptr().add(2 * at).cast()) });
        // Four rounds of interleaving; each halves the distance of values that stand side by side: 8, 4, 2, 1.
        let mix = |rows: [__m128i; 8]| -> [__m128i; 8] {
            let mut mixed = rows;
            for at in 0..4 {
                mixed[2 * at] = _mm_unpacklo_epi8(rows[at], rows[at + 4]);
                mixed[2 * at + 1] = _mm_unpackhi_epi8(rows[at], rows[at + 4]);
            }
            mixed
        };
        Planes(mix(mix(mix(mix(pairs)))).map(|plane| _mm256_broadcastsi128_si256(plane)))
    }

    /// The values of 32 tags that are in [`paired`] order: register `i` has those of words `4 i` to `4 i + 3`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn look_up(&self, tags: __m256i) -> [__m256i; 8] {
        gather_words(self.0.map(|plane| _mm256_shuffle_epi8(plane, tags)))
    }
}

/// Puts bytes together to words: byte `j` of each word comes from register `j`.
#[inline]
#[target_feature(enable = "avx2")]
fn gather_words(bytes: [__m256i; 8]) -> [__m256i; 8] {
    let [b0, b1, b2, b3, b4, b5, b6, b7] = bytes;
    // 16-bit quarters, then 32-bit halves, then words; the first four registers get the first eight words of each half.
    let join = |q0, q1, q2, q3| -> [__m256i; 4] {
        let (low0, high0) = (_mm256_unpacklo_epi16(q0, q1), _mm256_unpacklo_epi16(q2, q3));
        let (low1, high1) = (_mm256_unpackhi_epi16(q0, q1), _mm256_unpackhi_epi16(q2, q3));
        [
            _mm256_unpacklo_epi32(low0, high0),
            _mm256_unpackhi_epi32(low0, high0),
            _mm256_unpacklo_epi32(low1, high1),
            _mm256_unpackhi_epi32(low1, high1),
        ]
    };
    let [w0, w1, w2, w3] = join(
        _mm256_unpacklo_epi8(b0, b1),
        _mm256_unpacklo_epi8(b2, b3),
        _mm256_unpacklo_epi8(b4, b5),
        _mm256_unpacklo_epi8(b6, b7),
    );
    let [w4, w5, w6, w7] = join(
        _mm256_unpackhi_epi8(b0, b1),
        _mm256_unpackhi_epi8(b2, b3),
        _mm256_unpackhi_epi8(b4, b5),
        _mm256_unpackhi_epi8(b6, b7),
    );
    [w0, w1, w2, w3, w4, w5, w6, w7]
}

/// Reorders 32 bytes so that those of words 0, 1, 4, 5, 8, 9 .. are in the low and the others in the high half: the order
/// in which interleaving, which works in halves, yields consecutive words.
#[inline]
#[target_feature(enable = "avx2")]
fn paired(bytes: __m256i) -> __m256i {
    let even_first =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_shuffle_epi8(bytes, even_first))
}

/// Undoes [`paired`].
#[inline]
#[target_feature(enable = "avx2")]
fn unpaired(bytes: __m256i) -> __m256i {
    let interleave =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    _mm256_shuffle_epi8(_mm256_permute4x64_epi64::<0b11_01_10_00>(bytes), interleave)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[target_feature(enable = "avx2")]
    fn look_up(values: &[u64; 16], tags: &[u8; 32]) -> [u64; 32] {
        // SAFETY: 32 bytes.
        let tags = paired(unsafe { _mm256_loadu_si256(tags.as_ptr().cast()) });
        let mut words = [0; 32];
        for (at, found) in Planes::new(values).look_up(tags).into_iter().enumerate() {
            // SAFETY: eight times four of 32 words.
            unsafe { _mm256_storeu_si256(words.as_mut_ptr().add(4 * at).cast(), found) };
        }
        words
    }

    #[target_feature(enable = "avx2")]
    fn there_and_back(bytes: &mut [u8; 32]) {
        // SAFETY: 32 bytes.
        unsafe {
            let there = paired(_mm256_loadu_si256(bytes.as_ptr().cast()));
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), unpaired(there));
        }
    }

    #[test]
    fn planes_yield_the_values_in_order() {
        if !crate::Isa::Avx2.is_available() {
            println!("skipped: no AVX2");
            return;
        }
        let values: [u64; 16] =
            std::array::from_fn(|at| (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at as u64);
        let tags: [u8; 32] = std::array::from_fn(|at| (at * 7 % 16) as u8);
        // SAFETY: the machine has AVX2.
        let words = unsafe { look_up(&values, &tags) };
        assert_eq!(words, tags.map(|tag| values[usize::from(tag)]));
        let mut bytes: [u8; 32] = std::array::from_fn(|at| at as u8);
        // SAFETY: the machine has AVX2.
        unsafe { there_and_back(&mut bytes) };
        assert_eq!(bytes, std::array::from_fn(|at| at as u8));
    }

    #[test]
    fn shuffles_move_the_words_of_a_set() {
        assert_eq!(COMPRESS.0[0b1010_0000][..6], [10, 11, 14, 15, 0x80, 0x80]);
        assert_eq!(EXPAND.0[0b0000_0110][..8], [0x80, 0x80, 0, 1, 2, 3, 0x80, 0x80]);
    }
}
