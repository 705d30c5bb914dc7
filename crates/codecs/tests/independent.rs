//! Independent decoders in another language read every output.

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
                        // Slightly and far too little room.
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
