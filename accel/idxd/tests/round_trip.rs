//! Devices inflate others' streams, and others inflate devices' streams.

mod common;

use common::*;
use idxd::{ErrorCode, Status};

fn check_stream(stream: &[u8], data: &[u8]) {
    assert!(zlib_inflate(stream, data.len()).is_ok_and(|plain| plain == data));
    assert!(libdeflate_inflate(stream, data.len()).is_some_and(|plain| plain == data));
    assert!(miniz_oxide::inflate::decompress_to_vec(stream).is_ok_and(|plain| plain == data));
}

type Compress = fn(&Device, &[u8], &mut [u8]) -> idxd::Record;

const MODES: [(&str, u32, Compress); 5] = [
    ("fixed", 1, Device::compress_fixed),
    ("fixed", 2, Device::compress_fixed),
    ("statistics", 1, Device::compress_by_statistics),
    ("one pass", 2, Device::compress_one_pass),
    ("two passes", 2, Device::compress_two_pass),
];

#[test]
fn compressed_pages_inflate_everywhere() {
    for (mode, generation, compress) in MODES {
        let device = Device::new(&format!("generation={generation}"));
        let (mut plain_bytes, mut compressed_bytes) = (0, 0);
        for page in pages() {
            for len in [4096, 1, 2, 3, 7, 100, 4095] {
                let data = &page[..len];
                let mut out = vec![0; 2 * len + 300];
                let record = compress(&device, data, &mut out);
                assert!(record.is_success(), "{mode} {generation}: {record:?}");
                assert_eq!(record.bytes_completed as usize, len);
                let stream = &out[..record.output_size as usize];
                check_stream(stream, data);

                let mut plain = vec![0; len];
                let back = device.decompress(stream, &mut plain);
                assert!(back.is_success() && plain == data, "{mode}: {back:?}");
                assert_eq!((back.crc, back.xor), (record.crc, record.xor));
                assert_eq!((back.output_size, back.bytes_completed), (len as u32, record.output_size));
                plain_bytes += len;
                compressed_bytes += stream.len();
            }
        }
        assert!(compressed_bytes < plain_bytes, "{mode}: {compressed_bytes} of {plain_bytes}");
    }
}

#[test]
fn inputs_longer_than_a_page_go_through_the_modes_that_take_them() {
    let mut data = Vec::new();
    for page in pages() {
        data.extend_from_slice(&page);
    }
    let modes: [(u32, Compress); 3] =
        [(1, Device::compress_fixed), (1, Device::compress_by_statistics), (2, Device::compress_two_pass)];
    for (generation, compress) in modes {
        let device = Device::new(&format!("generation={generation}"));
        let mut out = vec![0; data.len() * 2];
        let record = compress(&device, &data, &mut out);
        assert!(record.is_success(), "{record:?}");
        check_stream(&out[..record.output_size as usize], &data);
    }
}

#[test]
fn output_that_does_not_fit_is_an_error_and_stays_inside() {
    for (mode, generation, compress) in MODES {
        let device = Device::new(&format!("generation={generation}"));
        for page in pages().iter().take(20) {
            let mut whole = vec![0; 9000];
            let size = compress(&device, page, &mut whole).output_size as usize;
            for room in [1, size / 2, size - 1] {
                if room == 0 {
                    continue;
                }
                let mut out = vec![0xa5; size + 16];
                let record = compress(&device, page, &mut out[..room]);
                assert_eq!(
                    (record.status, record.error),
                    (Status::ANALYTICS_ERROR, ErrorCode::OUTPUT_OVERFLOW),
                    "{mode} {room} of {size}"
                );
                assert!(out[room..].iter().all(|&byte| byte == 0xa5));
            }
            let mut exact = vec![0; size];
            assert!(compress(&device, page, &mut exact).is_success());
            assert_eq!(exact, whole[..size]);
        }
    }
}

