//! Lanes with SSE4.1 and with AVX2.

use std::arch::x86_64::*;

use super::Lanes;

/// One lane: SSSE3 and SSE4.1.
#[derive(Clone, Copy)]
pub(crate) struct Xmm(__m128i);

/// Two lanes: AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Ymm(__m256i);

/// Functions of one or a few instructions.
macro_rules! plain {
    ($type:ident: $(fn $name:ident($a:ident $(, $b:ident)*) => $value:expr;)*) => {
        $(
            #[inline(always)]
            fn $name(self $(, $b: Self)*) -> Self {
                let $a = self.0;
                $(let $b = $b.0;)*
                // SAFETY: the value's creator has vouched for the instructions.
                unsafe { $type($value) }
            }
        )*
    };
}

macro_rules! zips {
    ($type:ident: $($name:ident $low:ident $high:ident;)*) => {
        $(
            #[inline(always)]
            fn $name(self, other: Self) -> (Self, Self) {
                // SAFETY: the value's creator has vouched for the instructions.
                unsafe { ($type($low(self.0, other.0)), $type($high(self.0, other.0))) }
            }
        )*
    };
}

impl Lanes for Xmm {
    type Lane = Xmm;
    const COUNT: usize = 1;

    plain! { Xmm:
        fn and(a, b) => _mm_and_si128(a, b);
        fn or(a, b) => _mm_or_si128(a, b);
        fn xor(a, b) => _mm_xor_si128(a, b);
        fn without(a, b) => _mm_andnot_si128(b, a);
        fn add(a, b) => _mm_add_epi8(a, b);
        fn same(a, b) => _mm_cmpeq_epi8(a, b);
        fn max(a, b) => _mm_max_epu8(a, b);
        fn sub16(a, b) => _mm_sub_epi16(a, b);
        fn less16(a, b) => _mm_cmpgt_epi16(b, a);
        fn choose(a, mask, other) => _mm_blendv_epi8(other, a, mask);
        fn high_nibbles(a) => _mm_and_si128(_mm_srli_epi16::<4>(a), _mm_set1_epi8(15));
        fn shuffle(a, places) => _mm_shuffle_epi8(a, places);
    }
    zips! { Xmm:
        zip8 _mm_unpacklo_epi8 _mm_unpackhi_epi8;
        zip16 _mm_unpacklo_epi16 _mm_unpackhi_epi16;
        zip32 _mm_unpacklo_epi32 _mm_unpackhi_epi32;
    }

    #[inline(always)]
    unsafe fn splat(byte: u8) -> Self {
        // SAFETY: the caller vouches for the machine.
        Xmm(unsafe { _mm_set1_epi8(byte as i8) })
    }

    #[inline(always)]
    unsafe fn splat16(word: i16) -> Self {
        // SAFETY: the caller vouches for the machine.
        Xmm(unsafe { _mm_set1_epi16(word) })
    }

