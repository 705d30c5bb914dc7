//! Judges all element sizes by 16-bit pieces of the sampled rows, for less than the cost of one
//! sample.

use super::pack::rows;
use super::{Shape, GROUPS, ROW, ROWS};
use crate::{Isa, PAGE_SIZE};

/// The distances of a page's pieces from those of its first row, by column, joined by their place
/// in a 64-bit word.
#[derive(Clone, Copy)]
struct Places {
    /// Bitwise or of the distances.
    any: [u16; 4],
    /// The same, with negative numbers `x` taken as `-1 - x`.
    folded: [u16; 4],
}

/// The distances of values, and of the differences between rows.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    values: Places,
    steps: Places,
}

const PIECES: usize = ROW / 2;
/// Distance of the sampled pairs of rows, the same as in [`super::pack::sample`].
const PAIR_STEP: usize = 18;

impl Spread {
    #[inline(always)]
    pub(super) fn of(isa: Isa, page: &[u8; PAGE_SIZE]) -> Spread {
        match isa {
            // SAFETY: the caller has asserted that the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { Spread::of_avx512(page) },
            _ => Spread::of_any(page),
        }
    }

    #[allow(clippy::needless_range_loop, reason = "four arrays and the page have the same index")]
    fn of_any(page: &[u8; PAGE_SIZE]) -> Spread {
        let rows = rows(page);
        let piece = |row: usize, at: usize| u16::from_le_bytes([rows[row][2 * at], rows[row][2 * at + 1]]);
        let fold = |distance: u16| distance ^ (distance as i16 >> 15) as u16;
        let mut joined = [[0u16; PIECES]; 4];
        for row in (0..ROWS - 1).step_by(PAIR_STEP) {
            // A plain loop over the pieces: the compiler's code for rows as values takes several
            // times as long.
            for at in 0..PIECES {
                let (first, a, b) = (piece(0, at), piece(row, at), piece(row + 1, at));
                let step = b.wrapping_sub(a).wrapping_sub(piece(1, at).wrapping_sub(first));
                let (a, b) = (a.wrapping_sub(first), b.wrapping_sub(first));
                joined[0][at] |= a | b;
                joined[1][at] |= fold(a) | fold(b);
                joined[2][at] |= step;
                joined[3][at] |= fold(step);
            }
        }
        let places = joined.map(|pieces| {
            let mut places = [0; 4];
            for four in pieces.as_chunks::<4>().0 {
                for (place, piece) in places.iter_mut().zip(four) {
                    *place |= piece;
                }
            }
            places
        });
        let [any, folded, any_step, folded_step] = places;
        Spread { values: Places { any, folded }, steps: Places { any: any_step, folded: folded_step } }
    }

    /// [`Spread::of_any`] with one vector a row. The machine must have AVX-512 F, BW and DQ.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
    unsafe fn of_avx512(page: &[u8; PAGE_SIZE]) -> Spread {
        use std::arch::x86_64::*;
        let rows = rows(page);
        // SAFETY: a row has 64 bytes.
        let load = |row: &[u8; ROW]| unsafe { _mm512_loadu_si512(row.as_ptr().cast()) };
        let fold = |distance| _mm512_xor_si512(distance, _mm512_srai_epi16::<15>(distance));
        let join = |all, one, other| _mm512_or_si512(all, _mm512_or_si512(one, other));
        let first = load(&rows[0]);
        let first_step = _mm512_sub_epi16(load(&rows[1]), first);
        let [mut any, mut folded, mut any_step, mut folded_step] = [_mm512_setzero_si512(); 4];
        for row in (0..ROWS - 1).step_by(PAIR_STEP) {
            let (a, b) = (load(&rows[row]), load(&rows[row + 1]));
            let step = _mm512_sub_epi16(_mm512_sub_epi16(b, a), first_step);
            let (a, b) = (_mm512_sub_epi16(a, first), _mm512_sub_epi16(b, first));
            any = join(any, a, b);
            folded = join(folded, fold(a), fold(b));
            any_step = _mm512_or_si512(any_step, step);
            folded_step = _mm512_or_si512(folded_step, fold(step));
        }
        let places = |pieces| {
            let word = _mm512_reduce_or_epi64(pieces) as u64;
            std::array::from_fn(|place| (word >> (16 * place)) as u16)
        };
        Spread {
            values: Places { any: places(any), folded: places(folded) },
            steps: Places { any: places(any_step), folded: places(folded_step) },
        }
    }

    /// Whether no element of two, four or eight bytes can be expected to save 1/16 of its bits:
    /// pieces that fill the upper piece of an element fill the element.
    #[inline]
    pub(super) fn is_hopeless(&self) -> bool {
        self.values.are_full() && self.steps.are_full()
    }

    /// Returns a lower bound of an estimate for the page.
    pub(super) fn floor(&self) -> usize {
        let mut floor = usize::MAX;
        for (differences, places) in [(false, &self.values), (true, &self.steps)] {
            for (log2_size, bits) in places.bits_min().into_iter().enumerate() {
                let shape = Shape { log2_size: log2_size as u8, differences };
                floor = floor.min(shape.object_len(GROUPS * bits as usize));
            }
        }
        floor
    }
}

impl Places {
    #[inline(always)]
    fn are_full(&self) -> bool {
        // The sign is folded away: 2^14 is a distance of 15 bits of 16, and 2^12 in the upper piece
        // one of 61 of 64.
        let far = self.folded;
        let shorts = far.iter().any(|&far| far >= 1 << 14);
        let ints = (far[1] | far[3]) >= 1 << 13;
        let longs = far[3] >= 1 << 12;
        // A constant lowest piece costs nothing.
        shorts && ints && longs && !self.any.contains(&0)
    }

    /// Returns the least number of bits of an element of 1, 2, 4 and 8 bytes, shift not counted.
    ///
    /// Two elements whose pieces number `p` are 2^b or more apart are at least 2^b - 3 times 2^16p
    /// apart: the pieces below borrow 1, or 3 in a difference of differences. From b = 3 on that
    /// takes 16 p + b bits.
    #[inline(always)]
    fn bits_min(&self) -> [u32; 4] {
        let Places { any: [a, b, c, d], folded } = *self;
        let high = |piece: u16| 15u32.saturating_sub(piece.leading_zeros());
        let far = |place: u32, piece: u16| if piece >= 1 << 3 { 16 * place + high(piece) } else { 0 };
        let [fa, fb, fc, fd] = folded;
        let all = fa | fb | fc | fd;
        let shorts = if all > 0 { high(all) + 1 } else { 0 };
        // The upper byte of a piece bounds bytes.
        let bytes = if all >= 1 << (8 + 3) { high(all) - 8 } else { 0 };
        let ints = far(1, fb | fd).max(far(0, fa | fc));
        let longs = far(3, fd).max(far(2, fc)).max(far(1, fb)).max(far(0, fa));
        // Constant low bits are shifted out. The lowest piece that differs borrows nothing.
        let short = u32::from(a | b | c | d);
        let int = u32::from(a | c) | u32::from(b | d) << 16;
        let long = u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48;
        let byte = if short & 0xff != 0 { short } else { short >> 8 };
        [
            bytes.saturating_sub(byte.trailing_zeros()),
            shorts.saturating_sub(short.trailing_zeros()),
            ints.saturating_sub(int.trailing_zeros()),
            longs.saturating_sub(long.trailing_zeros()),
        ]
    }
}
