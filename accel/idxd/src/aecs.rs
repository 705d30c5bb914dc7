//! The analytics engine configuration and state (AECS) of compress jobs: the bits that precede the
//! first token (the Deflate block header) and both code tables, aligned to 32 bytes.
//!
//! The layout follows Intel's QPL and the kernel driver.

use crate::deflate;

/// Bytes in a compress AECS.
pub const COMPRESS_SIZE: usize = 1568;
/// Longest distance of a match, in both directions.
pub const WINDOW: usize = 4096;
/// Bits that fit the output accumulator of a compress AECS.
pub const OUTPUT_ACCUMULATOR_BITS: u32 = 256 * 8;
/// Bytes of a histogram.
pub const HISTOGRAM_SIZE: usize = 1280;

/// Literal/length symbols that Deflate uses.
pub const LITERALS: usize = 286;
/// Distance symbols that Deflate uses.
pub const DISTANCES: usize = 30;

/// A code table entry: 14:0 the canonical code (not bit-reversed), 18:15 its length, zero for an
/// absent symbol.
pub const fn code_entry(code: u32, length: u32) -> u32 {
    code | length << 15
}

/// State for a compress job.
#[derive(Clone)]
#[repr(C, align(32))]
pub struct CompressAecs {
    /// CRC of the data so far, or the seed.
    pub crc: u32,
    /// XOR of the data so far, or the seed.
    pub xor: u32,
    /// Zero.
    pub reserved_8: [u32; 5],
    /// Bits valid in `accumulator`.
    pub accumulator_bits: u32,
    /// Bits to emit before the first token, least significant first.
    pub accumulator: [u8; 256],
    /// Codes of literals and lengths, see [`code_entry`].
    pub literals: [u32; LITERALS],
    /// Zero.
    pub reserved_1432: [u32; 2],
    /// Codes of distances, see [`code_entry`].
    pub distances: [u32; DISTANCES],
    /// Zero.
    pub reserved_1560: [u32; 2],
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<CompressAecs>() == COMPRESS_SIZE && align_of::<CompressAecs>() == 32);
    assert!(offset_of!(CompressAecs, accumulator_bits) == 28);
    assert!(offset_of!(CompressAecs, accumulator) == 32);
    assert!(offset_of!(CompressAecs, literals) == 288);
    assert!(offset_of!(CompressAecs, distances) == 1440);
    assert!(offset_of!(CompressAecs, reserved_1560) == 1560);
};

impl CompressAecs {
    /// All zero: no header, no codes.
    // SAFETY: integers alone, valid as zero bytes.
    pub const ZERO: Self = unsafe { std::mem::zeroed() };

    /// Makes length-limited codes for the counts in `histogram` and writes them, with the header of
    /// a final dynamic block, into this AECS. The caller of a generation 1 device does this between
    /// its two descriptors. The end-of-block symbol is counted here.
    pub fn set_dynamic(&mut self, histogram: &Histogram) {
        deflate::dynamic::write_aecs(self, histogram);
    }
}

/// The AECS of fixed mode: header of a final block with fixed codes, and those codes. Read-only,
/// shared by all jobs.
pub static FIXED: CompressAecs = fixed();

const fn fixed() -> CompressAecs {
    let mut aecs = CompressAecs::ZERO;
    aecs.accumulator[0] = 0x03;
    aecs.accumulator_bits = 3;
    let mut symbol = 0;
    while symbol < LITERALS {
        let at = symbol as u32;
        aecs.literals[symbol] = match symbol {
            0..=143 => code_entry(0x30 + at, 8),
            144..=255 => code_entry(0x190 + at - 144, 9),
            256..=279 => code_entry(at - 256, 7),
            _ => code_entry(0xc0 + at - 280, 8),
        };
        symbol += 1;
    }
    let mut symbol = 0;
    while symbol < DISTANCES {
        aecs.distances[symbol] = code_entry(symbol as u32, 5);
        symbol += 1;
    }
    aecs
}

/// Symbol counts, written by a compress job in statistics mode.
#[derive(Clone)]
#[repr(C, align(32))]
pub struct Histogram {
    /// Counts of literals and lengths.
    pub literals: [u32; LITERALS],
    /// Zero.
    pub reserved_1144: [u32; 2],
    /// Counts of distances.
    pub distances: [u32; DISTANCES],
    /// Zero.
    pub reserved_1272: [u32; 2],
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Histogram>() == HISTOGRAM_SIZE);
    assert!(offset_of!(Histogram, distances) == 1152);
};

impl Histogram {
    /// No symbol counted.
    // SAFETY: integers alone, valid as zero bytes.
    pub const ZERO: Self = unsafe { std::mem::zeroed() };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first entries of the ranges in the kernel driver's fixed table.
    #[test]
    fn fixed_codes_are_the_published_ones() {
        assert_eq!(FIXED.literals[0], 0x40030);
        assert_eq!(FIXED.literals[144], 0x48190);
        assert_eq!(FIXED.literals[256], 0x38000);
        assert_eq!(FIXED.literals[280], 0x400c0);
        assert_eq!((FIXED.distances[0], FIXED.distances[29]), (0x28000, 0x2801d));
    }
}
