//! Finds how long two places of the input are equal.

/// Compares a fixed number of bytes with the instructions of one set.
pub(super) trait Compare {
    const BYTES: usize;

    /// Returns how many of them are equal from the front.
    ///
    /// # Safety
    /// Both places must have [`Compare::BYTES`] readable bytes, the machine the instructions.
    unsafe fn equal(a: *const u8, b: *const u8) -> usize;
}

/// 32 bytes with the instructions of every machine.
pub(super) struct Portable;

impl Compare for Portable {
    const BYTES: usize = 32;

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn equal(a: *const u8, b: *const u8) -> usize {
        use std::arch::x86_64::*;
        // SAFETY: the caller vouches for both places; SSE2 is part of the architecture.
        unsafe {
            let low = _mm_cmpeq_epi8(_mm_loadu_si128(a.cast()), _mm_loadu_si128(b.cast()));
            let high = _mm_cmpeq_epi8(_mm_loadu_si128(a.add(16).cast()), _mm_loadu_si128(b.add(16).cast()));
            let equal = _mm_movemask_epi8(low) as u32 | (_mm_movemask_epi8(high) as u32) << 16;
            (!equal).trailing_zeros() as usize
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn equal(a: *const u8, b: *const u8) -> usize {
        // SAFETY: the caller vouches for both places.
        unsafe {
            let differ = |at: usize| {
                let (a, b) = (a.add(at).cast::<u128>(), b.add(at).cast::<u128>());
                u128::from_le(a.read_unaligned() ^ b.read_unaligned())
            };
            let low = (differ(0).trailing_zeros() / 8) as usize;
            let high = (differ(16).trailing_zeros() / 8) as usize;
            if low < 16 {
                low
            } else {
                16 + high
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Compare for Avx2 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn equal(a: *const u8, b: *const u8) -> usize {
        use std::arch::x86_64::*;
        // SAFETY: the caller vouches for both places, and for AVX2.
        unsafe {
            let equal = _mm256_cmpeq_epi8(_mm256_loadu_si256(a.cast()), _mm256_loadu_si256(b.cast()));
            (!_mm256_movemask_epi8(equal) as u32).trailing_zeros() as usize
        }
    }
}

/// 64 bytes in AVX-512: loads usually cross cache lines, but 32 equal bytes need no branch.
#[cfg(target_arch = "x86_64")]
pub(super) struct Avx512;

#[cfg(target_arch = "x86_64")]
impl Compare for Avx512 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn equal(a: *const u8, b: *const u8) -> usize {
        use std::arch::x86_64::*;
        // SAFETY: the caller vouches for both places, and for AVX-512 BW.
        unsafe {
            let differ = _mm512_cmpneq_epi8_mask(_mm512_loadu_si512(a.cast()), _mm512_loadu_si512(b.cast()));
            differ.trailing_zeros() as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::Isa;

    fn check<C: Compare>() {
        let a = [7u8; 64];
        for differs in 0..64 {
            let mut b = a;
            b[differs] = 8;
            b[63] = 8;
            // SAFETY: 64 bytes are readable; the caller has checked the instructions.
            let equal = unsafe { C::equal(a.as_ptr(), b.as_ptr()) };
            assert_eq!(equal, differs.min(C::BYTES));
        }
        // SAFETY: as above.
        assert_eq!(unsafe { C::equal(a.as_ptr(), a.as_ptr()) }, C::BYTES);
    }

    #[test]
    fn the_first_difference_is_found() {
        check::<Portable>();
        #[cfg(target_arch = "x86_64")]
        {
            if Isa::Avx2.is_available() {
                check::<Avx2>();
            }
            if Isa::Avx512.is_available() {
                check::<Avx512>();
            }
        }
    }
}
