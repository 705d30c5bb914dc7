//! Objects of `auto` and `t16h` written once and checked in: stored objects stay readable when the
//! choices change.
//!
//! `UZSWAP_TEST_WRITE=1` rewrites them, after a deliberate change of a format that was never
//! released.

mod pages;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use acomp::{Algorithm, CompressRequest, DecompressRequest, Object, Page, Registry, PAGE_SIZE};
use pagecodec::Isa;
use pages::{make, words, Random, CLASSES};

/// Makes the pages of an object.
type Make = fn() -> Vec<Page>;

/// Compressor, form, and what is in the object.
const OBJECTS: [(&str, &str, Make); 11] = [
    ("auto", "same", || class("one word")),
    ("auto", "t16", || class("objects")),
    ("auto", "t16+lz", repeating),
    ("auto", "lz", || class("prose")),
    ("auto", "numeric", || class("int64 index")),
    ("auto", "sparse", || class("sparse")),
    ("auto", "lz4", || class("hash table")),
    ("t16h", "t16h", || class("objects")),
    ("t16h", "lzh", || class("prose")),
    ("auto", "unit", || ["objects", "random", "zero", "prose"].iter().flat_map(|name| class(name)).collect()),
    ("t16h", "unit", || ["objects", "random", "zero", "prose"].iter().flat_map(|name| class(name)).collect()),
];

fn class(name: &str) -> Vec<Page> {
    make(CLASSES.iter().find(|class| class.0 == name).expect(name), 1)
}

/// Pointers, and random words of which all but one byte stands earlier.
fn repeating() -> Vec<Page> {
    let mut random = Random(7);
    let kept: [u64; 24] = std::array::from_fn(|_| random.next());
    let bytes = words(|at| match at % 2 {
        0 => 0x7f12_3450_0000 + 16 * random.below(4000),
        _ => kept[at / 2 % 24] ^ random.below(256) << 56,
    });
    vec![*bytes.first_chunk().expect("a page's bytes")]
}

fn algorithm(name: &str) -> Arc<dyn Algorithm> {
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    registry.find(name).expect("registered")
}

/// The object of `pages`, as one unit.
fn object(name: &str, pages: &[Page]) -> Vec<u8> {
    let mut space = vec![0; pages.len() * PAGE_SIZE];
    let mut results = [Ok(0)];
    algorithm(name).context().expect("memory").compress(&mut CompressRequest {
        pages: &pages.iter().collect::<Vec<_>>(),
        unit_size: space.len(),
        outputs: &mut [&mut space],
        results: &mut results,
    });
    space.truncate(results[0].expect("it shrinks"));
    space
}

/// Names of the forms of an object of `pages` pages.
fn forms(algorithm: &dyn Algorithm, object: &[u8], pages: usize) -> Vec<&'static str> {
    let mut counts = vec![0; algorithm.forms().len()];
    algorithm.count_forms(Object::whole(object), pages, &mut counts);
    algorithm.forms().iter().zip(counts).filter(|(_, count)| *count > 0).map(|(name, _)| *name).collect()
}

#[test]
fn objects_are_read_as_they_were() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (family, form, pages) in OBJECTS {
        let pages = pages();
        let file = folder.join(format!("{family}.{}", form.replace('+', "-")));
        if std::env::var_os("UZSWAP_TEST_WRITE").is_some() {
            fs::write(&file, object(&format!("{family}:portable"), &pages))
                .expect("the folder can be written");
        }
        let golden = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        if form != "unit" {
            assert_eq!(forms(&*algorithm(family), &golden, 1), [form]);
        }
        // Two tiers read the objects of both.
        let readers: &[&str] =
            if family == "auto" { &["auto", "t16h", "auto-t16h"] } else { &["t16h", "auto-t16h"] };
        for (reader, isa) in readers.iter().flat_map(|reader| Isa::available().map(move |isa| (reader, isa)))
        {
            let mut back = vec![0x55; pages.len() * PAGE_SIZE];
            let mut results = [Ok(0)];
            algorithm(&format!("{reader}:{isa}")).context().expect("memory").decompress(
                &mut DecompressRequest {
                    objects: &[Object::whole(&golden)],
                    outputs: &mut [&mut back],
                    results: &mut results,
                },
            );
            assert_eq!(results[0], Ok(back.len()), "{form} of {family} by {reader}:{isa}");
            assert!(back == pages.as_flattened(), "{form} of {family} by {reader}:{isa}: other pages");
        }
    }
}

#[test]
fn all_instruction_sets_write_the_same() {
    for (family, form, pages) in OBJECTS {
        let pages = pages();
        let portable = object(&format!("{family}:portable"), &pages);
        for isa in Isa::available() {
            assert!(object(&format!("{family}:{isa}"), &pages) == portable, "{form} of {family} by {isa}");
        }
    }
}
