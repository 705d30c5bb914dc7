//! `t16h` through the interface: every class, unit sizes, promotion, training and the life of sets.

mod pages;

use acomp::{
    Algorithm, CompressRequest, Context, DecompressRequest, Object, Page, Registry, UnitResult, PAGE_SIZE,
};
use codecs::t16h::{release, Dense, KIND_T16H};
use pages::{make, Random, CLASSES};
use std::sync::Arc;

fn algorithm(name: &str) -> Arc<dyn Algorithm> {
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    registry.find(name).expect("registered")
}

fn compress(context: &mut dyn Context, pages: &[Page], unit_size: usize) -> Vec<Option<Vec<u8>>> {
    let sources: Vec<&Page> = pages.iter().collect();
    let units = (pages.len() * PAGE_SIZE).div_ceil(unit_size);
    let mut space = vec![vec![0; unit_size]; units];
    let mut outputs: Vec<&mut [u8]> = space.iter_mut().map(|slot| &mut slot[..]).collect();
    let mut results: Vec<UnitResult> = vec![Ok(0); units];
    context.compress(&mut CompressRequest {
        pages: &sources,
        unit_size,
        outputs: &mut outputs,
        results: &mut results,
    });
    let results = space.into_iter().zip(results);
    results.map(|(bytes, result)| result.ok().map(|len| bytes[..len].to_vec())).collect()
}

fn decompress(context: &mut dyn Context, object: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut back = vec![0x77; len];
    let mut results = [Ok(0)];
    context.decompress(&mut DecompressRequest {
        objects: &[Object::whole(object)],
        outputs: &mut [&mut back],
        results: &mut results,
    });
    results[0].ok().map(|_| back)
}

#[test]
fn every_class_returns() {
    for isa in pagecodec::Isa::available() {
        let mut context = algorithm(&format!("t16h:{isa}")).context().expect("memory");
        for class in CLASSES {
            let pages = make(class, 8);
            for (object, page) in compress(context.as_mut(), &pages, PAGE_SIZE).iter().zip(&pages) {
                let Some(object) = object else { continue };
                let back = decompress(context.as_mut(), object, PAGE_SIZE).expect(class.0);
                assert!(back == page, "{}", class.0);
            }
        }
    }
}

#[test]
fn larger_units_return_and_short_outputs_are_refused() {
    let mut context = algorithm("t16h").context().expect("memory");
    let mut random = Random(1);
    for pages_per_unit in [2, 4, 16] {
        let pages: Vec<Page> = (0..pages_per_unit)
            .map(|_| make(&CLASSES[random.below(CLASSES.len() as u64) as usize], 1)[0])
            .collect();
        let unit_size = pages_per_unit * PAGE_SIZE;
        let Some(object) = &compress(context.as_mut(), &pages, unit_size)[0] else { continue };
        let back = decompress(context.as_mut(), object, unit_size).expect("its own object");
        assert!(back == pages.concat());
        for len in [0, 1, 5, object.len() / 2, object.len() - 1] {
            let sources: Vec<&Page> = pages.iter().collect();
            let mut output = vec![0; len];
            let mut results = [Ok(0)];
            context.compress(&mut CompressRequest {
                pages: &sources,
                unit_size,
                outputs: &mut [&mut output],
                results: &mut results,
            });
            // Another form may fit where the first choice does not.
            if let Ok(short) = results[0] {
                let back = decompress(context.as_mut(), &output[..short], unit_size);
                assert!(
                    back.expect("its own object") == pages.concat(),
                    "{pages_per_unit} pages in {len} bytes"
                );
                release(Object::whole(&output[..short]), pages_per_unit);
            }
        }
        release(Object::whole(object), pages_per_unit);
    }
}

#[test]
fn promotion_needs_no_page() {
    let mut auto = algorithm("auto").context().expect("memory");
    let mut dense = Dense::open().expect("memory");
    let mut promoted = 0;
    for class in CLASSES {
        for page in make(class, 8) {
            let Some(object) = &compress(auto.as_mut(), &[page], PAGE_SIZE)[0] else { continue };
            let mut output = [0; PAGE_SIZE];
            if let Ok(len) = dense.promote(object, &mut output) {
                assert!(len <= object.len() && output[0] == KIND_T16H);
                assert!(decompress(&mut dense, &output[..len], PAGE_SIZE).expect(class.0) == page);
                promoted += 1;
            }
            // What was not promoted can be read by this compressor, too.
            assert!(decompress(&mut dense, object, PAGE_SIZE).expect(class.0) == page);
        }
    }
    assert!(promoted > 16, "{promoted} objects promoted");
}
