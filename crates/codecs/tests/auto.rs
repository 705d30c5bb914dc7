//! `auto` through the interface: classes, instruction sets, unit sizes, damage, choices and counts.

mod pages;

use acomp::{CompressRequest, Context, Object, Page, UnitError, PAGE_SIZE};
use codecs::auto::Kind;
use pages::{algorithm, compress, decompress, make, rebuild, Random, CLASSES};

fn context(name: &str) -> Box<dyn Context> {
    algorithm(name).context().expect("memory")
}

fn names() -> Vec<String> {
    pagecodec::Isa::available().map(|isa| format!("auto:{isa}")).collect()
}

#[test]
fn every_class_returns_on_every_instruction_set() {
    for class in CLASSES {
        let pages = make(class, 8);
        let reference = compress(context("auto:portable").as_mut(), &pages, PAGE_SIZE);
        for name in names() {
            let mut context = context(&name);
            assert!(
                compress(context.as_mut(), &pages, PAGE_SIZE) == reference,
                "{name}: {} differs",
                class.0
            );
            for (object, page) in reference.iter().zip(&pages) {
                let Some(object) = object else { continue };
                let back = decompress(context.as_mut(), object, PAGE_SIZE).expect(class.0);
                assert!(back == page, "{name}: {}", class.0);
                // In two pieces, as the allocator may hold it.
                let (head, tail) = object.split_at(object.len() / 3);
                let back = rebuild(context.as_mut(), Object { head, tail }, PAGE_SIZE).expect(class.0);
                assert!(back == page, "{name}: {} in two pieces", class.0);
            }
        }
    }
}

#[test]
fn larger_units_return() {
    let mut context = context("auto");
    let mut random = Random(1);
    for pages_per_unit in [2, 3, 4, 16] {
        let pages: Vec<Page> = (0..pages_per_unit + 1)
            .map(|_| make(&CLASSES[random.below(CLASSES.len() as u64) as usize], 3)[2])
            .collect();
        let unit_size = pages_per_unit * PAGE_SIZE;
        for (object, pages) in
            compress(context.as_mut(), &pages, unit_size).iter().zip(pages.chunks(pages_per_unit))
        {
            let Some(object) = object else { continue };
            let back = decompress(context.as_mut(), object, pages.len() * PAGE_SIZE);
            assert!(back.expect("its own object") == pages.concat());
        }
    }
}

/// The promise per class: at most 1.02 times the size by LZ4.
#[test]
fn no_class_is_worse_than_lz4() {
    for class in CLASSES {
        let (mut auto, mut lz4) = (context("auto"), context("lz4"));
        let pages = make(class, 64);
        let size = |context: &mut dyn Context| -> usize {
            let batches = pages.chunks(8).flat_map(|batch| compress(context, batch, PAGE_SIZE));
            batches.map(|object| object.map_or(PAGE_SIZE, |object| object.len())).sum()
        };
        let (own, theirs) = (size(auto.as_mut()), size(lz4.as_mut()));
        assert!(own * 100 <= theirs * 102, "{}: {own} bytes against {theirs}", class.0);
    }
}

#[test]
fn short_outputs_are_refused_not_overrun() {
    let mut context = context("auto");
    for class in CLASSES {
        let page = make(class, 1)[0];
        let Some(whole) = &compress(context.as_mut(), &[page], PAGE_SIZE)[0] else { continue };
        for len in [0, 1, 8, whole.len() / 2, whole.len() - 1] {
            let mut space = vec![0xEE; len + 64];
            let (output, guard) = space.split_at_mut(len);
            let mut results = [Ok(0)];
            context.compress(&mut CompressRequest {
                pages: &[&page],
                unit_size: PAGE_SIZE,
                outputs: &mut [output],
                results: &mut results,
            });
            assert!(guard.iter().all(|&byte| byte == 0xEE), "{}", class.0);
            match results[0] {
                Err(error) => assert_eq!(error, UnitError::NoSpace, "{}", class.0),
                // Another form may fit where the first choice does not.
                Ok(short) => {
                    let back = decompress(context.as_mut(), &space[..short], PAGE_SIZE);
                    assert!(back.expect(class.0) == page);
                }
            }
        }
    }
}

#[test]
fn noise_is_given_up() {
    let class = CLASSES.iter().find(|class| class.0 == "random").expect("a class");
    let objects = compress(context("auto").as_mut(), &make(class, 8), PAGE_SIZE);
    assert!(objects.iter().all(Option::is_none));
}

#[test]
fn damage_is_an_error_or_some_page() {
    let mut random = Random(9);
    let mut contexts: Vec<_> = names().iter().map(|name| context(name)).collect();
    let mut outcomes = [0u32; 2];
    for class in CLASSES {
        for object in compress(contexts[0].as_mut(), &make(class, 4), PAGE_SIZE).into_iter().flatten() {
            for _ in 0..40 {
                let mut damaged = object.clone();
                for _ in 0..1 + random.below(3) {
                    let range = if random.below(2) == 0 { 32 } else { damaged.len() as u64 };
                    let at = random.below(range) as usize % damaged.len();
                    damaged[at] = random.next() as u8;
                }
                if random.below(5) == 0 {
                    damaged.truncate(random.below(damaged.len() as u64) as usize);
                }
                let backs: Vec<_> = contexts
                    .iter_mut()
                    .map(|context| decompress(context.as_mut(), &damaged, PAGE_SIZE))
                    .collect();
                assert!(backs.windows(2).all(|pair| pair[0] == pair[1]), "instruction sets disagree");
                outcomes[usize::from(backs[0].is_some())] += 1;
            }
        }
    }
    assert!(outcomes.iter().all(|&count| count > 100), "{outcomes:?}");
}

/// Objects that no encoder made: every kind, followed by any bytes.
#[test]
fn any_bytes_are_an_error_or_some_page() {
    let mut random = Random(10);
    let mut contexts: Vec<_> = names().iter().map(|name| context(name)).collect();
    let mut pages = 0;
    for round in 0..4000 {
        let len = 1 + random.below(if round % 2 == 0 { 40 } else { 1000 }) as usize;
        // Few values, so that lengths and offsets of LZ4 blocks are often valid.
        let mask = [0xff, 0x1f, 0x11][round % 3];
        let mut object: Vec<u8> = (0..len).map(|_| random.next() as u8 & mask).collect();
        object[0] = (round % (Kind::ALL.len() + 1)) as u8;
        let backs: Vec<_> =
            contexts.iter_mut().map(|context| decompress(context.as_mut(), &object, PAGE_SIZE)).collect();
        assert!(backs.windows(2).all(|pair| pair[0] == pair[1]), "instruction sets disagree");
        pages += u32::from(backs[0].is_some());
    }
    assert!(pages > 0);
}
