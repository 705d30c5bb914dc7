//! Every possible status and error code, each from its own cause.

mod common;

use std::ptr;

use common::*;
use idxd::aecs::{CompressAecs, Histogram, FIXED};
use idxd::emulated::{QueueId, SoftwareError};
use idxd::{decompress_flags, flags, Completion, Descriptor, ErrorCode, Opcode, Portal, Status};

#[derive(Default)]
struct Bits(Vec<u8>, usize);

impl Bits {
    fn put(mut self, value: u32, count: usize) -> Self {
        for bit in 0..count {
            if self.1.is_multiple_of(8) {
                self.0.push(0);
            }
            *self.0.last_mut().unwrap() |= ((value >> bit & 1) as u8) << (self.1 % 8);
            self.1 += 1;
        }
        self
    }

    /// A code, most significant bit first.
    fn code(mut self, code: u32, length: usize) -> Self {
        for bit in (0..length).rev() {
            self = self.put(code >> bit, 1);
        }
        self
    }

    /// The start of a dynamic block: counts, and lengths of code-length codes by symbol.
    fn dynamic(self, literals: u32, distances: u32, lengths: &[(usize, u32)]) -> Self {
        const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
        let mut bits = self.put(1, 1).put(2, 2).put(literals - 257, 5).put(distances - 1, 5).put(15, 4);
        for symbol in ORDER {
            let length = lengths.iter().find(|(at, _)| *at == symbol).map_or(0, |(_, length)| *length);
            bits = bits.put(length, 3);
        }
        bits
    }
}

fn error_of(stream: &[u8]) -> ErrorCode {
    let device = Device::new("");
    let mut out = [0; 5000];
    let record = device.decompress(stream, &mut out);
    assert_eq!(record.status, Status::ANALYTICS_ERROR, "{record:?}");
    record.error
}

/// 42 repetitions of six lengths by code 1, and one of four.
fn repeated_to_256(mut bits: Bits) -> Bits {
    for _ in 0..42 {
        bits = bits.put(1, 1).put(3, 2);
    }
    bits.put(1, 1).put(1, 2)
}

