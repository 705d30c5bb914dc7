//! Damaged objects yield errors or other bytes, never a crash or a write outside the output.

mod support;

use acomp::{Object, Page, PAGE_SIZE};
use support::{compress, decompress, find, page, Random};

#[test]
fn damaged_objects_do_no_harm() {
    let mut random = Random(7);
    for name in
        ["lz4", "zstd", "zstd:19", "deflate", "t16", "auto", "auto:portable", "t16h", "auto-t16h", "none"]
    {
        let algorithm = find(name);
        for pages in [1usize, 4, 16] {
            let len = pages * PAGE_SIZE;
            let mut context = algorithm.context_for(len).unwrap();
            let unit: Vec<Page> = (0..pages).map(|n| page(n as u64 % 3, &mut random)).collect();
            let Ok(object) = compress(&mut *context, &unit, len) else {
                assert_eq!(name, "none");
                continue;
            };
            let mut errors = 0;
            for _ in 0..2000 {
                let mut bad = object.clone();
                match random.below(4) {
                    0 => bad.truncate(random.below(object.len() as u64) as usize),
                    1 => bad.extend((0..random.below(50)).map(|_| 0xA7)),
                    2 => bad.iter_mut().for_each(|byte| *byte = random.next() as u8),
                    _ => {
                        for _ in 0..=random.below(4) {
                            let at = random.below(bad.len() as u64) as usize;
                            bad[at] ^= 1 << random.below(8);
                        }
                    }
                }
                let cut = random.below(bad.len() as u64 + 1) as usize;
                errors += u32::from(decompress(&mut *context, &bad, cut, len).is_err());
                // Counting forms and dropping the object also read it.
                let (head, tail) = bad.split_at(cut);
                let mut counts = vec![0; algorithm.forms().len()];
                algorithm.count_forms(Object { head, tail }, pages, &mut counts);
                assert!(counts.iter().sum::<u32>() as usize <= pages, "{name}: {counts:?}");
                algorithm.forget(Object { head, tail }, pages);
            }
            assert!(errors > 0, "{name} sees no damage at all");
            // The state survives the damage.
            assert_eq!(decompress(&mut *context, &object, 0, len).unwrap(), unit.as_flattened(), "{name}");
        }
    }
}

#[test]
fn bytes_behind_the_last_page_of_a_unit_are_damage() {
    let mut random = Random(11);
    for name in ["t16", "auto", "t16h", "auto-t16h"] {
        let len = 4 * PAGE_SIZE;
        let mut context = find(name).context_for(len).unwrap();
        // The third page is random and stored raw.
        let unit: Vec<Page> = (0..4).map(|number| page(number % 3, &mut random)).collect();
        let mut object = compress(&mut *context, &unit, len).unwrap();
        assert_eq!(decompress(&mut *context, &object, 9, len).unwrap(), unit.as_flattened(), "{name}");
        object.push(0);
        for cut in [0, 9, object.len() - 1, object.len()] {
            assert!(decompress(&mut *context, &object, cut, len).is_err(), "{name}, cut at {cut}");
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
        ("lzo", "known: none, lz4"),
    ] {
        let error = registry.find(name).err().expect("refused").to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
}
