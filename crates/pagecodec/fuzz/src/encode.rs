//! Encoders of all instruction sets, compared on any page, and their objects, intact and damaged.

use std::cell::RefCell;

use pagecodec::numeric::Shape;
use pagecodec::{lz, numeric, sparse, t16, t16h, Isa};

use crate::{decode, Page};

/// Reused encoders: their past must not show, and creating them takes longer than their work.
struct Kept {
    isa: Isa,
    t16: t16::Encoder,
    lz: lz::Encoder,
}

thread_local! {
    static KEPT: RefCell<Vec<Kept>> = RefCell::new(
        Isa::available()
            .map(|isa| Kept { isa, t16: t16::Encoder::with_isa(isa), lz: lz::Encoder::with_isa(isa) })
            .collect(),
    );
}

fn same(room: usize, encode: impl Fn(&mut Kept, &mut [u8]) -> Option<usize>) -> Option<Vec<u8>> {
    let object = |kept: &mut Kept| {
        let mut out = vec![0; room];
        let len = encode(kept, &mut out)?;
        let mut exact = vec![0; len];
        assert_eq!(encode(kept, &mut exact), Some(len), "{}: in its own length", kept.isa);
        assert!(exact == out[..len], "{}: other bytes in its own length", kept.isa);
        assert!(
            len == 0 || encode(kept, &mut exact[..len - 1]).is_none(),
            "{}: in too little room",
            kept.isa
        );
        Some(exact)
    };
    KEPT.with_borrow_mut(|all| {
        let (first, rest) = all.split_first_mut().expect("the portable one");
        let expected = object(first);
        for kept in rest {
            assert!(object(kept) == expected, "{} encoded another object", kept.isa);
        }
        expected
    })
}

/// The T16 object of `page`.
pub fn t16(page: &Page) -> Vec<u8> {
    same(t16::OBJECT_MAX, |kept, out| kept.t16.encode(page, out).ok()).expect("room")
}

/// The page LZ object of `input`.
pub fn lz(input: &[u8]) -> Vec<u8> {
    same(2 * lz::INPUT_MAX, |kept, out| kept.lz.encode(input, out)).expect("room")
}

/// The page LZ object of `input`, searched at even positions only.
pub fn lz_even(input: &[u8]) -> Vec<u8> {
    same(2 * lz::INPUT_MAX, |kept, out| {
        let planned = kept.lz.plan_even(input);
        let written = kept.lz.write(out);
        assert!(written.is_none_or(|len| len == planned), "another length than planned");
        written
    })
    .expect("room")
}

/// The numeric object of `page`.
pub fn numeric(page: &Page, shape: Shape) -> Vec<u8> {
    same(numeric::OBJECT_MAX, |kept, out| numeric::encode(kept.isa, page, shape, out)).expect("room")
}

/// The sparse object of `page`, if it has one.
pub fn sparse(page: &Page) -> Option<Vec<u8>> {
    same(sparse::OBJECT_MAX, |_, out| sparse::encode(page, out))
}

/// The T16H object made of the T16 object `source`; `None` for a damaged one.
pub fn t16h(source: &[u8]) -> Option<Vec<u8>> {
    decode::with_coders(|coder| {
        let mut out = vec![0; t16h::OBJECT_MAX];
        let len = coder.encode(t16h::builtin(), source, &mut out)?;
        out.truncate(len);
        Some(out)
    })
}

/// The T16H object of `page` as page LZ.
pub fn t16h_page(page: &Page) -> Vec<u8> {
    decode::with_coders(|coder| {
        let mut out = vec![0; t16h::OBJECT_MAX];
        let len = coder.encode_page(t16h::builtin_page(), page, &mut out).expect("room");
        out.truncate(len);
        out
    })
}

/// Encodes `page` in every format and decodes it. Also compares the cheap tests of a page.
pub fn round_trip(page: &Page) {
    assert!(decode::t16(&t16(page)).as_ref() == Some(page), "T16");
    assert!(decode::lz(&lz(page), 4096).as_deref() == Some(page), "page LZ");
    assert!(decode::lz(&lz_even(page), 4096).as_deref() == Some(page), "page LZ of even places");
    // One shape per page: eight would take most of the time.
    let shape = Shape::ALL[usize::from(page[0]) % Shape::ALL.len()];
    assert!(decode::numeric(&numeric(page, shape)).as_ref() == Some(page), "{shape:?}");
    if let Some(object) = sparse(page) {
        assert!(decode::sparse(&object).as_ref() == Some(page), "sparse");
    }

    let plain = t16(page);
    let dense = t16h(&plain).expect("an object of the encoder");
    decode::with_coders(|coder| {
        assert!(coder.decode(t16h::builtin(), &dense).expect("its own object") == plain, "T16H");
    });
    let dense = t16h_page(page);
    decode::with_coders(|coder| {
        let mut back = [1; 4096];
        coder.decode_page(t16h::builtin_page(), &dense, &mut back).expect("its own object");
        assert!(back == *page, "T16H of page LZ");
    });

    let looks = |isa| {
        let repeats = (lz::repeats(isa, page), lz::repeats_in(isa, page), lz::breaks(isa, page, 16));
        (numeric::estimate(isa, page), repeats)
    };
    assert!(Isa::available().all(|isa| looks(isa) == looks(Isa::Portable)), "a look that differs");
}

/// Decodes the objects of `page` after `damage` has changed them.
pub fn damaged(page: &Page, damage: impl Fn(&mut Vec<u8>)) {
    let damaged = |mut object: Vec<u8>| {
        damage(&mut object);
        // Without spare capacity.
        object.into_boxed_slice()
    };
    let plain = t16(page);
    decode::t16h(&damaged(t16h(&plain).expect("an object of the encoder")));
    decode::t16h(&damaged(t16h_page(page)));
    let plain = damaged(plain);
    decode::t16(&plain);
    // The coder refuses a damaged object, or codes it so that it returns.
    if let Some(dense) = t16h(&plain) {
        decode::with_coders(|coder| {
            assert!(coder.decode(t16h::builtin(), &dense).expect("its own object") == &*plain);
        });
    }
    decode::lz(&damaged(lz(page)), 4096);
    decode::lz(&damaged(lz_even(page)), 4096);
    let (shape, _) = numeric::estimate(Isa::Portable, page);
    decode::numeric(&damaged(numeric(page, shape)));
    sparse(page).map(|object| decode::sparse(&damaged(object)));
}