#[test]
fn damaged_headers() {
    // Codes of one bit: 0 for length 0 (or the first named), 1 for the second.
    let dynamic =
        |literals, distances, lengths: &[(usize, u32)]| Bits::default().dynamic(literals, distances, lengths);
    // By code 1 of one bit: 138 and `more` + 11 zeroes.
    let zeroes = |bits: Bits, more| bits.put(1, 1).put(127, 7).put(1, 1).put(more, 7);
    let zeroes_of = |distances| dynamic(257, distances, &[(0, 1), (18, 1)]);
    // The same by code 3 of two bits.
    let long_zeroes = |bits: Bits| bits.code(3, 2).put(127, 7).code(3, 2).put(106, 7);
    for (bits, error) in [
        (Bits::default().put(1, 1).put(3, 2), ErrorCode::BAD_BLOCK_TYPE),
        (Bits::default().put(1, 8).put(5, 16).put(5, 16), ErrorCode::STORED_LENGTH_MISMATCH),
        (dynamic(287, 1, &[]), ErrorCode::TOO_MANY_LITERAL_CODES),
        (dynamic(286, 31, &[]), ErrorCode::TOO_MANY_DISTANCE_CODES),
        // Only symbol 1 has a code, 0; a 1 bit is unassigned.
        (dynamic(257, 1, &[(1, 1)]).put(1, 1), ErrorCode::BAD_CODE_LENGTH_CODE),
        (dynamic(257, 1, &[(1, 1), (2, 1), (3, 1)]), ErrorCode::CODE_LENGTHS_OVERSUBSCRIBED),
        // 16 is code 1 when it is the later of two symbols.
        (dynamic(257, 1, &[(1, 1), (16, 1)]).put(1, 1), ErrorCode::FIRST_LENGTH_REPEATS),
        // 257 lengths of 9, one and then repeated; the distance repeats.
        (
            repeated_to_256(dynamic(257, 1, &[(9, 1), (16, 1)]).put(0, 1)).put(1, 1).put(0, 2),
            ErrorCode::FIRST_DISTANCE_REPEATS,
        ),
        // 257 codes of length 1.
        (
            repeated_to_256(dynamic(257, 1, &[(1, 1), (16, 1)]).put(0, 1)).put(0, 1),
            ErrorCode::LITERALS_OVERSUBSCRIBED,
        ),
        // Zeroes only: 138 + 120 = 258.
        (zeroes(zeroes_of(1), 109), ErrorCode::NO_LITERAL_CODES),
        // 138 + 138 is more than 258, and the second run begins among literals.
        (zeroes(zeroes_of(1), 127), ErrorCode::WRONG_LITERAL_COUNT),
        // 138 + 119 = 257 literals, then 11 zeroes for two distances.
        (zeroes(zeroes_of(2), 108).put(1, 1).put(0, 7), ErrorCode::WRONG_DISTANCE_COUNT),
        // Literals 255 and 256 of length 1 and three distances of length 1: five ones.
        (
            (0..5).fold(long_zeroes(dynamic(257, 3, &[(0, 1), (1, 2), (18, 2)])), |bits, _| bits.code(2, 2)),
            ErrorCode::DISTANCES_OVERSUBSCRIBED,
        ),
        // One literal code of two bits, 255, and one of one bit, 256; a 11 is unassigned. No
        // distances either.
        (
            long_zeroes(dynamic(257, 1, &[(1, 2), (2, 2), (0, 2), (18, 2)]))
                .code(2, 2)
                .code(1, 2)
                .code(0, 2)
                .put(3, 2),
            ErrorCode::BAD_LITERAL_CODE,
        ),
    ] {
        assert_eq!(error_of(&bits.put(0, 16).put(0, 16).0), error);
    }
    // A header cut anywhere behind its type.
    let device = Device::new("");
    let mut out = [0; 9000];
    let size = device.compress_by_statistics(&pages()[3], &mut out).output_size as usize;
    for cut in [2, 5, 20] {
        assert_eq!(error_of(&out[..cut]), ErrorCode::HEADER_TOO_BIG);
    }
    assert_eq!(error_of(&out[..size - 1]), ErrorCode::NO_EOB);
}

#[test]
fn damaged_tokens_of_a_fixed_block() {
    let literals =
        |count| (0..count).fold(Bits::default().put(1, 1).put(1, 2), |bits: Bits, _| bits.code(0x30 + 65, 8));
    let padded = |bits: Bits| bits.put(0, 16).0;
    // Symbols 286 and 287; distances 30 and 31.
    assert_eq!(error_of(&padded(literals(1).code(0xc6, 8))), ErrorCode::BAD_MATCH_LENGTH);
    assert_eq!(error_of(&padded(literals(1).code(1, 7).code(30, 5))), ErrorCode::BAD_DISTANCE);
    // Length 3 at distance 2 after one byte.
    assert_eq!(error_of(&padded(literals(1).code(1, 7).code(1, 5))), ErrorCode::BEFORE_START);
    // Distance 4097: the window, not the data, is the limit.
    let far = literals(4100).code(1, 7).code(24, 5).put(0, 11).code(0, 7);
    assert_eq!(error_of(&padded(far)), ErrorCode::BAD_DISTANCE);
    let near = padded(literals(4100).code(1, 7).code(23, 5).put(1023, 10).code(0, 7));
    assert!(Device::new("").decompress(&near, &mut [0; 5000]).is_success());
    assert_eq!(error_of(&literals(1).0), ErrorCode::NO_EOB);
    // A distance in a block that has no distance codes.
    let lengths = [(0, 1), (1, 2), (18, 2)];
    let bits = Bits::default().dynamic(258, 1, &lengths).code(3, 2).put(127, 7).code(3, 2).put(107, 7);
    // 138 + 118 zeroes; 256 and 257 have one bit each; no distance. A length 3, then anything.
    let bits = bits.code(2, 2).code(2, 2).code(0, 1).code(1, 1).put(0, 5);
    assert_eq!(error_of(&padded(bits)), ErrorCode::BAD_DISTANCE_CODE);
}

