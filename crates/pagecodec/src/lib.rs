//! T16 and T16H: SIMD compression of 4 KiB pages of program memory
//!
//! T16 describes each 64-bit word of a page by a four-bit tag: zero, one of a few exact values, a
//! pointer that shares its high 48 or 32 bits with others, a repeat of an earlier word, or the word
//! itself. No word depends on the one before, so both directions process eight words per step.
//!
//! ```
//! use pagecodec::{t16, Isa};
//!
//! let mut page = [0u8; t16::PAGE_SIZE];
//! page[8..16].copy_from_slice(&0x7f12_3456_7890u64.to_le_bytes());
//!
//! let mut encoder = t16::Encoder::new();
//! let mut object = [0u8; t16::OBJECT_MAX];
//! let len = encoder.encode(&page, &mut object).unwrap();
//! assert!(len < 120);
//!
//! let mut back = [1u8; t16::PAGE_SIZE];
//! t16::decode(Isa::best(), &object[..len], &mut back).unwrap();
//! assert_eq!(back, page);
//! ```
//!
//! Guarantees:
//!
//! - Each implementation ([`Isa`]: plain Rust, SSE4, AVX2, AVX-512, NEON) writes the same bytes and
//!   returns the same for any input. The fastest that the machine has is chosen at run time; any
//!   other can be forced.
//! - Decoders accept any bytes: they return an error or some page, and access nothing outside their
//!   buffers, which need no alignment or padding.
//! - [`t16::Encoder`] holds all working memory. Encoding and decoding do not allocate, lock or use
//!   thread-local storage.
//! - [`t16::Encoder::encode_batch`] prefetches the next page. [`t16::Encoder::plan_ahead`] does so
//!   for callers that decide page by page, and [`t16::prefetch`] for objects.
//! - `docs/formats/t16.md` of the repository describes the versioned format, with measurements: on
//!   one Zen 5 core 0.6 to 0.8 us to encode a page and 0.13 to 0.17 us to decode it, against 3.1 to
//!   4.1 and 0.9 to 1.2 for LZ4.
//!
//! T16 is for pages of pointers, counters and small integers. [`distinct_prefixes`] recognises such
//! pages by 64 words. [`t16::Encoder::plan`] returns the exact length before anything is written.

#[macro_use]
mod isa;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
pub mod lz;
pub mod numeric;
mod probe;
mod sets;
pub mod sparse;
pub mod t16;
pub mod t16h;
mod zeroed;

pub use isa::Isa;
pub use probe::{distinct_prefixes, same_filled};
pub use t16::PAGE_SIZE;
