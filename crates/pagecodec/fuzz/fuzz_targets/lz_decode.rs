//! Any bytes as a page LZ object, for any length of output.
#![no_main]

use pagecodec::lz::INPUT_MAX;
use pagecodec_fuzz::{decode, take_u16};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut object = bytes;
    let len = INPUT_MAX - take_u16(&mut object) % (INPUT_MAX + 1);
    decode::lz(object, len);
});
