//! The encoder and decoder for registers of lanes of 16 bytes: SSE4, AVX2, NEON.
//!
//! None of these looks up 64-bit values by many indices at a time, but all look up 16 bytes in 16.
//! So words are taken apart: [`Planes`] hold byte `j` of 16 words (32 with AVX2) in one register.
//! Then one instruction compares a byte of all words or looks it up by their tags, and literal
//! halves lie side by side.
//!
//! The format's hash decides which values become templates, but finding a word's template needs no
//! hash: a word that equals a template also has its bucket. [`classify`] tests only equality.

mod classify;
mod decode;
mod encode;
mod select;

pub(crate) use decode::{decode, tag_lines};
pub(crate) use encode::{analyse, reduce, write};

use super::work::Aligned;
use crate::lanes::Lanes;

/// For each set of eight: byte indices that move its 16-bit words to the front, in order.
pub(crate) static COMPRESS: Aligned<[[u8; 16]; 256]> = Aligned(shuffles(true));
/// For each set of eight: indices that move the first 16-bit words to its places; else zero.
static EXPAND: Aligned<[[u8; 16]; 256]> = Aligned(shuffles(false));
static PLACES: Aligned<[[u16; 8]; 64]> = {
    let mut places = [[0; 8]; 64];
    let mut at = 0;
    while at < 512 {
        places[at / 8][at % 8] = at as u16;
        at += 1;
    }
    Aligned(places)
};

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

/// Loads a table's entry for the low eight bits of `set`. Needs the instructions of `L`.
#[inline(always)]
pub(crate) unsafe fn shuffle<L: Lanes>(table: &Aligned<[[u8; 16]; 256]>, set: u32) -> L {
    // SAFETY: 16 bytes; the caller vouches for the machine.
    unsafe { L::load(table.0[set as usize & 255].as_ptr(), 0) }
}

/// 64-bit words by bytes: register `j` has byte `j` of each, in order.
struct Planes<L>([L; 8]);

impl<L: Lanes> Planes<L> {
    /// Lane `l` of row `r` has words `2 r` and `2 r + 1` of those whose bytes go to lanes `l`.
    #[inline(always)]
    fn of(rows: [L; 8]) -> Self {
        // Each round of interleaving halves the distance of future neighbours: 8, 4, 2, 1.
        let mix = |rows: [L; 8]| -> [L; 8] {
            let ((a, b), (c, d)) = (rows[0].zip8(rows[4]), rows[1].zip8(rows[5]));
            let ((e, f), (g, h)) = (rows[2].zip8(rows[6]), rows[3].zip8(rows[7]));
            [a, b, c, d, e, f, g, h]
        };
        Planes(mix(mix(mix(mix(rows)))))
    }

    /// Loads the words of the lines `2 l` and `2 l + 1` from `at` on for each lane `l`. The machine
    /// must have the instructions, and 128 bytes must be readable for each lane.
    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Planes::of(std::array::from_fn(|row| unsafe { L::load(at.add(16 * row), 128) }))
    }

    /// Loads sixteen values, the same in each lane. The machine must have the instructions.
    #[inline(always)]
    unsafe fn of_values(values: &[u64; 16]) -> Self {
        // SAFETY: eight times 16 of 128 bytes; the caller vouches for the machine.
        Planes::of(std::array::from_fn(|row| unsafe {
            L::load(values.as_ptr().cast::<u8>().add(16 * row), 0)
        }))
    }

    /// Looks up the value of each tag among 16.
    #[inline(always)]
    fn look_up(&self, tags: L) -> [L; 8] {
        self.0.map(|plane| plane.shuffle(tags))
    }

    #[inline(always)]
    fn first_lane(&self) -> Planes<L::Lane> {
        Planes(self.0.map(|plane| plane.lane(0)))
    }
}

/// All ones where all of `found` are.
#[inline(always)]
fn all<L: Lanes, const N: usize>(found: [L; N]) -> L {
    let mut all = found[0];
    for found in &found[1..] {
        all = all.and(*found);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(always)]
    unsafe fn there_and_back<L: Lanes>() {
        let words: [u64; 64] =
            std::array::from_fn(|at| (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at as u64);
        // SAFETY: two lanes need 32 words; the caller vouches for the machine.
        let planes = unsafe { Planes::<L>::load(words.as_ptr().cast()) };
        for (j, plane) in planes.0.into_iter().enumerate() {
            let mut bytes = [0u8; 64];
            // SAFETY: there is room for four lanes.
            unsafe { plane.store(bytes.as_mut_ptr(), 16) };
            for at in 0..L::BYTES {
                assert_eq!(bytes[at], (words[at] >> (8 * j)) as u8, "byte {j} of {at}");
            }
        }
        // SAFETY: the caller vouches for the machine.
        let (values, tags) = unsafe {
            let tags: [u8; 32] = std::array::from_fn(|at| (at * 7 % 16) as u8);
            let values = words.first_chunk().expect("there are 64");
            (Planes::<L>::of_values(values), L::load(tags.as_ptr(), 16))
        };
        for (j, plane) in values.look_up(tags).into_iter().enumerate() {
            let mut bytes = [0u8; 64];
            // SAFETY: there is room for four lanes.
            unsafe { plane.store(bytes.as_mut_ptr(), 16) };
            for at in 0..L::BYTES {
                assert_eq!(bytes[at], (words[at * 7 % 16] >> (8 * j)) as u8, "byte {j} of {at}");
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn planes_are_the_bytes_in_order() {
        #[target_feature(enable = "ssse3,sse4.1,popcnt")]
        fn sse4() {
            // SAFETY: this function has the features.
            unsafe { there_and_back::<crate::lanes::Xmm>() }
        }
        #[target_feature(enable = "avx2")]
        fn avx2() {
            // SAFETY: this function has the features.
            unsafe { there_and_back::<crate::lanes::Ymm>() }
        }
        for (isa, test) in [(crate::Isa::Sse4, sse4 as unsafe fn()), (crate::Isa::Avx2, avx2 as unsafe fn())]
        {
            if isa.is_available() {
                // SAFETY: the machine has the features.
                unsafe { test() }
            } else {
                testkit::skip!("cpu", "no {isa}");
            }
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn planes_are_the_bytes_in_order() {
        // SAFETY: every aarch64 machine that Rust supports has NEON.
        unsafe { there_and_back::<crate::lanes::Neon>() }
    }

    #[test]
    fn shuffles_move_the_words_of_a_set() {
        assert_eq!(COMPRESS.0[0b1010_0000][..6], [10, 11, 14, 15, 0x80, 0x80]);
        assert_eq!(EXPAND.0[0b0000_0110][..8], [0x80, 0x80, 0, 1, 2, 3, 0x80, 0x80]);
    }
}
