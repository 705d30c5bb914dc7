//! Decoders of all instruction sets, compared on any bytes.
//!
//! libFuzzer passes inputs in allocations of exactly their length, and outputs are separate
//! variables, so that AddressSanitizer notices accesses outside.

use std::cell::RefCell;

use pagecodec::{lz, numeric, sparse, t16, t16h, Isa};

use crate::Page;

fn same<E: PartialEq + std::fmt::Debug>(decode: impl Fn(Isa, &mut Page) -> Result<(), E>) -> Option<Page> {
    let mut expected = [0; 4096];
    let verdict = decode(Isa::Portable, &mut expected);
    for isa in Isa::available() {
        // Different initial bytes show any byte that is not written.
        let mut page = [0xa5; 4096];
        assert_eq!(decode(isa, &mut page), verdict, "{isa}");
        assert!(verdict.is_err() || page == expected, "{isa} decoded another page");
    }
    verdict.is_ok().then_some(expected)
}

/// A T16 object.
pub fn t16(object: &[u8]) -> Option<Page> {
    same(|isa, page| t16::decode(isa, object, page))
}

/// A numeric object.
pub fn numeric(object: &[u8]) -> Option<Page> {
    same(|isa, page| numeric::decode(isa, object, page))
}

/// A sparse object, which has one decoder.
pub fn sparse(object: &[u8]) -> Option<Page> {
    same(|_, page| sparse::decode(object, page))
}

/// A page LZ object of `len` bytes of output.
pub fn lz(object: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut expected = vec![0; len];
    let verdict = lz::decode_with(Isa::Portable, object, &mut expected);
    for isa in Isa::available() {
        let mut out = vec![0xa5; len];
        assert_eq!(lz::decode_with(isa, object, &mut out), verdict, "{isa}");
        assert!(verdict.is_err() || out == expected, "{isa} decoded other bytes");
    }
    verdict.is_ok().then_some(expected)
}

thread_local! {
    static CODERS: RefCell<Vec<t16h::Coder>> = RefCell::new(Isa::available().map(t16h::Coder::with_isa).collect());
}

/// Runs `check` with a coder for each instruction set and compares. The coders are reused.
pub(crate) fn with_coders<R: PartialEq>(check: impl Fn(&mut t16h::Coder) -> R) -> R {
    CODERS.with_borrow_mut(|coders| {
        let (first, rest) = coders.split_first_mut().expect("the portable one");
        let expected = check(first);
        for (coder, isa) in rest.iter_mut().zip(Isa::available().skip(1)) {
            assert!(check(coder) == expected, "{isa}: another outcome");
        }
        expected
    })
}

/// As [`with_coders`], and with a new coder: a coder's past must not show.
fn with_new_coder<R: PartialEq>(check: impl Fn(&mut t16h::Coder) -> R) -> R {
    let expected = with_coders(&check);
    assert!(check(&mut t16h::Coder::with_isa(Isa::Portable)) == expected, "an outcome from what was before");
    expected
}

/// A T16H object of the built-in sets, as each kind. The input lacks the set's number.
pub fn t16h(object: &[u8]) {
    let mut object = object.to_vec();
    if let Some(set) = object.get_mut(..2) {
        set.fill(0);
    }
    let plain = with_new_coder(|coder| coder.decode(t16h::builtin(), &object).ok().map(<[u8]>::to_vec));
    if let Some(plain) = plain {
        t16(&plain);
    }
    with_new_coder(|coder| {
        let mut page = [0; 4096];
        coder.decode_page(t16h::builtin_page(), &object, &mut page).ok().map(|()| page)
    });
}
