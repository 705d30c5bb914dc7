//! Any bytes as a T16 object.
#![no_main]

libfuzzer_sys::fuzz_target!(|object: &[u8]| {
    pagecodec_fuzz::decode::t16(object);
});
