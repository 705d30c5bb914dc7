//! Damaged objects yield errors or other bytes, never a crash or a write outside the output.

mod pages;

use acomp::{Page, PAGE_SIZE};
use pages::{algorithm, any_kind, compress, contexts, decompress, in_two, make, rebuild, Random, CLASSES};

#[test]
fn damaged_objects_do_no_harm() {
    let mut random = Random(7);
    for name in ["lz4", "zstd", "zstd:19", "deflate", "t16", "auto", "t16h", "auto-t16h", "none"] {
        let algorithm = algorithm(name);
        let mut contexts = contexts(name);
        for (class, pages) in CLASSES.iter().flat_map(|class| [1, 4, 16].map(|pages| (class, pages))) {
            let len = pages * PAGE_SIZE;
            let mut unit: Vec<Page> = (0..pages).map(|kind| any_kind(kind, &mut random)).collect();
            unit[0] = make(class, 1)[0];
            let Some(object) = compress(contexts[0].as_mut(), &unit, len).pop().flatten() else { continue };
            assert_ne!(name, "none");
            let mut errors = 0;
            for _ in 0..60 {
                let mut bad = object.clone();
                match random.below(5) {
                    0 => bad.truncate(random.below(object.len() as u64) as usize),
                    1 => bad.extend((0..random.below(50)).map(|_| 0xA7)),
                    2 => bad.iter_mut().for_each(|byte| *byte = random.next() as u8),
                    kind => {
                        let range = if kind == 3 { 32.min(bad.len()) } else { bad.len() };
                        for _ in 0..=random.below(4) {
                            bad[random.below(range as u64) as usize] ^= 1 << random.below(8);
                        }
                    }
                }
                let bad = in_two(&bad, random.below(bad.len() as u64 + 1) as usize);
                let mut backs = contexts.iter_mut().map(|context| rebuild(context.as_mut(), bad, len));
                let back = backs.next().expect("a context");
                assert!(backs.all(|other| other == back), "{name}: instruction sets disagree");
                errors += u32::from(back.is_none());
                // Counting forms and dropping the object also read it.
                let mut counts = vec![0; algorithm.forms().len()];
                algorithm.count_forms(bad, pages, &mut counts);
                assert!(counts.iter().sum::<u32>() as usize <= pages, "{name}: {counts:?}");
                algorithm.forget(bad, pages);
            }
            assert!(errors > 0, "{name} sees no damage at all");
            // The state survives the damage.
            let back = decompress(contexts[0].as_mut(), &object, len);
            assert_eq!(back.as_deref(), Some(unit.as_flattened()), "{name}");
        }
    }
}

#[test]
fn bytes_behind_the_last_page_of_a_unit_are_damage() {
    let len = 4 * PAGE_SIZE;
    for name in ["t16", "auto", "t16h", "auto-t16h"] {
        let mut context = algorithm(name).context().expect("memory");
        // The last page is random and stored raw.
        let unit: Vec<Page> = (0..4).map(|kind| any_kind(kind, &mut Random(11))).collect();
        let mut object = compress(context.as_mut(), &unit, len).pop().flatten().expect("it shrinks");
        assert_eq!(
            decompress(context.as_mut(), &object, len).as_deref(),
            Some(unit.as_flattened()),
            "{name}"
        );
        object.push(0);
        for cut in [0, 9, object.len() - 1, object.len()] {
            assert_eq!(rebuild(context.as_mut(), in_two(&object, cut), len), None, "{name}, cut at {cut}");
        }
    }
}

#[test]
fn parameters_out_of_range_are_refused_with_the_range() {
    let mut registry = acomp::Registry::new();
    codecs::register_all(&mut registry);
    for (name, part) in [
        ("lz4:0", "1 to 65537"),
        ("lz4:fast", "1 to 65537"),
        ("zstd:23", "to 22"),
        ("zstd:x", "to 22"),
        ("zstd:1,dict=FILE", "to 22"),
        ("deflate:13", "1 to 12"),
        ("none:1", "no parameter"),
        ("t16:mmx", "mmx"),
        ("lzo", "known: none, lz4"),
    ] {
        let error = registry.find(name).err().expect("refused").to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
}
