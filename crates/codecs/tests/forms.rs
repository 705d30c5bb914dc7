//! The forms that objects name for reports, of single pages and of larger units.

mod pages;

use acomp::{Algorithm, CompressRequest, Object, Page, FORMS_MAX, PAGE_SIZE};
use pagecodec::Isa;
use pages::{algorithm, compress, make, CLASSES};

fn class(name: &str, pages: usize) -> Vec<Page> {
    make(CLASSES.iter().find(|class| class.0 == name).expect(name), pages)
}

/// Returns the pages by form, without empty forms.
fn forms(algorithm: &dyn Algorithm, pages: &[Page]) -> Vec<(&'static str, u32)> {
    let mut space = vec![0; pages.len() * PAGE_SIZE];
    let mut results = [Ok(0)];
    algorithm.context().unwrap().compress(&mut CompressRequest {
        pages: &pages.iter().collect::<Vec<_>>(),
        unit_size: space.len(),
        outputs: &mut [&mut space],
        results: &mut results,
    });
    let object = &space[..results[0].expect("it shrinks")];
    let mut counts = vec![0; algorithm.forms().len()];
    // In two pieces, as an allocator may hold it.
    let (head, tail) = object.split_at(object.len() / 3);
    algorithm.count_forms(Object { head, tail }, pages.len(), &mut counts);
    algorithm.forms().iter().copied().zip(counts).filter(|(_, count)| *count > 0).collect()
}

#[test]
fn single_pages_have_the_form_of_their_class() {
    let auto = algorithm("auto");
    for (name, form) in [
        ("zero", "same"),
        ("objects", "t16"),
        ("prose", "lz"),
        ("int64 index", "numeric"),
        ("sparse", "sparse"),
        ("hash table", "lz4"),
    ] {
        assert_eq!(forms(&*auto, &class(name, 1)), [(form, 1)], "{name}");
    }
    let dense = algorithm("t16h");
    assert_eq!(forms(&*dense, &class("objects", 1)), [("t16h", 1)]);
    assert_eq!(forms(&*dense, &class("prose", 1)), [("lzh", 1)]);
    assert_eq!(forms(&*dense, &class("zero", 1)), [("same", 1)]);
}

#[test]
fn the_pages_of_a_larger_unit_are_told_apart() {
    let names = ["objects", "random", "zero", "prose"];
    let pages: Vec<Page> = names.iter().flat_map(|name| class(name, 1)).collect();
    assert_eq!(forms(&*algorithm("auto"), &pages), [("same", 1), ("t16", 1), ("lz", 1), ("raw", 1)]);
    assert_eq!(forms(&*algorithm("t16h"), &pages), [("t16h", 1), ("lzh", 1), ("same", 1), ("raw", 1)]);
}

#[test]
fn there_is_room_for_every_form() {
    for name in ["auto", "t16h", "lz4", "none"] {
        assert!(algorithm(name).forms().len() <= FORMS_MAX, "{name}");
    }
    // Bytes that are no object are counted without a panic.
    for name in ["auto", "t16h"] {
        let algorithm = algorithm(name);
        for pages in [1, 4] {
            let mut counts = vec![0; algorithm.forms().len()];
            algorithm.count_forms(Object::whole(&[255; 9][..pages]), pages, &mut counts);
            assert_eq!(counts.iter().sum::<u32>(), pages as u32, "{name}");
        }
    }
}

#[test]
fn all_instruction_sets_write_the_same() {
    let of = |names: &[&str]| names.iter().flat_map(|name| class(name, 1)).collect::<Vec<_>>();
    let unit = of(&["objects", "random", "zero", "prose"]);
    for (family, pages) in
        [("auto", unit.clone()), ("t16h", unit), ("t16h", of(&["objects"])), ("t16h", of(&["prose"]))]
    {
        let object = |isa: Isa| {
            let mut context = algorithm(&format!("{family}:{isa}")).context().expect("memory");
            compress(context.as_mut(), &pages, pages.len() * PAGE_SIZE)
        };
        let portable = object(Isa::Portable);
        assert!(portable[0].is_some());
        for isa in Isa::available() {
            assert!(object(isa) == portable, "{} pages of {family} by {isa}", pages.len());
        }
    }
}
