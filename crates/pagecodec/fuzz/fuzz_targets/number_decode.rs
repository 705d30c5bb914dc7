//! Any bytes as a numeric object and as a sparse one.
#![no_main]

libfuzzer_sys::fuzz_target!(|object: &[u8]| {
    pagecodec_fuzz::decode::numeric(object);
    pagecodec_fuzz::decode::sparse(object);
});
