//! Shared by the tests: drivers, requests, pages, independent inflaters.
#![allow(dead_code, missing_docs)]

use std::sync::Arc;

use acomp::{
    Algorithm, CompressRequest, Context, DecompressRequest, Object, Page, UnitError, UnitResult, PAGE_SIZE,
};
use iaa::{Driver, Iaa, Settings};
pub use testkit::Random;

pub fn settings(text: &str) -> Settings {
    let mut settings = Settings::default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap();
        settings.set(key, value).unwrap().unwrap();
    }
    settings
}

pub fn driver(spec: &str, text: &str) -> Arc<Driver> {
    Arc::new(Driver::emulated(&spec.parse().unwrap(), settings(text)).unwrap())
}

pub fn fixed(driver: &Arc<Driver>) -> Box<dyn Context> {
    Iaa::fixed(Arc::clone(driver)).context_for(PAGE_SIZE).unwrap()
}

pub fn dynamic(driver: &Arc<Driver>) -> Box<dyn Context> {
    Iaa::dynamic(Arc::clone(driver)).context_for(PAGE_SIZE).unwrap()
}

/// Compresses units of `unit_size`, each into `room` bytes.
pub fn compress(
    context: &mut dyn Context,
    pages: &[&Page],
    unit_size: usize,
    room: usize,
) -> Vec<Result<Vec<u8>, UnitError>> {
    let units = pages.len().div_ceil(unit_size / PAGE_SIZE);
    let mut outputs = vec![vec![0; room]; units];
    let mut results: Vec<UnitResult> = vec![Err(UnitError::Failed); units];
    {
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        context.compress(&mut CompressRequest {
            pages,
            unit_size,
            outputs: &mut slices,
            results: &mut results,
        });
    }
    let pairs = outputs.into_iter().zip(results);
    pairs
        .map(|(mut output, result)| {
            result.map(|size| {
                output.truncate(size);
                output
            })
        })
        .collect()
}

/// Decompresses objects into units of the given lengths. Every third object is passed in two
/// pieces.
pub fn decompress(context: &mut dyn Context, objects: &[(&[u8], usize)]) -> Vec<Result<Vec<u8>, UnitError>> {
    let mut outputs: Vec<Vec<u8>> = objects.iter().map(|&(_, len)| vec![0xcc; len]).collect();
    let mut results: Vec<UnitResult> = vec![Err(UnitError::Failed); objects.len()];
    let parts: Vec<Object> = objects
        .iter()
        .enumerate()
        .map(|(at, &(bytes, _))| {
            let (head, tail) = bytes.split_at(if at % 3 == 2 { bytes.len() / 3 } else { bytes.len() });
            Object { head, tail }
        })
        .collect();
    {
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        context.decompress(&mut DecompressRequest {
            objects: &parts,
            outputs: &mut slices,
            results: &mut results,
        });
    }
    let pairs = outputs.into_iter().zip(results);
    pairs
        .map(|(output, result)| {
            result.map(|size| {
                assert_eq!(size, output.len());
                output
            })
        })
        .collect()
}

/// Compresses and decompresses the pages of `indices`, a batch at most. Returns the streams of
/// those that shrink; panics if a page changes, or one that is not noise does not shrink.
pub fn round_trip(context: &mut dyn Context, indices: impl IntoIterator<Item = u64>) -> Vec<Vec<u8>> {
    let indices: Vec<u64> = indices.into_iter().collect();
    let pages: Vec<Page> = indices.iter().map(|&index| page(index)).collect();
    let packed = compress(context, &pages.iter().collect::<Vec<_>>(), PAGE_SIZE, PAGE_SIZE - 1);
    let (mut kept, mut streams) = (Vec::new(), Vec::new());
    for ((result, index), page) in packed.into_iter().zip(indices).zip(&pages) {
        match result {
            Ok(stream) => {
                check_stream(&stream, page);
                kept.push(page);
                streams.push(stream);
            }
            Err(error) => assert!(is_noise(index) && error == UnitError::NoSpace, "page {index}: {error}"),
        }
    }
    if !kept.is_empty() {
        let objects: Vec<_> = streams.iter().map(|stream| (stream.as_slice(), PAGE_SIZE)).collect();
        for (plain, page) in decompress(context, &objects).iter().zip(kept) {
            assert!(plain.as_ref().is_ok_and(|plain| plain == page), "a page changed");
        }
    }
    streams
}

/// [`round_trip`] of eight pages that shrink.
pub fn there_and_back(context: &mut dyn Context) -> Vec<Vec<u8>> {
    round_trip(context, shrinking(8))
}

/// Indices of pages that shrink.
pub fn shrinking(count: usize) -> impl Iterator<Item = u64> {
    (0..).filter(|&index| !is_noise(index)).take(count)
}

/// Inflates with an independent library; panics unless it agrees with `data`.
pub fn check_stream(stream: &[u8], data: &[u8]) {
    let plain = miniz_oxide::inflate::decompress_to_vec(stream).expect("miniz inflates it");
    assert!(plain == data, "miniz got something else");
}

/// Page `index` of an endless book: text, pointers, small numbers, records, runs, noise.
pub fn page(index: u64) -> Page {
    let mut random = Random(index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    random.number();
    let mut page = Vec::with_capacity(PAGE_SIZE + 64);
    let kind = index % 7;
    while page.len() < PAGE_SIZE {
        match kind {
            0 => {
                // One of sixty words, the first ones more often.
                let mut word = Random(1 + random.below(60) as u64 * random.below(60) as u64 / 60);
                for _ in 0..3 + word.below(6) {
                    page.push(b'a' + (word.number() >> 40) as u8 % 26);
                }
                page.push(b' ');
            }
            1 => page.extend_from_slice(&(0x7f12_3456_0000 + (random.number() & 0x3_fff8)).to_le_bytes()),
            2 => page.extend_from_slice(&(random.below(1000) as u64).to_le_bytes()),
            3 => {
                page.extend_from_slice(&(0x5581_0040_2000u64 + (random.number() & 0xff0)).to_le_bytes());
                page.extend_from_slice(&(random.below(3) as u64).to_le_bytes());
                page.extend_from_slice(&[0; 14]);
            }
            4 => page.extend(std::iter::repeat_n(random.below(4) as u8, 1 + random.below(300))),
            5 => page.extend_from_slice(&[(index % 5) as u8; 64]),
            _ => page.push(random.number() as u8),
        }
    }
    page.truncate(PAGE_SIZE);
    page.try_into().unwrap()
}

/// Whether [`page`] `index` is noise, which does not shrink.
pub fn is_noise(index: u64) -> bool {
    index % 7 == 6
}
