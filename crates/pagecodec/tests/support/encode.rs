//! Encoders of all instruction sets, compared on any page, and their objects, intact and damaged.

use std::cell::RefCell;

use pagecodec::numeric::Shape;
use pagecodec::{lz, numeric, sparse, t16, t16h, Isa};

use super::{decode, Page};

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
        let mut exact = vec![0xa5; len + 64];
        let (exact, guard) = exact.split_at_mut(len);
        assert_eq!(encode(kept, exact), Some(len), "{}: in its own length", kept.isa);
        assert!(*exact == out[..len], "{}: other bytes in its own length", kept.isa);
        assert!(guard.iter().all(|&byte| byte == 0xa5), "{}: wrote behind the object", kept.isa);
        assert!(
            len == 0 || encode(kept, &mut exact[..len - 1]).is_none(),
            "{}: in too little room",
            kept.isa
        );
        out.truncate(len);
        Some(out)
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

fn same_dense(encode: impl Fn(&mut t16h::Coder, &mut [u8]) -> Option<usize>) -> Option<Vec<u8>> {
    decode::with_coders(|coder| {
        let mut out = vec![0; t16h::OBJECT_MAX];
        let len = encode(coder, &mut out)?;
        assert_eq!(encode(coder, &mut out[..len - 1]), None, "in too little room");
        out.truncate(len);
        Some(out)
    })
}

/// The T16H object made of the T16 object `source`; `None` for a damaged one.
pub fn t16h(source: &[u8]) -> Option<Vec<u8>> {
    same_dense(|coder, out| coder.encode(t16h::builtin(), source, out))
}

/// The T16H object of `page` as page LZ.
pub fn t16h_page(page: &Page) -> Vec<u8> {
    same_dense(|coder, out| coder.encode_page(t16h::builtin_page(), page, out)).expect("room")
}

/// Encodes `input` as page LZ and decodes it.
pub fn lz_round_trip(input: &[u8]) {
    for object in [lz(input), lz_even(input)] {
        assert!(decode::lz(&object, input.len()).as_deref() == Some(input), "page LZ");
    }
}

/// Encodes `page` in every format and decodes it. Also compares the cheap tests of a page. Returns
/// the T16 object.
pub fn round_trip(page: &Page) -> Vec<u8> {
    let plain = t16(page);
    assert!(decode::t16(&plain).as_ref() == Some(page), "T16");
    lz_round_trip(page);
    // One shape per page: eight would take most of the time.
    let shape = Shape::ALL[usize::from(page[0]) % Shape::ALL.len()];
    assert!(decode::numeric(&numeric(page, shape)).as_ref() == Some(page), "{shape:?}");
    if let Some(object) = sparse(page) {
        assert!(decode::sparse(&object).as_ref() == Some(page), "sparse");
    }

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
        (numeric::estimate(isa, page), numeric::estimate_below(isa, page, 2048), repeats)
    };
    assert!(Isa::available().all(|isa| looks(isa) == looks(Isa::Portable)), "a look that differs");
    plain
}

/// Formats of [`Objects`], of which T16H counts as two.
pub const FORMATS: usize = 7;

/// The objects of a page in every format.
pub struct Objects {
    t16: Vec<u8>,
    t16h: [Vec<u8>; 2],
    lz: [Vec<u8>; 2],
    numeric: Vec<u8>,
    sparse: Option<Vec<u8>>,
}

impl Objects {
    /// Encodes `page`.
    pub fn of(page: &Page) -> Self {
        let t16 = t16(page);
        let (shape, _) = numeric::estimate(Isa::Portable, page);
        Objects {
            t16h: [t16h(&t16).expect("an object of the encoder"), t16h_page(page)],
            t16,
            lz: [lz(page), lz_even(page)],
            numeric: numeric(page, shape),
            sparse: sparse(page),
        }
    }

    /// Decodes the objects after `damage` has changed them. Returns whether each was accepted, also
    /// if the page has no sparse object.
    pub fn damaged(&self, mut damage: impl FnMut(&mut Vec<u8>)) -> [bool; FORMATS] {
        let mut damaged = |object: &Vec<u8>| {
            let mut object = object.clone();
            damage(&mut object);
            // Without spare capacity.
            object.into_boxed_slice()
        };
        let plain = damaged(&self.t16);
        // The coder refuses a damaged object, or codes it so that it returns.
        if let Some(dense) = t16h(&plain) {
            decode::with_coders(|coder| {
                assert!(coder.decode(t16h::builtin(), &dense).expect("its own object") == &*plain);
            });
        }
        let [of_object, of_page] = [0, 1].map(|kind| decode::t16h(&damaged(&self.t16h[kind]))[kind]);
        let [lz, lz_even] = [0, 1].map(|kind| decode::lz(&damaged(&self.lz[kind]), 4096).is_some());
        let numeric = decode::numeric(&damaged(&self.numeric)).is_some();
        let sparse = self.sparse.as_ref().is_none_or(|object| decode::sparse(&damaged(object)).is_some());
        [decode::t16(&plain).is_some(), of_object, of_page, lz, lz_even, numeric, sparse]
    }
}
