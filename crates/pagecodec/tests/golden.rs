//! Objects written once and checked in: what was stored must stay readable, and the format cannot
//! drift unnoticed.
//!
//! After a deliberate change of the encoder's choices run with `UZSWAP_TEST_WRITE=1`; after a
//! change of the layout the format needs a new version.

mod support;

use std::fs;
use std::path::Path;

use pagecodec::numeric::Shape;
use pagecodec::{lz, numeric, sparse, t16, Isa};
use support::{Page, Random};

/// Classes whose objects are checked in: together they use every tag class and both kinds of
/// rotation.
const NAMES: [&str; 8] = [
    "zero",
    "one word set",
    "sparse",
    "pointers",
    "structures",
    "tagged small integers",
    "raw words repeated",
    "borders of the classes",
];

fn class(name: &str) -> Page {
    let (_, class) = support::CLASSES.iter().find(|class| class.0 == name).expect("a class of that name");
    class(&mut Random(2026))
}

#[test]
fn objects_are_as_they_were() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for name in NAMES {
        let page = class(name);
        let file = folder.join(format!("{}.t16", name.replace(' ', "-")));
        if std::env::var_os("UZSWAP_TEST_WRITE").is_some() {
            let mut object = [0; t16::OBJECT_MAX];
            let len = t16::Encoder::with_isa(Isa::Portable).encode(&page, &mut object).expect("room");
            fs::write(&file, &object[..len]).expect("the folder of golden objects can be written");
        }
        let golden = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for isa in Isa::available() {
            let mut back: Page = [0; 4096];
            t16::decode(isa, &golden, &mut back).unwrap_or_else(|error| panic!("{name}, {isa}: {error}"));
            assert!(back == page, "{name}, {isa}: decoded another page");
            let mut object = [0; t16::OBJECT_MAX];
            let len = t16::Encoder::with_isa(isa).encode(&page, &mut object).expect("room");
            assert!(object[..len] == golden, "{name}, {isa}: encoded another object");
        }
    }
}

/// An object put together by hand from the description in `docs/formats/t16.md`.
#[test]
fn an_object_by_hand() {
    let mut object = Vec::new();
    // Two exact templates (tags 1, 2), two prefix templates (tags 10, 11; 11 rotated), two wide
    // ones (12, 13; 12 rotated). Exact 1 is coded by prefix 10, exact 2 is raw. High halves: 10 ->
    // 1, 13 -> 2, others zero.
    let kinds: u64 = 2 // exact
        | 10 << 4 // exact 1: as tag 10
        | 15 << 8 // exact 2: raw
        | 1 << 40 // tag 10: high half 1
        | 8 << 44 // tag 11: rotated, no high half
        | 8 << 48 // tag 12: rotated, no high half
        | 2 << 52 // tag 13: high half 2
        | 2 << 56 // prefix
        | 2 << 60 // wide
        | 1 << 62; // version
    object.extend(kinds.to_le_bytes());
    // A: exact 1, then words 3, 4, 5, 6; B: words 5, 6; one reference; two high halves.
    object.extend((5u32 | 2 << 10 | 1 << 20 | 2 << 29).to_le_bytes());
    // Lines 0 and 1 are distinct, the others repeat line 1.
    object.extend(0b11u64.to_le_bytes());
    object.extend(0x7f12u32.to_le_bytes());
    object.extend(0x5555u32.to_le_bytes());
    object.extend(0x3456u16.to_le_bytes()); // middle of tag 10
    object.extend(0u16.to_le_bytes()); // middle of tag 11
    for a in [0x0008u16, 0x1111, 0x2222, 0x3333, 0x4444] {
        object.extend(a.to_le_bytes());
    }
    for b in [0xbbbbu16, 0xcccc] {
        object.extend(b.to_le_bytes());
    }
    object.extend(0xdead_beef_0123_4567u64.to_le_bytes()); // exact 2
    object.extend(0x8877_6655_4433_2211u64.to_le_bytes()); // word 7 of line 0
    object.push(1); // the reference: raw word 1
    object.extend([1; 62]); // lines 2 to 63
    object.extend(0xfdcb_a210u32.to_le_bytes()); // words 0 to 7: tags 0, 1, 2, 10, 11, 12, 13, 15
    object.extend(0x0000_000eu32.to_le_bytes());
    // The second line has a reference, but all its repeats would have one, too: they take tags
    // without literals.
    let at = object.len() - 4;
    let mut expected = [0u8; 4096];
    let words = expected.as_chunks_mut::<8>().0;
    let line = [
        0u64,
        0x0000_7f12_3456_0008,
        0xdead_beef_0123_4567,
        0x0000_7f12_3456_1111,
        0x0000_2222_0000_0000,
        0xbbbb_3333_0000_0000,
        0x0000_5555_cccc_4444,
        0x8877_6655_4433_2211,
    ];
    for (slot, word) in words.iter_mut().zip(line) {
        *slot = word.to_le_bytes();
    }
    let mut back = [0; 4096];
    for isa in Isa::available() {
        // 63 references are needed for 63 lines with one each, and there is one.
        assert_eq!(t16::decode(isa, &object, &mut back), Err(t16::Damaged), "{isa}");
    }
    // Three distinct lines instead: the third is empty and repeated.
    let mut object = object[..at - 62 - 4].to_vec();
    object[12] = 0b111;
    object.extend([2; 61]);
    object.extend(0xfdcb_a210u32.to_le_bytes());
    object.extend(0x0000_000eu32.to_le_bytes());
    object.extend(0x0000_0000u32.to_le_bytes());
    words[8] = line[7].to_le_bytes();
    for isa in Isa::available() {
        assert_eq!(t16::decode(isa, &object, &mut back), Ok(()), "{isa}");
        assert!(back == expected, "{isa}");
    }
}

