//! Independent decoders in another language read every output.

mod pages;

use std::io::Read;

use acomp::{Page, UnitError, PAGE_SIZE};
use pages::{algorithm, any_kind, compress_into, in_two, rebuild, Random};

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
        let algorithm = algorithm(name);
        assert_eq!(algorithm.name(), *name);
        let mut made = 0;
        for pages in [1, 2, 4, 8, 16] {
            let len = pages * PAGE_SIZE;
            let mut context = algorithm.context_for(len).unwrap();
            for round in 0..12 {
                // Every fourth unit is a mixture.
                let kind = |n: usize| if round % 4 == 3 { n } else { round };
                let unit: Vec<Page> = (0..pages).map(|n| any_kind(kind(n), &mut random)).collect();
                let bytes = unit.as_flattened();
                let mut compress = |room| compress_into(&mut *context, &unit, len, room).remove(0);
                let object = match compress(len) {
                    Ok(object) => object,
                    Err(error) => {
                        assert!(error == UnitError::NoSpace && *name == "zstd:-100", "{name}: {error}");
                        continue;
                    }
                };
                made += 1;
                assert_eq!(read(&object, len), bytes, "{name}, {pages} pages, round {round}");
                // Slightly and far too little room.
                for room in [object.len() - 1, 5] {
                    if let Ok(small) = compress(room) {
                        assert_eq!(read(&small, len), bytes, "{name}");
                    }
                }
                // The state survived the failures.
                assert_eq!(compress(len).unwrap(), object);
                let cut = random.below(object.len() as u64) as usize;
                assert_eq!(rebuild(&mut *context, in_two(&object, cut), len).as_deref(), Some(bytes));
            }
            let noise = [any_kind(3, &mut random)];
            assert_eq!(
                compress_into(&mut *context, &noise, PAGE_SIZE, PAGE_SIZE)[0],
                Err(UnitError::NoSpace)
            );
        }
        assert!(made >= 30, "{name} made {made} objects");
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
    let algorithm = algorithm("none");
    assert!(algorithm.keeps_raw());
    let mut context = algorithm.context().unwrap();
    let unit = [any_kind(0, &mut Random(1))];
    assert_eq!(compress_into(&mut *context, &unit, PAGE_SIZE, PAGE_SIZE)[0], Err(UnitError::NoSpace));
    assert_eq!(rebuild(&mut *context, in_two(&unit[0], 100), PAGE_SIZE).as_deref(), Some(&unit[0][..]));
    assert_eq!(rebuild(&mut *context, in_two(&unit[0][1..], 0), PAGE_SIZE), None);
}
