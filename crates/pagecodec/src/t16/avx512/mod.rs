//! The encoder and decoder with AVX-512 (F, BW, DQ, VL, VBMI, VBMI2, IFMA) and BMI1/2.
//!
//! Two rules throughout, both because of AMD. Values are compressed to a register and stored whole:
//! the memory form of the compress instructions is microcode. Nothing is gathered or scattered,
//! which is slow: permutes of whole tables in registers replace it.

mod decode;
mod encode;
mod select;

use std::arch::x86_64::*;

pub(crate) use decode::decode;
pub(crate) use encode::{analyse, reduce, write};

use super::work::Aligned;

/// An array of `first`, `first + step`, ...
macro_rules! spread_counting {
    ($type:ty, $len:literal, $step:literal, $first:literal) => {{
        let mut values: [$type; $len] = [0; $len];
        let mut at = 0;
        while at < $len {
            values[at] = $first + $step * at as $type;
            at += 1;
        }
        values
    }};
}
use spread_counting;

static COUNTING: Aligned<[u8; 64]> = Aligned(spread_counting!(u8, 64, 1, 0));

#[inline(always)]
fn low_bits(count: usize) -> u64 {
    (1u64 << count) - 1
}

/// From bytes ordered by word within the line, then line, to the order of the page.
static LINE_ORDER: Aligned<[u8; 64]> = {
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        bytes[at] = (at % 8 * 8 + at / 8) as u8;
        at += 1;
    }
    Aligned(bytes)
};

/// The even dwords (low halves of 64-bit words) of two registers.
static EVEN_DWORDS: Aligned<[u32; 16]> = Aligned(spread_counting!(u32, 16, 2, 0));
static ODD_DWORDS: Aligned<[u32; 16]> = Aligned(spread_counting!(u32, 16, 2, 1));
/// The even and the odd 16-bit words of two registers.
static EVEN_WORDS: Aligned<[u16; 32]> = Aligned(spread_counting!(u16, 32, 2, 0));
static ODD_WORDS: Aligned<[u16; 32]> = Aligned(spread_counting!(u16, 32, 2, 1));

/// A 256-byte table in four registers.
struct Table([__m512i; 4]);

impl Table {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn load(bytes: &[u8; 256]) -> Table {
        // SAFETY: four times 64 bytes of 256.
        Table(std::array::from_fn(|part| unsafe { _mm512_loadu_si512(bytes.as_ptr().add(64 * part).cast()) }))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn store(&self, bytes: &mut [u8; 256]) {
        for (part, entries) in self.0.iter().enumerate() {
            // SAFETY: four times 64 bytes of 256.
            unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().add(64 * part).cast(), *entries) };
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn look_up(&self, indices: __m512i) -> __m512i {
        let low = _mm512_permutex2var_epi8(self.0[0], indices, self.0[1]);
        let high = _mm512_permutex2var_epi8(self.0[2], indices, self.0[3]);
        _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(indices), high)
    }
}

/// Puts `tag` into the bytes that `byte` selects in the chosen lanes, `tags` elsewhere.
#[inline]
#[target_feature(enable = "avx512f")]
fn choose(tags: __m512i, lanes: __mmask8, byte: __m512i, tag: __m512i) -> __m512i {
    // For each bit: byte ? tag : tags.
    _mm512_mask_ternarylogic_epi64::<0xb8>(tags, lanes, byte, tag)
}
