//! `t16h` and `auto-t16h` through the interface: promotion, samples of the second tier.

mod pages;

use acomp::{Context, Object, Page, PromoteRequest, UnitError, MAX_BATCH, PAGE_SIZE};
use codecs::auto::Kind;
use codecs::t16h::{KIND_PAGE, KIND_T16H};
use pages::{algorithm, compress, decompress, in_two, make, of_class, Random, CLASSES};

/// Promotes objects as a store does, into outputs `less` bytes shorter than the objects.
fn promote(context: &mut dyn Context, objects: &[Vec<u8>], less: usize) -> Vec<Result<Vec<u8>, UnitError>> {
    let mut all = Vec::new();
    for batch in objects.chunks(MAX_BATCH) {
        // In two pieces, as allocators may keep them.
        let sources: Vec<Object> = batch.iter().map(|object| in_two(object, object.len() / 3)).collect();
        let mut space: Vec<Vec<u8>> =
            batch.iter().map(|object| vec![0; object.len().saturating_sub(less)]).collect();
        let mut outputs: Vec<&mut [u8]> = space.iter_mut().map(|space| &mut space[..]).collect();
        let mut results = vec![Ok(0); batch.len()];
        context.promote(&mut PromoteRequest {
            objects: &sources,
            outputs: &mut outputs,
            results: &mut results,
        });
        all.extend(space.iter().zip(results).map(|(space, result)| result.map(|len| space[..len].to_vec())));
    }
    all
}

#[test]
fn both_tiers_return_every_class() {
    for isa in pagecodec::Isa::available() {
        let tiers = algorithm(&format!("auto-t16h:{isa}"));
        assert!(tiers.tiers().is_some() && tiers.keeps_account() && algorithm("auto").tiers().is_none());
        let mut context = tiers.context().expect("memory");
        let mut auto = algorithm(&format!("auto:{isa}")).context().expect("memory");
        let mut promoted = 0;
        for class in CLASSES {
            let pages = make(class, 24);
            let stored: Vec<(Vec<u8>, Page)> = pages
                .chunks(MAX_BATCH)
                .flat_map(|pages| {
                    let own = compress(context.as_mut(), pages, PAGE_SIZE);
                    assert_eq!(own, compress(auto.as_mut(), pages, PAGE_SIZE), "{}: the first tier", class.0);
                    own.into_iter().zip(pages.iter().copied())
                })
                .filter_map(|(object, page)| Some((object?, page)))
                .collect();
            let objects: Vec<Vec<u8>> = stored.iter().map(|(object, _)| object.clone()).collect();
            assert!(promote(context.as_mut(), &objects, 5000).iter().all(Result::is_err), "no room");
            for ((object, page), dense) in stored.iter().zip(promote(context.as_mut(), &objects, 16)) {
                // Read before `forget`, which may free a set.
                assert!(decompress(context.as_mut(), object, PAGE_SIZE).expect(class.0) == page);
                let Ok(dense) = dense else { continue };
                let kind = if object[0] == Kind::Lz as u8 { KIND_PAGE } else { KIND_T16H };
                assert!(dense.len() + 16 <= object.len() && dense[0] == kind);
                assert!(
                    decompress(context.as_mut(), &dense, PAGE_SIZE).expect(class.0) == page,
                    "{}",
                    class.0
                );
                assert!(promote(context.as_mut(), std::slice::from_ref(&dense), 0)[0].is_err(), "twice");
                tiers.forget(Object::whole(&dense), 1);
                promoted += 1;
            }
        }
        assert!(promoted > 48, "{promoted} objects promoted");
    }
}

#[test]
fn samples_tell_the_second_tiers_gain_and_it_is_chosen_for_new_pages() {
    for isa in pagecodec::Isa::available() {
        let tiered = algorithm(&format!("auto-t16h:{isa}"));
        let (tiers, mut context) = (tiered.tiers().expect("two tiers"), tiered.context().expect("memory"));
        let mut auto = algorithm(&format!("auto:{isa}")).context().expect("memory");
        let pages = of_class("objects", 640);
        let mut bytes = [0, 0];
        for (number, dense) in [false, true].into_iter().enumerate() {
            tiers.set_dense(dense);
            for pages in pages.chunks(MAX_BATCH) {
                let objects = compress(context.as_mut(), pages, PAGE_SIZE);
                assert_eq!(objects == compress(auto.as_mut(), pages, PAGE_SIZE), !dense);
                for (object, page) in objects.iter().zip(pages) {
                    let object = object.as_ref().expect("it shrinks");
                    bytes[number] += object.len();
                    assert!(decompress(context.as_mut(), object, PAGE_SIZE).expect("whole") == page);
                    tiered.forget(Object::whole(object), 1);
                }
            }
            // One page in 32 of either tier's requests is a sample.
            let sample = tiers.sample();
            assert!((16 * (number + 1)..=21 * (number + 1)).contains(&(sample.pages as usize)), "{sample:?}");
            let saved = sample.quick_bytes * 100 / sample.dense_bytes;
            assert!(saved > 105, "{sample:?}");
        }
        assert!(bytes[1] < bytes[0], "{bytes:?}");
        // Pages that do not shrink, and larger units, are no samples.
        let before = tiers.sample();
        let noise = of_class("random", 64);
        noise.chunks(MAX_BATCH).for_each(|pages| drop(compress(context.as_mut(), pages, PAGE_SIZE)));
        compress(context.as_mut(), &pages[..64], 8 * PAGE_SIZE);
        assert_eq!(tiers.sample(), before);
    }
}

#[test]
fn damaged_objects_are_not_promoted_or_to_something() {
    let tiers = algorithm("auto-t16h");
    let mut context = tiers.context().expect("memory");
    let mut random = Random(9);
    for class in CLASSES {
        for object in compress(context.as_mut(), &make(class, 4), PAGE_SIZE).into_iter().flatten() {
            for _ in 0..20 {
                let mut damaged = object.clone();
                for _ in 0..1 + random.below(4) {
                    let at = random.below(damaged.len() as u64) as usize;
                    damaged[at] = random.next() as u8;
                }
                damaged.truncate(1 + random.below(damaged.len() as u64) as usize);
                if let Ok(dense) = &promote(context.as_mut(), &[damaged], 0)[0] {
                    tiers.forget(Object::whole(dense), 1);
                }
            }
        }
    }
}
