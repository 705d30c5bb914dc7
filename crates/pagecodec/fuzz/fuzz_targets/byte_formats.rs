//! Any bytes, and any page: the formats beside T16 refuse or answer alike, and return what they made.
//! `cargo fuzz run byte_formats`
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagecodec::numeric::Shape;
use pagecodec::{lz, numeric, sparse, Isa};

fuzz_target!(|bytes: &[u8]| {
    let mut expected = [0; 4096];
    let verdict = numeric::decode(Isa::Portable, bytes, &mut expected);
    for isa in Isa::available() {
        let mut page = [0; 4096];
        assert_eq!(numeric::decode(isa, bytes, &mut page), verdict, "{isa}");
        assert!(verdict.is_err() || page == expected, "{isa}");
    }
    let verdict = lz::decode_with(Isa::Portable, bytes, &mut expected);
    for isa in Isa::available() {
        let mut page = [0; 4096];
        assert_eq!(lz::decode_with(isa, bytes, &mut page), verdict, "{isa}");
        assert!(verdict.is_err() || page == expected, "{isa}");
    }
    let mut page = [0; 4096];
    let _ = sparse::decode(bytes, &mut page);

    // The bytes, over and over, as a page.
    let mut page = [0u8; 4096];
    page.iter_mut().zip(bytes.iter().cycle()).for_each(|(to, from)| *to = *from);
    let mut back = [1; 4096];
    let mut object = [0; 8192];
    let len = lz::Encoder::new().encode(&page, &mut object).expect("room");
    lz::decode(&object[..len], &mut back).expect("its own object");
    assert!(back == page);
    for shape in Shape::ALL {
        let len = numeric::encode(Isa::best(), &page, shape, &mut object).expect("room");
        numeric::decode(Isa::best(), &object[..len], &mut back).expect("its own object");
        assert!(back == page, "{shape:?}");
    }
    if let Some(len) = sparse::encode(&page, &mut object) {
        sparse::decode(&object[..len], &mut back).expect("its own object");
        assert!(back == page);
    }
});
