//! Tests whether a page consists of a few long repeats.

use crate::{Isa, PAGE_SIZE};

/// Places that [`breaks`] looks at.
pub const PLACES: u32 = 16;
/// Four-byte units searched before a place: 512 bytes.
const WINDOW: usize = 128;

/// The places in four-byte units: aperiodic, and in an order that soon covers the whole page.
const AT: [usize; PLACES as usize] = {
    let mut at = [0; PLACES as usize];
    let mut place = 0;
    while place < PLACES as usize {
        let k = place * 5 % PLACES as usize;
        at[place] = WINDOW + 54 * k + 7 * k * k % 50;
        assert!(at[place] + 2 <= PAGE_SIZE / 4);
        place += 1;
    }
    at
};

/// Counts the places, of 16, at which no match could continue: the eight bytes there do not occur
/// at a multiple of four within the 512 bytes before. Stops counting at `limit`, which saves most
/// of the time on pages without long repeats.
///
/// Each place represents 64 four-byte units, each of which costs page LZ about 2.7 bytes without a
/// match. So an object has some 170 bytes per break.
pub fn breaks(isa: Isa, page: &[u8; PAGE_SIZE], limit: u32) -> u32 {
    assert!(isa.is_available(), "this machine lacks {isa}");
    match isa {
        // SAFETY: the machine has the instructions (asserted above).
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { count_avx512(page, limit) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { count_avx2(page, limit) },
        _ => count(page, limit, found),
    }
}

/// The bytes before a place, and its first four.
type Before = [u8; 4 * WINDOW + 4];

#[inline(always)]
fn count(page: &[u8; PAGE_SIZE], limit: u32, found: impl Fn(&Before, u64) -> bool) -> u32 {
    let mut count = 0;
    for at in AT {
        if count >= limit {
            break;
        }
        let before = page[4 * (at - WINDOW)..].first_chunk().expect("places end before the page");
        let eight = page[4 * at..].first_chunk().expect("places end before the page");
        count += u32::from(!found(before, u64::from_le_bytes(*eight)));
    }
    count
}

/// Whether `eight` occurs at a multiple of four in `before`.
#[inline(always)]
fn found(before: &Before, eight: u64) -> bool {
    let fours = before.as_chunks::<4>().0;
    let (low, high) = (eight as u32, (eight >> 32) as u32);
    let found = fours.iter().zip(&fours[1..]).map(|(one, other)| {
        u32::from(u32::from_le_bytes(*one) == low) & u32::from(u32::from_le_bytes(*other) == high)
    });
    found.fold(0, |any, found| any | found) != 0
}

/// [`count`] with AVX2, which the machine must have.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn count_avx2(page: &[u8; PAGE_SIZE], limit: u32) -> u32 {
    count(page, limit, found)
}

/// [`count`] with AVX-512 F, which the machine must have.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn count_avx512(page: &[u8; PAGE_SIZE], limit: u32) -> u32 {
    use std::arch::x86_64::*;
    count(page, limit, |before, eight| {
        let wanted = _mm512_set1_epi64(eight as i64);
        let mut any = 0;
        for at in (0..4 * WINDOW).step_by(64) {
            // SAFETY: `before` has 68 bytes from `at` on.
            let (even, odd) = unsafe {
                let from = before.as_ptr().add(at);
                (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(4).cast()))
            };
            any |= _mm512_cmpeq_epi64_mask(even, wanted) | _mm512_cmpeq_epi64_mask(odd, wanted);
        }
        any != 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_go_on_and_noise_does_not() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 56) as u8
        };
        let noise: [u8; PAGE_SIZE] = std::array::from_fn(|_| random());
        for isa in Isa::available() {
            assert_eq!(breaks(isa, &noise, PLACES), PLACES);
            assert_eq!(breaks(isa, &noise, 5), 5);
            for period in [4, 12, 64, 100, 252, 512] {
                let page: [u8; PAGE_SIZE] = std::array::from_fn(|at| noise[at % period]);
                assert_eq!(breaks(isa, &page, PLACES), 0, "{isa}, a period of {period}");
            }
        }
    }

    #[test]
    fn every_instruction_set_counts_the_same() {
        // Bytes of few values, so that some places continue, at even and odd units.
        let mut state = 7u32;
        for _ in 0..50 {
            let mut page = [0u8; PAGE_SIZE];
            for four in page.as_chunks_mut::<4>().0 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *four = (state >> 28).to_le_bytes();
            }
            let counts: Vec<u32> = Isa::available().map(|isa| breaks(isa, &page, PLACES)).collect();
            assert!(counts.windows(2).all(|pair| pair[0] == pair[1]), "{counts:?}");
            assert!((1..PLACES).contains(&counts[0]), "{counts:?}");
        }
    }
}