type Encode = fn(Isa, &Page, &mut [u8]) -> Option<usize>;
type Decode = fn(Isa, &[u8], &mut Page) -> bool;

const LZ: (Encode, Decode) = (
    |isa, page, out| lz::Encoder::with_isa(isa).encode(page, out),
    |isa, object, page| lz::decode_with(isa, object, page).is_ok(),
);
const SPARSE: (Encode, Decode) =
    (|_, page, out| sparse::encode(page, out), |_, object, page| sparse::decode(object, page).is_ok());
const NUMERIC: Decode = |isa, object, page| numeric::decode(isa, object, page).is_ok();
const BYTES: Encode =
    |isa, page, out| numeric::encode(isa, page, Shape { log2_size: 0, differences: false }, out);
const SHORTS: Encode =
    |isa, page, out| numeric::encode(isa, page, Shape { log2_size: 1, differences: false }, out);
const INT_STEPS: Encode =
    |isa, page, out| numeric::encode(isa, page, Shape { log2_size: 2, differences: true }, out);
const LONG_STEPS: Encode =
    |isa, page, out| numeric::encode(isa, page, Shape { log2_size: 3, differences: true }, out);

/// The byte formats of `docs/formats/auto.md`.
#[test]
fn byte_formats_are_as_they_were() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let cases = [
        ("structures.lz", "structures", LZ),
        ("raw-words-repeated.lz", "raw words repeated", LZ),
        ("zero.lz", "zero", LZ),
        ("sparse.sparse", "sparse", SPARSE),
        ("one-word-set.sparse", "one word set", SPARSE),
        ("zero.sparse", "zero", SPARSE),
        ("structures.numeric8", "structures", (BYTES, NUMERIC)),
        ("pointers.numeric16", "pointers", (SHORTS, NUMERIC)),
        ("tagged-small-integers.numeric32", "tagged small integers", (INT_STEPS, NUMERIC)),
        ("pointers.numeric64", "pointers", (LONG_STEPS, NUMERIC)),
    ];
    for (file, name, (encode, decode)) in cases {
        let page = class(name);
        let path = folder.join(file);
        let mut object = [0; 8192];
        if std::env::var_os("UZSWAP_TEST_WRITE").is_some() {
            let len = encode(Isa::Portable, &page, &mut object).expect("room");
            fs::write(&path, &object[..len]).expect("the folder of golden objects can be written");
        }
        let golden = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for isa in Isa::available() {
            let mut back: Page = [1; 4096];
            assert!(decode(isa, &golden, &mut back), "{file}, {isa}: refused");
            assert!(back == page, "{file}, {isa}: decoded another page");
            let len = encode(isa, &page, &mut object).expect("room");
            assert!(object[..len] == golden, "{file}, {isa}: encoded another object");
        }
    }
}
