//! Every output is read back by decoders that others wrote in another language.

mod support;

use std::io::Read;

use acomp::{Page, UnitError, PAGE_SIZE};
use support::{compress, decompress, find, page, Random};

fn read_lz4(object: &[u8], len: usize) -> Vec<u8> {
    lz4_flex::block::decompress(object, len).unwrap()
}

fn read_zstd(object: &[u8], len: usize) -> Vec<u8> {
    let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD];
    frame.extend_from_slice(object);
    let mut bytes = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(&frame[..]).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), len);
    bytes
}

fn read_deflate(object: &[u8], len: usize) -> Vec<u8> {
    miniz_oxide::inflate::decompress_to_vec_with_limit(object, len).unwrap()
}

fn check(names: &[&str], read: fn(&[u8], usize) -> Vec<u8>) {
    let mut random = Random(42);
    for name in names {
        let algorithm = find(name);
        assert_eq!(algorithm.name(), *name);
        for pages in [1, 2, 4, 8, 16] {
            let mut context = algorithm.context_for(pages * PAGE_SIZE).unwrap();
            for round in 0..24 {
                let kinds = if round % 4 == 3 { random.next() } else { round };
                let unit: Vec<Page> = (0..pages as u64)
                    .map(|n| page(if kinds > 24 { n } else { kinds }, &mut random))
                    .collect();
                let bytes = unit.as_flattened();
                match compress(&mut *context, &unit, bytes.len()) {
                    Ok(object) => {
                        assert_eq!(read(&object, bytes.len()), bytes, "{name}, {pages} pages, round {round}");
                        let cut = random.below(object.len() as u64) as usize;
                        assert_eq!(decompress(&mut *context, &object, cut, bytes.len()).unwrap(), bytes);
                        // Just too little room, and far too little.
                        for room in [object.len() - 1, 5] {
                            let small = compress(&mut *context, &unit, room);
                            assert!(small.as_ref().map_or(true, |small| small.len() <= room), "{name}");
                            if let Ok(small) = small {
                                assert_eq!(read(&small, bytes.len()), bytes);
                            }
                        }
                        // The state survived the failures.
                        assert_eq!(compress(&mut *context, &unit, bytes.len()).unwrap(), object);
                    }
                    Err(error) => assert!(error == UnitError::NoSpace && kinds > 2, "{name}: {error}"),
                }
            }
        }
    }
}

#[test]
fn lz4_is_read_by_lz4_flex() {
    check(&["lz4", "lz4:9", "lz4:32"], read_lz4);
}

#[test]
fn zstd_is_read_by_ruzstd() {
    check(&["zstd", "zstd:1", "zstd:-5", "zstd:-100", "zstd:9", "zstd:19"], read_zstd);
}

#[test]
fn deflate_is_read_by_miniz() {
    check(&["deflate", "deflate:6", "deflate:12"], read_deflate);
}

#[test]
fn deflate_reaches_back_no_further_than_4_kib() {
    // Noise that repeats after 4096 and after 8192 bytes. The first could be found, the second must
    // not.
    let mut random = Random(3);
    let noise: Vec<Page> = (0..2).map(|_| page(3, &mut random)).collect();
    let mut context = find("deflate:9").context().unwrap();
    let far = [noise[0], noise[1], noise[0], noise[1]];
    assert_eq!(compress(&mut *context, &far, 4 * PAGE_SIZE), Err(UnitError::NoSpace));
    let mut near = [[0; PAGE_SIZE]; 2];
    let bytes = near.as_flattened_mut();
    bytes[..3000].copy_from_slice(&noise[0][..3000]);
    bytes[3000..6000].copy_from_slice(&noise[0][..3000]);
    assert!(compress(&mut *context, &near, 2 * PAGE_SIZE).unwrap().len() < 3300);
}

#[test]
fn a_dictionary_helps_pages_like_its_samples() {
    let mut random = Random(9);
    let samples: Vec<Page> = (0..400).map(|n| page(n % 2, &mut random)).collect();
    let refs: Vec<&Page> = samples.iter().collect();
    let dictionary = codecs::dictionary::train(&refs, 16 * 1024).unwrap();
    assert!(dictionary.len() <= 16 * 1024);
    let plain = find("zstd:3");
    let trained = codecs::zstd::with_dictionary("zstd:3,dict=x", 3, dictionary).unwrap();
    for pages in [1, 4, 16] {
        let mut contexts =
            [plain.context_for(pages * PAGE_SIZE).unwrap(), trained.context_for(pages * PAGE_SIZE).unwrap()];
        let mut totals = [0, 0];
        for _ in 0..20 {
            let unit: Vec<Page> = (0..pages).map(|_| page(1, &mut random)).collect();
            for (context, total) in contexts.iter_mut().zip(&mut totals) {
                let object = compress(&mut **context, &unit, pages * PAGE_SIZE).unwrap();
                *total += object.len();
                let back = decompress(&mut **context, &object, 0, pages * PAGE_SIZE).unwrap();
                assert_eq!(back, unit.as_flattened());
            }
            // Without the dictionary the object is not what it was.
            let object = compress(&mut *contexts[1], &unit, pages * PAGE_SIZE).unwrap();
            let other = decompress(&mut *contexts[0], &object, 0, pages * PAGE_SIZE);
            assert!(other.map_or(true, |other| other != unit.as_flattened()));
        }
        if pages == 1 {
            assert!(totals[1] < totals[0], "{totals:?}");
        }
    }
}

#[test]
fn none_refuses_to_shrink_and_copies_back() {
    let mut random = Random(1);
    let algorithm = find("none");
    assert!(algorithm.keeps_raw());
    let mut context = algorithm.context().unwrap();
    let unit = [page(0, &mut random)];
    assert_eq!(compress(&mut *context, &unit, PAGE_SIZE), Err(UnitError::NoSpace));
    assert_eq!(decompress(&mut *context, &unit[0], 100, PAGE_SIZE).unwrap(), unit[0]);
    assert_eq!(decompress(&mut *context, &unit[0][1..], 0, PAGE_SIZE), Err(UnitError::Failed));
}
