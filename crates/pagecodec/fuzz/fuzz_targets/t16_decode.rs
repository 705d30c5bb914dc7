//! Any bytes: the decoders of all instruction sets give the same verdict and the same page. `cargo fuzz run t16_decode`
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagecodec::{t16, Isa};

fuzz_target!(|object: &[u8]| {
    let mut expected = [0; 4096];
    let verdict = t16::decode(Isa::Portable, object, &mut expected);
    for isa in Isa::available() {
        let mut page = [0; 4096];
        assert_eq!(t16::decode(isa, object, &mut page), verdict, "{isa}");
        assert!(verdict.is_err() || page == expected, "{isa}");
    }
});
