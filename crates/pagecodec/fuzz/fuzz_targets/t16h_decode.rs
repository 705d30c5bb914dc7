//! Any bytes as a T16H object of the built-in set; what comes out goes to T16's decoders. `cargo fuzz run t16h_decode`
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagecodec::{t16, t16h, Isa};

fuzz_target!(|bytes: &[u8]| {
    let mut object = bytes.to_vec();
    if let Some(set) = object.get_mut(..2) {
        set.fill(0);
    }
    let mut coder = t16h::Coder::new();
    let Ok(plain) = coder.decode(t16h::builtin(), &object) else { return };
    let mut expected = [0; 4096];
    let verdict = t16::decode(Isa::Portable, plain, &mut expected);
    for isa in Isa::available() {
        let mut page = [0; 4096];
        assert_eq!(t16::decode(isa, plain, &mut page), verdict, "{isa}");
        assert!(verdict.is_err() || page == expected, "{isa}");
    }
});
