//! The analytics engine configuration and state (AECS): a job reads it beside its data, and writes
//! it when another job continues the work.
//!
//! Layouts follow Intel's QPL and the kernel driver. A compress AECS holds the bits that precede
//! the first token (the Deflate block header) and both code tables; a decompress AECS holds the
//! state of an interrupted stream. Both must be aligned to 32 bytes.

use crate::deflate;

/// Bytes in a compress AECS.
pub const COMPRESS_SIZE: usize = 1568;
/// Bytes in a decompress AECS with history.
pub const DECOMPRESS_SIZE: usize = 5376;
/// Bytes of a decompress AECS up to its history buffer, enough without history.
pub const DECOMPRESS_SIZE_BARE: usize = 1248;
/// Bytes of history: the window, in both directions.
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
    /// a dynamic block, into this AECS. The caller of a generation 1 device does this between its
    /// two descriptors. The end-of-block symbol is counted here.
    pub fn set_dynamic(&mut self, histogram: &Histogram, is_final: bool) {
        deflate::dynamic::write_aecs(self, histogram, is_final);
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

/// The state of a decompression: [`DecompressAecs::state`].
pub mod decoder_state {
    /// Next is a token of a block that is not the last.
    pub const TOKEN: u16 = 0;
    /// Next is a block header.
    pub const HEADER: u16 = 1;
    /// Inside a stored block that is not the last.
    pub const STORED: u16 = 2;
    /// Next is a token of the last block.
    pub const TOKEN_FINAL: u16 = 4;
    /// Inside the last block, which is stored.
    pub const STORED_FINAL: u16 = 6;
    /// Ended by an end-of-block symbol.
    pub const ENDED: u16 = 8;
}

/// State of a decompression that another job continues.
///
/// The code tables inside (`tables`, and the packed fields before) belong to the device: software
/// only hands back the bytes that the device wrote. A fresh stream starts from
/// [`DecompressAecs::start`].
#[derive(Clone)]
#[repr(C, align(32))]
pub struct DecompressAecs {
    /// CRC of the data so far, or the seed.
    pub crc: u32,
    /// XOR of the data so far, or the seed.
    pub xor: u32,
    /// Filter bounds, low and high.
    pub filter: [u32; 2],
    /// Output modifier index.
    pub modifier_index: u32,
    /// Decompressed bytes to drop at the start.
    pub drop_bytes: u32,
    /// Zero.
    pub reserved_24: [u32; 36],
    /// Output accumulator, in two halves.
    pub output_accumulator: [u32; 2],
    /// Bits valid in it.
    pub output_accumulator_bits: u32,
    /// Index bit offset.
    pub index_bit_offset: u32,
    /// Input that was read but not yet used, each word least significant bit first (two halves a
    /// word).
    pub input_accumulator: [[u32; 2]; 32],
    /// Bits valid in each word.
    pub input_accumulator_bits: [u8; 32],
    /// End-of-block CAM entry.
    pub eob_cam: u32,
    /// Drop initial bits.
    pub drop_bits: u8,
    /// 0: format 1, 1: format 2.
    pub format: u8,
    /// Padding.
    pub reserved_478: u16,
    /// First table index, number of codes, first code and first length code, 20 bytes each, packed.
    pub packed: [u32; 20],
    /// Zero.
    pub reserved_560: [u32; 62],
    /// Symbol map; its inner format is the device's.
    pub tables: [u8; 268],
    /// One of [`decoder_state`].
    pub state: u16,
    /// Padding.
    pub reserved_1078: u16,
    /// Second part of the mapping in format 2.
    pub tables_2: [u8; 172],
    /// Bits 14:0 where the next byte of history goes, bit 15 set when the history has wrapped.
    pub history_offset: u16,
    /// Padding.
    pub reserved_1254: u16,
    /// The last bytes of output.
    pub history: [u8; WINDOW],
    /// Padding.
    pub reserved_5352: [u32; 6],
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<DecompressAecs>() == DECOMPRESS_SIZE && align_of::<DecompressAecs>() == 32);
    assert!(offset_of!(DecompressAecs, output_accumulator) == 168);
    assert!(offset_of!(DecompressAecs, index_bit_offset) == 180);
    assert!(offset_of!(DecompressAecs, input_accumulator) == 184);
    assert!(offset_of!(DecompressAecs, input_accumulator_bits) == 440);
    assert!(offset_of!(DecompressAecs, eob_cam) == 472);
    assert!(offset_of!(DecompressAecs, format) == 477);
    assert!(offset_of!(DecompressAecs, packed) == 480);
    assert!(offset_of!(DecompressAecs, reserved_560) == 560);
    assert!(offset_of!(DecompressAecs, tables) == 808);
    assert!(offset_of!(DecompressAecs, state) == 1076);
    assert!(offset_of!(DecompressAecs, tables_2) == 1080);
    assert!(offset_of!(DecompressAecs, history_offset) == 1252);
    assert!(offset_of!(DecompressAecs, history) == 1256);
    assert!(offset_of!(DecompressAecs, reserved_5352) == 5352);
};

impl DecompressAecs {
    /// The state before the first byte of a stream.
    pub const fn start() -> Self {
        // SAFETY: integers alone, valid as zero bytes.
        DecompressAecs { state: decoder_state::HEADER, ..unsafe { std::mem::zeroed() } }
    }
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
