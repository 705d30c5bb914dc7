//! Objects of any page, changed in up to eight places and cut or lengthened.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | bits 0-2: changes - 1; bits 3-4: cut, lengthened or neither |
//! | 3 each | place (counted from the end when odd, halved), other byte |
//! | rest | the period of the page |
#![no_main]

use pagecodec_fuzz::{encode, page_of, take_u16};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, mut rest)) = bytes.split_first() else { return };
    let mut changes = Vec::new();
    for _ in 0..=kind & 7 {
        let place = take_u16(&mut rest);
        let Some((&byte, left)) = rest.split_first() else { return };
        rest = left;
        changes.push((place, byte));
    }
    encode::Objects::of(&page_of(rest)).damaged(|object| {
        for &(place, byte) in &changes {
            let len = object.len();
            let at = place / 2 % len;
            object[if place % 2 == 0 { at } else { len - 1 - at }] ^= byte;
        }
        let (place, byte) = changes[0];
        match kind >> 3 & 3 {
            1 => object.truncate(place / 2 % object.len()),
            2 => object.extend(std::iter::repeat_n(byte, place % 80)),
            _ => {}
        }
    });
});
