//! All targets check: bytes yield an error or a page, pages return, instruction sets agree.
//!
//! How to run them:
//!
//! ```text
//! cd crates/pagecodec
//! (cd fuzz && cargo run --example seeds)             # corpora to begin with, of generated pages
//! cargo +nightly fuzz run t16_decode                 # AddressSanitizer is the default
//! cargo +nightly fuzz run t16_decode -- -max_total_time=300
//! ```
//!
//! | target | input |
//! |---|---|
//! | `t16_decode`, `t16h_decode` | an object |
//! | `lz_decode` | two bytes for the length of the output, and an object |
//! | `number_decode` | a numeric or sparse object |
//! | `round_trip` | a page, or the period of one |
//! | `damage` | changes, and the period of the page whose objects are changed |
//! | `units` | which compressor of crate `codecs`, how many pages, where the object is cut, and the object |

#![deny(missing_docs)]

#[path = "../../tests/support/decode.rs"]
pub mod decode;
#[path = "../../tests/support/encode.rs"]
pub mod encode;
pub mod units;

/// The bytes of one page.
pub type Page = [u8; pagecodec::PAGE_SIZE];

/// The page that repeats `bytes`, or zeros: short inputs reach templates and long matches.
pub fn page_of(bytes: &[u8]) -> Page {
    let mut page = [0; pagecodec::PAGE_SIZE];
    page.iter_mut().zip(bytes.iter().cycle()).for_each(|(to, from)| *to = *from);
    page
}

/// Takes a two-byte number off the front of `bytes`, 0 if there is none.
pub fn take_u16(bytes: &mut &[u8]) -> usize {
    let Some((number, rest)) = bytes.split_first_chunk() else { return 0 };
    *bytes = rest;
    usize::from(u16::from_le_bytes(*number))
}