#[test]
fn streams_of_zlib_with_a_small_window_inflate() {
    let device = Device::new("");
    let all: Vec<u8> = pages().concat();
    let mut inputs: Vec<&[u8]> = all.chunks(4096).collect();
    inputs.push(&all);
    inputs.extend(all.chunks(50_000));
    for data in inputs {
        for level in 0..=9 {
            for strategy in
                [libz_sys::Z_DEFAULT_STRATEGY, libz_sys::Z_FIXED, libz_sys::Z_RLE, libz_sys::Z_HUFFMAN_ONLY]
            {
                // With little memory zlib makes many blocks.
                for memory in [1, 8] {
                    if data.len() > 4096 && (strategy != libz_sys::Z_DEFAULT_STRATEGY || level % 3 != 0) {
                        continue;
                    }
                    let stream = zlib_deflate(data, level, strategy, memory);
                    let mut plain = vec![0; data.len()];
                    let record = device.decompress(&stream, &mut plain);
                    assert!(record.is_success(), "level {level} strategy {strategy}: {record:?}");
                    assert!(plain == data);
                    assert_eq!(record.bytes_completed as usize, stream.len());
                }
            }
        }
    }
}

#[test]
fn verify_gives_the_checksum_without_output() {
    let device = Device::new("");
    for page in pages() {
        let mut out = vec![0; 8192];
        let record = device.compress_fixed(&page, &mut out);
        let stream = &out[..record.output_size as usize];
        let mut copy = page;
        let verify =
            device.run(idxd::Descriptor::verify(std::ptr::null(), source(stream), destination(&mut copy)));
        assert!(verify.is_success() && verify.crc == record.crc && copy == page);
    }
}

/// Data with counts that make the deepest trees still has codes of at most 15 bits.
#[test]
fn skewed_counts_inflate() {
    let mut data = Vec::new();
    let (mut a, mut b) = (1usize, 1usize);
    for byte in 0..19u8 {
        data.extend(std::iter::repeat_n(byte, a));
        (a, b) = (b, a + b);
    }
    // Shuffled, so that there are few matches.
    let mut random = Random(5);
    for at in (1..data.len()).rev() {
        data.swap(at, random.below(at + 1));
    }
    let device = Device::new("generation=2");
    let mut out = vec![0; data.len() * 2];
    let record = device.compress_two_pass(&data, &mut out);
    assert!(record.is_success());
    check_stream(&out[..record.output_size as usize], &data);
}

/// Fixed mode against zlib with fixed codes, dynamic mode against zlib; both with the device's
/// window, level 6.
#[test]
fn ratios_are_within_a_tenth_of_zlibs() {
    let modes: [(u32, Compress, i32); 3] = [
        (1, Device::compress_fixed, libz_sys::Z_FIXED),
        (1, Device::compress_by_statistics, libz_sys::Z_DEFAULT_STRATEGY),
        (2, Device::compress_one_pass, libz_sys::Z_DEFAULT_STRATEGY),
    ];
    for (generation, compress, strategy) in modes {
        let device = Device::new(&format!("generation={generation}"));
        let (mut own, mut zlibs) = (0, 0);
        for page in pages() {
            let mut out = vec![0; 8192];
            let record = compress(&device, &page, &mut out);
            // Incompressible pages count as 4 KiB.
            own += (record.output_size as usize).min(4096);
            zlibs += zlib_deflate(&page, 6, strategy, 8).len().min(4096);
        }
        assert!(own * 9 <= zlibs * 10, "generation {generation}, strategy {strategy}: {own} to {zlibs}");
    }
}

/// The texts of the published vectors of `deflate-iaa-dynamic` (crypto/testmgr.h of the kernel
/// series "zswap compression batching", v13 and v14) and the sizes of their streams, each one
/// dynamic block. How devices find matches is not published, so streams may differ; ours are not
/// longer.
#[test]
fn published_texts_shrink_as_published() {
    let software = "Join us now and share the software ".repeat(2);
    let document =
        "This document describes a compression method based on the DEFLATEcompression algorithm.  \
                    This document defines the application of the DEFLATE algorithm to the IP Payload \
                    Compression Protocol.";
    for (text, published_len) in [(software.as_str(), 46), (document, 121)] {
        let device = Device::new("generation=2");
        let mut out = [0; 256];
        let record = device.compress_one_pass(text.as_bytes(), &mut out);
        assert!(record.is_success(), "{record:?}");
        let stream = &out[..record.output_size as usize];
        assert!(stream.len() <= published_len, "{} bytes of {}", stream.len(), text.len());
        assert_eq!(stream[0] & 7, 0b101, "the final block, dynamic");
        check_stream(stream, text.as_bytes());
        let mut plain = vec![0; text.len()];
        assert!(device.decompress(stream, &mut plain).is_success() && plain == text.as_bytes());
    }
}
