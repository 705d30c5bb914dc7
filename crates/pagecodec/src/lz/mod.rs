//! Page LZ, a small Lempel-Ziv format for what T16 does not fit: text, machine code, byte records.
//!
//! A page is short: offsets take 12 bits, so a match costs two and a half bytes where LZ4 spends
//! three, and every position can be looked up in advance. The encoder first finds a candidate for
//! every position (no branches). Then it walks the four quarters of the input in parallel: a walk
//! is a chain of dependent loads, and four chains hide each other's latency. It writes the streams
//! last.
//!
//! Layout, little-endian. The length of the input is not stored.
//!
//! | size | content |
//! |---|---|
//! | 2 | number of sequences `n` |
//! | 2 | number of literal bytes |
//! | literals | the literals of all sequences, and those after the last |
//! | 2 n | offset (bits 0-11, 1 and up), match length - 4 (bits 12-15; 15: 19 plus an extension) |
//! | (n + 1) / 2 | literals before each match, two nibbles a byte, low first (15: 15 plus an extension) |
//! | rest | extensions, in order of use, literals before match: a byte below 255, or 255 and two bytes |

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod breaks;
mod compare;
mod decoder;
mod encoder;
mod index;
mod matches;
mod sample;
#[cfg(target_arch = "x86_64")]
mod steps;
mod streams;
mod walk;

pub use breaks::{breaks, PLACES};
pub use decoder::decode;
pub use encoder::Encoder;
pub use sample::{repeats, repeats_in, SAMPLES};

/// Longest input.
pub const INPUT_MAX: usize = 4096;
pub(crate) const HEADER: usize = 4;
pub(crate) const MATCH_MIN: usize = 4;

/// A page LZ object that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged page LZ object")]
pub struct Damaged;

/// Copies 16 bytes between places that may overlap, reading all before writing.
///
/// # Safety
/// 16 bytes must be readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy16(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { to.cast::<u128>().write_unaligned(from.cast::<u128>().read_unaligned()) }
}

/// [`copy16`] for 8 bytes, under the same conditions.
#[inline(always)]
unsafe fn copy8(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()) }
}