#[test]
fn output_that_does_not_fit_is_recoverable_when_decompressing() {
    let device = Device::new("");
    let mut out = [0; 9000];
    let page = pages()[3];
    let size = device.compress_fixed(&page, &mut out).output_size as usize;
    for room in [1, 100, 4095] {
        let mut plain = vec![0xa5; 4096 + 64];
        let record = device.decompress(&out[..size], &mut plain[..room]);
        assert_eq!(record.status, Status::OUTPUT_OVERFLOW);
        assert!(plain[room..].iter().all(|&byte| byte == 0xa5));
    }
}

#[test]
fn compress_states_that_cannot_be() {
    let device = Device::new("");
    let data = [7u8; 100];
    let mut out = [0; 400];
    let mut run = |aecs: &CompressAecs| {
        let record =
            device.run(Descriptor::compress_fixed(ptr::null(), source(&data), destination(&mut out), aecs));
        (record.status, record.error)
    };
    let broken = |error| (Status::ANALYTICS_ERROR, error);
    assert_eq!(run(&FIXED), (Status::SUCCESS, ErrorCode::NONE));
    assert_eq!(
        run(&CompressAecs { accumulator_bits: 2049, ..FIXED.clone() }),
        broken(ErrorCode::INVALID_AECS)
    );
    let mut missing = FIXED.clone();
    missing.literals[7] = 0;
    assert_eq!(run(&missing), broken(ErrorCode::MISSING_CODE));
    let mut wide = FIXED.clone();
    wide.literals[7] = 0x100 | 8 << 15;
    assert_eq!(run(&wide), broken(ErrorCode::INVALID_AECS));
}

