//! Any page: all instruction sets write the same object, and all read it back. `cargo fuzz run t16_round_trip`
//!
//! The input is repeated until the page is full, so that short inputs reach the templates.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagecodec::{t16, Isa};

fuzz_target!(|bytes: &[u8]| {
    if bytes.is_empty() {
        return;
    }
    let page: [u8; 4096] = std::array::from_fn(|at| bytes[at % bytes.len()]);
    let mut expected = [0; t16::OBJECT_MAX];
    let len = t16::Encoder::with_isa(Isa::Portable).encode(&page, &mut expected).expect("room");
    for isa in Isa::available() {
        let mut object = [0; t16::OBJECT_MAX];
        assert_eq!(t16::Encoder::with_isa(isa).encode(&page, &mut object), Ok(len), "{isa}");
        assert!(object[..len] == expected[..len], "{isa}");
        let mut back = [0; 4096];
        t16::decode(isa, &object[..len], &mut back).expect("own object");
        assert!(back == page, "{isa}");
    }
});
