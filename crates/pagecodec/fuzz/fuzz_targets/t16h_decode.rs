//! Any bytes as a T16H object of the built-in sets, of both kinds, the same with every instruction set; what comes out
//! of the first kind goes to T16's decoders. `cargo fuzz run t16h_decode`
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagecodec::{t16, t16h, Isa};

fuzz_target!(|bytes: &[u8]| {
    let mut object = bytes.to_vec();
    if let Some(set) = object.get_mut(..2) {
        set.fill(0);
    }
    let mut first = None;
    for isa in Isa::available() {
        let mut coder = t16h::Coder::with_isa(isa);
        let mut page = [0; 4096];
        let page = coder.decode_page(t16h::builtin_page(), &object, &mut page).ok().map(|()| page);
        let plain = coder.decode(t16h::builtin(), &object).ok().map(<[u8]>::to_vec);
        let outcome = (page, plain);
        assert!(*first.get_or_insert_with(|| outcome.clone()) == outcome, "{isa}");
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