#[test]
fn refusals() {
    let mut out = [0u8; 8192];
    let data = [1u8; 4096];
    let mut aecs = [CompressAecs::ZERO, CompressAecs::ZERO];
    let mut histogram = Histogram::ZERO;
    for generation in [1, 2] {
        let device = Device::new(&format!("generation={generation}"));
        let compress = Descriptor::compress_fixed(ptr::null(), source(&data), destination(&mut out), &FIXED);
        let decompress = Descriptor::decompress(ptr::null(), source(&data), destination(&mut out));
        let statistics = Descriptor::compress_statistics(ptr::null(), source(&data), &mut histogram);
        let one_pass = Descriptor::compress_dynamic(ptr::null(), source(&data), destination(&mut out));
        let two_pass = Descriptor::compress_two_pass_header(ptr::null(), source(&data), &mut aecs);
        let noop = Descriptor::noop(ptr::null());
        let with = |job: Descriptor, bits: u32| Descriptor { control: job.control | bits, ..job };
        let without = |job: Descriptor, bits: u32| Descriptor { control: job.control & !bits, ..job };

        for code in 0..=255u8 {
            let served = [Opcode::NOOP, Opcode::DRAIN, Opcode::COMPRESS, Opcode::DECOMPRESS];
            if !served.contains(&Opcode(code)) {
                let job = Descriptor { control: noop.flags() | u32::from(code) << 24, ..noop };
                assert_eq!(device.run(job).status, Status::UNSUPPORTED_OPCODE, "{code:#x}");
            }
        }
        // The only flags are those of the jobs that drivers build.
        let hints = flags::BLOCK_ON_FAULT | flags::CACHE_CONTROL;
        let aecs_flags = flags::READ_AECS | flags::WRITE_AECS;
        for bit in (0..24).map(|bit| 1 << bit) {
            for (job, served) in [(noop, 0), (decompress, hints), (compress, hints | aecs_flags)] {
                if (served | job.flags()) & bit == 0 {
                    let record = device.run(with(job, bit));
                    assert_eq!((record.status, record.invalid_flags), (Status::INVALID_FLAGS, bit));
                }
            }
        }
        let options = decompress_flags::SELECT_FINAL_EOB | decompress_flags::SUPPRESS_OUTPUT;
        for bit in (0..16).map(|bit| 1u16 << bit) {
            for (job, options) in [(compress, 0), (decompress, options), (statistics, 0)] {
                if options & bit == 0 {
                    let record = device.run(Descriptor { codec_flags: job.codec_flags ^ bit, ..job });
                    assert_eq!(record.status, Status::INVALID_CODEC_FLAGS, "{bit:#x}");
                }
            }
        }
        let by_generation = |second| if generation == 1 { Status::INVALID_CODEC_FLAGS } else { second };
        for (at, (job, status)) in [
            (noop, Status::SUCCESS),
            (Descriptor::drain(ptr::null()), Status::SUCCESS),
            (statistics, Status::SUCCESS),
            (one_pass, by_generation(Status::SUCCESS)),
            (Descriptor { source_size: 4097, ..one_pass }, by_generation(Status::INVALID_SIZE)),
            (two_pass, by_generation(Status::SUCCESS)),
            (Descriptor { codec_flags_2: 0, ..two_pass }, by_generation(Status::INVALID_FLAGS)),
            (with(compress, flags::WRITE_AECS), Status::INVALID_FLAGS),
            (Descriptor { pasid: 1 << 31, ..compress }, Status::PRIVILEGE),
            (Descriptor { pasid: 1 << 20, ..compress }, Status::NONZERO_RESERVED),
            (Descriptor { interrupt_handle: 1, ..compress }, Status::NONZERO_RESERVED),
            (Descriptor { elements: 1, ..compress }, Status::NONZERO_RESERVED),
            (Descriptor { codec_flags_2: 1, ..compress }, Status::NONZERO_RESERVED),
            (Descriptor { codec_flags_2: 1, ..decompress }, Status::INVALID_FILTER_FLAGS),
            (Descriptor { source_2_size: 32, ..decompress }, Status::NONZERO_RESERVED),
            (Descriptor { source_size: 1, ..noop }, Status::NONZERO_RESERVED),
            (Descriptor { source_size: 0, ..compress }, Status::INVALID_SIZE),
            (Descriptor { source_size: u32::MAX, ..compress }, Status::INVALID_SIZE),
            (Descriptor { destination_size: 0, ..decompress }, Status::INVALID_SIZE),
            (Descriptor { destination_size: u32::MAX, ..decompress }, Status::INVALID_SIZE),
            (Descriptor { destination_size: 1279, ..statistics }, Status::INVALID_SIZE),
            (Descriptor { source_2_size: 1536, ..compress }, Status::INVALID_SIZE),
            (Descriptor { source_2: compress.source_2 + 16, ..compress }, Status::MISALIGNED_ADDRESS),
            (Descriptor { source_2_size: 1570, ..compress }, Status::MISALIGNED_ADDRESS),
            (Descriptor { source: 0, ..compress }, Status::PAGE_FAULT_INVALID),
            (Descriptor { destination: compress.source + 4095, ..compress }, Status::OVERLAPPING_BUFFERS),
            (without(compress, flags::READ_AECS), Status::NONZERO_RESERVED),
            (
                Descriptor { source_2: 0, source_2_size: 0, ..without(compress, flags::READ_AECS) },
                Status::INVALID_FLAGS,
            ),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(device.run(job).status, status, "job {at}, generation {generation}");
        }
    }
}

#[test]
fn a_record_that_cannot_be_written_becomes_a_software_error() {
    let device = Device::new("run=poll");
    let record = Completion::new();
    let address = &record as *const Completion as u64;
    let data = [1u8; 64];
    let mut out = [0u8; 256];
    let job = Descriptor::compress_fixed(&record, source(&data), destination(&mut out), &FIXED);
    for completion in [address + 8, 0] {
        // SAFETY: buffers outlive the poll below; the device refuses the address without touching
        // it.
        let _ = unsafe { device.portal.submit(&Descriptor { completion, ..job }) };
        device.portal.progress();
        assert_eq!(
            device.machine.take_software_error(0),
            Some(SoftwareError::BadCompletionAddress(Status::COMPLETION_MISALIGNED))
        );
    }
    assert!(!record.is_done() && out == [0; 256]);
    assert_eq!(device.machine.statistics(QueueId { device: 0, queue: 0 }).completed, 2);
}
