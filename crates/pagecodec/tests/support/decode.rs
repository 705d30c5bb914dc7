//! Decoders of all instruction sets, compared on any bytes.
//!
//! Outputs have guards around them, because tests run without AddressSanitizer. libFuzzer passes
//! inputs in allocations of exactly their length.

use std::cell::RefCell;
use std::fmt::Debug;

use pagecodec::{lz, numeric, sparse, t16, t16h, Isa};

use super::Page;

/// Runs `decode` with `len` bytes of output by every instruction set. Returns the output.
fn same<E: PartialEq + Debug>(
    len: usize,
    decode: impl Fn(Isa, &mut [u8]) -> Result<(), E>,
) -> Option<Vec<u8>> {
    const GUARD: usize = 64;
    let outcome = |isa, fill: u8| {
        let mut room = vec![fill; len + 2 * GUARD];
        let verdict = decode(isa, &mut room[GUARD..GUARD + len]);
        let guards = room[..GUARD].iter().chain(&room[GUARD + len..]);
        assert!(guards.copied().all(|byte| byte == fill), "{isa} wrote outside the output");
        verdict.map(|()| room[GUARD..GUARD + len].to_vec())
    };
    let expected = outcome(Isa::Portable, 0);
    for isa in Isa::available() {
        // Different initial bytes show any byte that is not written.
        let other = outcome(isa, 0xa5);
        assert_eq!(other.as_ref().err(), expected.as_ref().err(), "{isa}");
        assert!(other == expected, "{isa} decoded other bytes");
    }
    expected.ok()
}

fn same_page<E: PartialEq + Debug>(decode: impl Fn(Isa, &mut Page) -> Result<(), E>) -> Option<Page> {
    let bytes = same(4096, |isa, bytes| decode(isa, bytes.try_into().expect("a page")))?;
    Some(bytes.try_into().expect("a page"))
}

/// A T16 object.
pub fn t16(object: &[u8]) -> Option<Page> {
    same_page(|isa, page| t16::decode(isa, object, page))
}

/// A numeric object.
pub fn numeric(object: &[u8]) -> Option<Page> {
    same_page(|isa, page| numeric::decode(isa, object, page))
}

/// A sparse object, which has one decoder.
pub fn sparse(object: &[u8]) -> Option<Page> {
    same_page(|_, page| sparse::decode(object, page))
}

/// A page LZ object of `len` bytes of output.
pub fn lz(object: &[u8], len: usize) -> Option<Vec<u8>> {
    same(len, |isa, out| lz::decode(isa, object, out))
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

/// A T16H object of the built-in sets, as each kind. The input lacks the set's number. Returns
/// whether it was accepted as each.
pub fn t16h(object: &[u8]) -> [bool; 2] {
    let mut object = object.to_vec();
    if let Some(set) = object.get_mut(..2) {
        set.fill(0);
    }
    let plain = with_new_coder(|coder| coder.decode(t16h::builtin(), &object).ok().map(<[u8]>::to_vec));
    let page = with_new_coder(|coder| {
        let mut page = [0; 4096];
        coder.decode_page(t16h::builtin_page(), &object, &mut page).ok().map(|()| page)
    });
    [plain.is_some_and(|plain| t16(&plain).is_some()), page.is_some()]
}
