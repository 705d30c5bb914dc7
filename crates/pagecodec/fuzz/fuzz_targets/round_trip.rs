//! Any page, and any input of page LZ: all instruction sets write the same, and read it.
#![no_main]

use pagecodec::lz::INPUT_MAX;
use pagecodec_fuzz::{encode, page_of};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    encode::round_trip(&page_of(bytes));
    encode::lz_round_trip(&bytes[..bytes.len().min(INPUT_MAX)]);
});
