//! The forms that objects name for reports, of single pages and of larger units.

mod pages;

use acomp::{Algorithm, Object, Page, FORMS_MAX, PAGE_SIZE};
use pages::{algorithm, compress, in_two, of_class as class};

/// Returns the pages by form, without empty forms.
fn forms(algorithm: &dyn Algorithm, pages: &[Page]) -> Vec<(&'static str, u32)> {
    let mut context = algorithm.context().expect("memory");
    let object = compress(context.as_mut(), pages, pages.len() * PAGE_SIZE).pop().flatten();
    let object = object.expect("it shrinks");
    let mut counts = vec![0; algorithm.forms().len()];
    // In two pieces, as an allocator may hold it.
    algorithm.count_forms(in_two(&object, object.len() / 3), pages.len(), &mut counts);
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
