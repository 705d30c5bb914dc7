//! T16 and T16H: SIMD compression of 4 KiB pages of program memory
//!
//! T16 describes each 64-bit word of a page by a four-bit tag: zero, one of a few exact values, a pointer that shares
//! its high 48 or 32 bits with others, a repeat of an earlier word, or the word itself. Nothing in it depends on the
//! word before, so both directions run eight words at a step.
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

#[macro_use]
mod isa;
pub mod lz;
pub mod numeric;
mod probe;
pub mod sparse;
pub mod t16;
pub mod t16h;

pub use isa::Isa;
pub use probe::{distinct_prefixes, same_filled, PROBE_WORDS};
pub use t16::PAGE_SIZE;
