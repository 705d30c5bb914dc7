//! Any page, and any input of page LZ: all instruction sets write the same, and read it.
#![no_main]

use pagecodec::lz::INPUT_MAX;
use pagecodec_fuzz::{decode, encode, page_of};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    encode::round_trip(&page_of(bytes));
    let input = &bytes[..bytes.len().min(INPUT_MAX)];
    for object in [encode::lz(input), encode::lz_even(input)] {
        assert!(decode::lz(&object, input.len()).as_deref() == Some(input));
    }
});
