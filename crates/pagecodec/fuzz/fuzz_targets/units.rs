//! Any bytes as an object of one of the compressors of crate `codecs`.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | which compressor |
//! | 1 | log2 of the pages of the unit |
//! | 2 | where the object is cut in two |
//! | rest | the object |
#![no_main]

use pagecodec_fuzz::{take_u16, units};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(([kind, pages], mut object)) = bytes.split_first_chunk() else { return };
    let cut = take_u16(&mut object) % (object.len() + 1);
    let log2_pages = usize::from(*pages) % (units::LOG2_PAGES_MAX + 1);
    units::check(usize::from(*kind) % units::KINDS, 1 << log2_pages, cut, object);
});
