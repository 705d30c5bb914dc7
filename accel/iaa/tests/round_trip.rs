//! Pages through both compressors, on devices of both generations, and back.

mod common;

use acomp::{Algorithm, Page, UnitError, MAX_BATCH, PAGE_SIZE};
use common::*;
use iaa::Iaa;

const SPECS: [&str; 5] = [
    "generation=1",
    "generation=2,devices=4,queues=2",
    "generation=1,mode=shared,queues=3,threshold=2",
    "generation=2,run=poll,sockets=2,devices=2",
    "generation=1,threads,engines=2,devices=2,queues=2",
];

#[test]
fn pages_come_back_and_others_can_read_them() {
    for spec in SPECS {
        for sync_mode in ["async", "sync"] {
            for verify in ["0", "1"] {
                // Engine threads may wait long for a processor, which must not send work to
                // software.
                let text = format!("sync_mode={sync_mode},verify_compress={verify},patience_ms=60000");
                let driver = driver(spec, &text);
                for mut context in [fixed(&driver), dynamic(&driver)] {
                    for first in [0, 8, 16, 21] {
                        let count = if first == 21 { 3 } else { MAX_BATCH as u64 };
                        round_trip(&mut *context, first..first + count);
                    }
                }
                let statistics = driver.statistics();
                assert_eq!(
                    (statistics.total_sw_comp_calls, statistics.total_sw_decomp_calls),
                    (0, 0),
                    "{spec}"
                );
                assert_eq!((statistics.total_comp_calls, driver.outstanding()), (2 * 27, 0));
            }
        }
    }
}

#[test]
fn units_longer_than_a_page_are_one_stream_each() {
    for spec in ["generation=1", "generation=2,devices=2"] {
        let driver = driver(spec, "verify_compress=1");
        for algorithm in [Iaa::fixed(driver.clone()), Iaa::dynamic(driver.clone())] {
            let mut context = algorithm.context_for(16 * 1024).unwrap();
            // Three units and a half, first in one piece, then in any order.
            let adjacent: Vec<Page> = (0..14).map(|at| page(at % 6)).collect();
            let mut pages: Vec<&Page> = adjacent.iter().collect();
            for _ in 0..2 {
                let packed = compress(&mut *context, &pages, 16 * 1024, 16 * 1024 - 1);
                assert_eq!(packed.len(), 4);
                let units: Vec<Vec<u8>> = pages
                    .chunks(4)
                    .map(|unit| unit.iter().flat_map(|page| page.iter().copied()).collect())
                    .collect();
                for (stream, unit) in packed.iter().zip(&units) {
                    check_stream(stream.as_ref().unwrap(), unit);
                }
                let objects: Vec<_> = packed
                    .iter()
                    .zip(&units)
                    .map(|(stream, unit)| (stream.as_ref().unwrap().as_slice(), unit.len()))
                    .collect();
                for (result, unit) in decompress(&mut *context, &objects).iter().zip(&units) {
                    assert_eq!(result.as_ref().unwrap(), unit);
                }
                pages.reverse();
            }
        }
        assert_eq!(driver.statistics().total_sw_comp_calls, 0);
    }
}

#[test]
fn each_unit_has_its_own_result() {
    let driver = driver("devices=2", "");
    let mut context = fixed(&driver);
    let pages: Vec<Page> = (0..8).map(page).collect();
    let packed = compress(&mut *context, &pages.iter().collect::<Vec<_>>(), PAGE_SIZE, PAGE_SIZE);
    let mut streams: Vec<Vec<u8>> = packed.into_iter().take(6).map(Result::unwrap).collect();
    let half = streams[1].len() / 2;
    streams[1].truncate(half);
    streams[2].clear();
    streams[4][0] |= 7;
    let objects: Vec<_> = streams.iter().map(|stream| (stream.as_slice(), PAGE_SIZE)).collect();
    let plain = decompress(&mut *context, &objects);
    for (at, result) in plain.iter().enumerate() {
        match at {
            1 | 2 | 4 => assert_eq!(*result, Err(UnitError::Failed), "{at}"),
            _ => assert!(*result.as_ref().unwrap() == pages[at], "{at}"),
        }
    }
    // A length unlike the unit's is an error too.
    let objects =
        [(streams[0].as_slice(), 4000), (streams[0].as_slice(), 5000), (streams[0].as_slice(), 4096)];
    let plain = decompress(&mut *context, &objects);
    assert_eq!((&plain[0], &plain[1]), (&Err(UnitError::Failed), &Err(UnitError::Failed)));
    assert!(*plain[2].as_ref().unwrap() == pages[0]);
}

#[test]
fn streams_that_no_device_reads_are_inflated_in_software() {
    // Two halves of noise, the second a copy of the first at a distance of 8 KiB.
    let mut unit: Vec<u8> = (0..2).flat_map(|half| page(6 + 7 * half)).collect();
    unit.extend_from_within(..);
    let stream = miniz_oxide::deflate::compress_to_vec(&unit, 9);
    assert!(stream.len() < unit.len() * 3 / 4);
    let driver = driver("", "");
    let mut context = Iaa::fixed(driver.clone()).context_for(16 * 1024).unwrap();
    let plain = decompress(&mut *context, &[(&stream, unit.len())]);
    assert_eq!(plain[0].as_ref().unwrap(), &unit);
    let statistics = driver.statistics();
    assert_eq!((statistics.total_decomp_calls, statistics.total_sw_decomp_calls), (1, 1));
    assert_eq!(statistics.total_completion_einval_errors, 1);
}