    #[inline(always)]
    unsafe fn load(at: *const u8, _: usize) -> Self {
        // SAFETY: the caller vouches for the machine and the place.
        Xmm(unsafe { _mm_loadu_si128(at.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8, _: usize) {
        // SAFETY: the caller vouches for the place.
        unsafe { _mm_storeu_si128(at.cast(), self.0) }
    }

    #[inline(always)]
    fn join(mut make: impl FnMut(usize) -> Xmm) -> Self {
        make(0)
    }

    #[inline(always)]
    fn lane(self, _: usize) -> Xmm {
        self
    }

    #[inline(always)]
    unsafe fn load_nibbles(at: *const u8) -> Self {
        // SAFETY: the caller vouches for the machine and the place.
        unsafe {
            let bytes = _mm_loadl_epi64(at.cast());
            let pairs = _mm_unpacklo_epi8(bytes, _mm_srli_epi16::<4>(bytes));
            Xmm(_mm_and_si128(pairs, _mm_set1_epi8(15)))
        }
    }

    #[inline(always)]
    unsafe fn store_nibbles(self, at: *mut u8) {
        // SAFETY: the caller vouches for the place, the value's creator for the machine.
        unsafe {
            let words = _mm_maddubs_epi16(self.0, _mm_set1_epi16(0x1001));
            _mm_storel_epi64(at.cast(), _mm_packus_epi16(words, words));
        }
    }

    #[inline(always)]
    fn bits<const BIT: i32>(self) -> u32 {
        // SAFETY: the value's creator has vouched for the instructions.
        unsafe { _mm_movemask_epi8(_mm_sll_epi16(self.0, _mm_cvtsi32_si128(7 - BIT))) as u32 }
    }
}

impl Lanes for Ymm {
    type Lane = Xmm;
    const COUNT: usize = 2;

    plain! { Ymm:
        fn and(a, b) => _mm256_and_si256(a, b);
        fn or(a, b) => _mm256_or_si256(a, b);
        fn xor(a, b) => _mm256_xor_si256(a, b);
        fn without(a, b) => _mm256_andnot_si256(b, a);
        fn add(a, b) => _mm256_add_epi8(a, b);
        fn same(a, b) => _mm256_cmpeq_epi8(a, b);
        fn max(a, b) => _mm256_max_epu8(a, b);
        fn sub16(a, b) => _mm256_sub_epi16(a, b);
        fn less16(a, b) => _mm256_cmpgt_epi16(b, a);
        fn choose(a, mask, other) => _mm256_blendv_epi8(other, a, mask);
        fn high_nibbles(a) => _mm256_and_si256(_mm256_srli_epi16::<4>(a), _mm256_set1_epi8(15));
        fn shuffle(a, places) => _mm256_shuffle_epi8(a, places);
    }
    zips! { Ymm:
        zip8 _mm256_unpacklo_epi8 _mm256_unpackhi_epi8;
        zip16 _mm256_unpacklo_epi16 _mm256_unpackhi_epi16;
        zip32 _mm256_unpacklo_epi32 _mm256_unpackhi_epi32;
    }

    #[inline(always)]
    unsafe fn splat(byte: u8) -> Self {
        // SAFETY: the caller vouches for the machine.
        Ymm(unsafe { _mm256_set1_epi8(byte as i8) })
    }

    #[inline(always)]
    unsafe fn splat16(word: i16) -> Self {
        // SAFETY: the caller vouches for the machine.
        Ymm(unsafe { _mm256_set1_epi16(word) })
    }

    #[inline(always)]
    unsafe fn load(at: *const u8, apart: usize) -> Self {
        // SAFETY: the caller vouches for the machine and the places.
        unsafe {
            let low = _mm256_castsi128_si256(_mm_loadu_si128(at.cast()));
            Ymm(_mm256_inserti128_si256::<1>(low, _mm_loadu_si128(at.add(apart).cast())))
        }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8, apart: usize) {
        // SAFETY: the caller vouches for the places.
        unsafe {
            _mm_storeu_si128(at.cast(), _mm256_castsi256_si128(self.0));
            _mm_storeu_si128(at.add(apart).cast(), _mm256_extracti128_si256::<1>(self.0));
        }
    }

    #[inline(always)]
    fn join(mut make: impl FnMut(usize) -> Xmm) -> Self {
        let (low, high) = (make(0), make(1));
        // SAFETY: the lanes' creator has vouched for the instructions.
        Ymm(unsafe { _mm256_set_m128i(high.0, low.0) })
    }

    #[inline(always)]
    fn lane(self, number: usize) -> Xmm {
        // SAFETY: the value's creator has vouched for the instructions.
        unsafe {
            Xmm(if number == 0 {
                _mm256_castsi256_si128(self.0)
            } else {
                _mm256_extracti128_si256::<1>(self.0)
            })
        }
    }

    #[inline(always)]
    unsafe fn load_nibbles(at: *const u8) -> Self {
        // SAFETY: the caller vouches for the machine and the place.
        unsafe {
            let words = _mm256_cvtepu8_epi16(_mm_loadu_si128(at.cast()));
            let pairs = _mm256_or_si256(words, _mm256_slli_epi16::<4>(words));
            Ymm(_mm256_and_si256(pairs, _mm256_set1_epi8(15)))
        }
    }

    #[inline(always)]
    unsafe fn store_nibbles(self, at: *mut u8) {
        // SAFETY: the caller vouches for the place, the value's creator for the machine.
        unsafe {
            let words = _mm256_maddubs_epi16(self.0, _mm256_set1_epi16(0x1001));
            let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(words, words));
            _mm_storeu_si128(at.cast(), _mm256_castsi256_si128(bytes));
        }
    }

    #[inline(always)]
    fn bits<const BIT: i32>(self) -> u32 {
        // SAFETY: the value's creator has vouched for the instructions.
        unsafe { _mm256_movemask_epi8(_mm256_sll_epi16(self.0, _mm_cvtsi32_si128(7 - BIT))) as u32 }
    }

    #[inline(always)]
    unsafe fn hash<const SHIFT: i32>(lines: [*const u8; 2], multiplier: u64) -> Xmm {
        // SAFETY: the caller vouches for the machine and the places.
        unsafe {
            let quarters = [
                _mm256_loadu_si256(lines[0].cast()),
                _mm256_loadu_si256(lines[0].add(32).cast()),
                _mm256_loadu_si256(lines[1].cast()),
                _mm256_loadu_si256(lines[1].add(32).cast()),
            ];
            Xmm(hash::<SHIFT>(quarters, multiplier))
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn hash<const SHIFT: i32>(quarters: [__m256i; 4], multiplier: u64) -> __m128i {
    let low = _mm256_set1_epi64x((multiplier & 0xffff_ffff) as i64);
    let high = _mm256_set1_epi64x((multiplier >> 32) as i64);
    // Bits 44 to 51 of the product as bits 0 to 7 of each 64-bit word: bits 12 to 19 of its upper
    // half, to which the products of the lower halves and of unlike halves contribute.
    let [q0, q1, q2, q3] = quarters.map(|words| {
        let words = _mm256_srli_epi64::<SHIFT>(words);
        let both = _mm256_srli_epi64::<32>(_mm256_mul_epu32(words, low));
        let unlike = _mm256_add_epi64(
            _mm256_mul_epu32(words, high),
            _mm256_mul_epu32(_mm256_srli_epi64::<32>(words), low),
        );
        let sum = _mm256_srli_epi64::<12>(_mm256_add_epi64(both, unlike));
        _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi64x(255)))
    });
    // Lanes have words 0, 1, 4, 5, 8, 9, 12, 13 and the others.
    let words = _mm256_packus_epi32(
        _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(q0, q1)),
        _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(q2, q3)),
    );
    let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
    _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15))
}
