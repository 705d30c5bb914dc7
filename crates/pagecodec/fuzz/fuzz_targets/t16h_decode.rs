//! Any bytes as a T16H object of the built-in sets, of both kinds.
#![no_main]

libfuzzer_sys::fuzz_target!(|object: &[u8]| {
    pagecodec_fuzz::decode::t16h(object);
});
