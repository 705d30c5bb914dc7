//! The compressors that choose forms by page, through the interface: classes, instruction sets,
//! unit sizes, short outputs, any bytes.

mod pages;

use acomp::{Context, Object, Page, UnitError, MAX_BATCH, PAGE_SIZE};
use codecs::auto::Kind;
use codecs::t16h::{KIND_PAGE, KIND_T16H};
use pages::{
    algorithm, compress, compress_into, contexts, decompress, in_two, make, rebuild, Random, CLASSES,
};

const FAMILIES: [&str; 4] = ["auto", "t16", "t16h", "auto-t16h"];

#[test]
fn every_class_returns_on_every_instruction_set() {
    for family in FAMILIES {
        let algorithm = algorithm(family);
        assert_eq!(algorithm.batch_size(), MAX_BATCH);
        let mut contexts = contexts(family);
        for class in CLASSES {
            let pages = make(class, 8);
            let mut objects =
                contexts.iter_mut().map(|context| compress(context.as_mut(), &pages, PAGE_SIZE));
            let first = objects.next().expect("the portable one");
            assert!(objects.all(|other| other == first), "{family}: {} differs", class.0);
            for (object, page) in first.iter().zip(&pages) {
                let Some(object) = object else { continue };
                for context in &mut contexts {
                    // In two pieces, as the allocator may hold it.
                    for cut in [0, object.len() / 3] {
                        let back = rebuild(context.as_mut(), in_two(object, cut), PAGE_SIZE);
                        assert!(back.as_deref() == Some(page), "{family}: {}, cut at {cut}", class.0);
                    }
                }
            }
            // Once for each context's object, so that no sets are trained, which differ.
            for object in contexts.iter().flat_map(|_| first.iter().flatten()) {
                algorithm.forget(Object::whole(object), 1);
            }
        }
    }
}

#[test]
fn larger_units_return_and_short_outputs_are_refused_not_overrun() {
    let mut random = Random(1);
    for (family, pages_per_unit) in
        FAMILIES.into_iter().flat_map(|family| [1, 2, 3, 4, 16].map(|pages| (family, pages)))
    {
        let algorithm = algorithm(family);
        let unit_size = pages_per_unit * PAGE_SIZE;
        let mut context = algorithm.context().expect("memory");
        for class in CLASSES {
            // The last unit is shorter.
            let mut pages: Vec<Page> = (0..pages_per_unit + 1)
                .map(|_| make(&CLASSES[random.below(CLASSES.len() as u64) as usize], 3)[2])
                .collect();
            pages[0] = make(class, 1)[0];
            let objects = compress(context.as_mut(), &pages, unit_size);
            for (object, pages) in objects.iter().zip(pages.chunks(pages_per_unit)) {
                let Some(object) = object else { continue };
                let check = |context: &mut dyn Context, object: &[u8]| {
                    let back = decompress(context, object, pages.len() * PAGE_SIZE);
                    assert!(back.as_deref() == Some(pages.as_flattened()), "{family}: {}", class.0);
                    algorithm.forget(Object::whole(object), pages.len());
                };
                check(context.as_mut(), object);
                for room in [0, 1, 5, 8, object.len() / 2, object.len() - 1] {
                    match &compress_into(context.as_mut(), pages, unit_size, room)[0] {
                        Err(error) => assert_eq!(*error, UnitError::NoSpace, "{family}: {}", class.0),
                        // Another form may fit where the first choice does not.
                        Ok(short) => check(context.as_mut(), short),
                    }
                }
            }
        }
    }
}

#[test]
fn noise_is_given_up() {
    for family in FAMILIES {
        let mut context = algorithm(family).context().expect("memory");
        let objects = compress(context.as_mut(), &pages::of_class("random", 8), PAGE_SIZE);
        assert!(objects.iter().all(Option::is_none), "{family}");
    }
}

/// Objects that no encoder made: every kind, followed by any bytes.
#[test]
fn any_bytes_are_an_error_or_some_page() {
    let mut random = Random(10);
    let first = (0..=Kind::ALL.len() as u8).chain([KIND_T16H, KIND_PAGE]);
    let kinds: Vec<u8> = first.collect();
    for family in FAMILIES {
        let mut contexts: Vec<Box<dyn Context>> = contexts(family);
        let mut pages = 0;
        for round in 0..4000 {
            let len = 1 + random.below(if round % 2 == 0 { 40 } else { 1000 }) as usize;
            // Few values, so that lengths and offsets of LZ4 blocks are often valid.
            let mask = [0xff, 0x1f, 0x11][round % 3];
            let mut object: Vec<u8> = (0..len).map(|_| random.next() as u8 & mask).collect();
            object[0] = kinds[round % kinds.len()];
            let mut backs =
                contexts.iter_mut().map(|context| decompress(context.as_mut(), &object, PAGE_SIZE));
            let back = backs.next().expect("the portable one");
            assert!(backs.all(|other| other == back), "{family}: instruction sets disagree");
            pages += u32::from(back.is_some());
        }
        assert!(pages > 0 || family == "t16");
    }
}
