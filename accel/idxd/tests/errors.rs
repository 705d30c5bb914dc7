//! Every possible status and error code, each from its own cause.

mod common;

use std::ptr;

use common::*;
use idxd::aecs::{CompressAecs, DecompressAecs, Histogram, FIXED};
use idxd::emulated::{QueueId, SoftwareError};
use idxd::{
    compress_flags, decompress_flags, flags, Completion, Descriptor, ErrorCode, Opcode, Portal, Status,
};

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
    let mut out = [0; 4096];
    let record = device.decompress(stream, &mut out);
    assert_eq!(record.status, Status::ANALYTICS_ERROR, "{record:?}");
    record.error
}

#[test]
fn damaged_headers() {
    // Codes of one bit: 0 for length 0 (or the first named), 1 for the second.
    let padding = |bits: Bits| bits.put(0, 16).put(0, 16).0;
    assert_eq!(error_of(&Bits::default().put(1, 1).put(3, 2).put(0, 13).0), ErrorCode::BAD_BLOCK_TYPE);
    assert_eq!(error_of(&[0x01, 5, 0, 5, 0]), ErrorCode::STORED_LENGTH_MISMATCH);
    assert_eq!(error_of(&padding(Bits::default().dynamic(287, 1, &[]))), ErrorCode::TOO_MANY_LITERAL_CODES);
    assert_eq!(error_of(&padding(Bits::default().dynamic(286, 31, &[]))), ErrorCode::TOO_MANY_DISTANCE_CODES);
    // Only symbol 1 has a code, 0; a 1 bit is unassigned.
    assert_eq!(
        error_of(&padding(Bits::default().dynamic(257, 1, &[(1, 1)]).put(1, 1))),
        ErrorCode::BAD_CODE_LENGTH_CODE
    );
    assert_eq!(
        error_of(&padding(Bits::default().dynamic(257, 1, &[(1, 1), (2, 1), (3, 1)]))),
        ErrorCode::CODE_LENGTHS_OVERSUBSCRIBED
    );
    // 16 is code 1 when it is the later of two symbols.
    let repeat = [(1, 1), (16, 1)];
    assert_eq!(
        error_of(&padding(Bits::default().dynamic(257, 1, &repeat).put(1, 1))),
        ErrorCode::FIRST_LENGTH_REPEATS
    );
    // 257 lengths of 9, one and then repeated: 1 + 42 x 6 = 253, then 4 by a repeat of 4; the
    // distance repeats.
    let mut bits = Bits::default().dynamic(257, 1, &[(9, 1), (16, 1)]).put(0, 1);
    for _ in 0..42 {
        bits = bits.put(1, 1).put(3, 2);
    }
    bits = bits.put(1, 1).put(1, 2).put(1, 1).put(0, 2);
    assert_eq!(error_of(&padding(bits)), ErrorCode::FIRST_DISTANCE_REPEATS);
    // Zeroes only: 138 + 120 = 258.
    let zeroes =
        Bits::default().dynamic(257, 1, &[(0, 1), (18, 1)]).put(1, 1).put(127, 7).put(1, 1).put(109, 7);
    assert_eq!(error_of(&padding(zeroes)), ErrorCode::NO_LITERAL_CODES);
    // 138 + 138 is more than 258, and the second run begins among literals.
    let beyond =
        Bits::default().dynamic(257, 1, &[(0, 1), (18, 1)]).put(1, 1).put(127, 7).put(1, 1).put(127, 7);
    assert_eq!(error_of(&padding(beyond)), ErrorCode::WRONG_LITERAL_COUNT);
    // 138 + 119 = 257 literals, then 11 zeroes for two distances.
    let beyond = Bits::default().dynamic(257, 2, &[(0, 1), (18, 1)]);
    let beyond = beyond.put(1, 1).put(127, 7).put(1, 1).put(108, 7).put(1, 1).put(0, 7);
    assert_eq!(error_of(&padding(beyond)), ErrorCode::WRONG_DISTANCE_COUNT);
    // 257 codes of length 1.
    let mut bits = Bits::default().dynamic(257, 1, &[(1, 1), (16, 1)]).put(0, 1);
    for _ in 0..42 {
        bits = bits.put(1, 1).put(3, 2);
    }
    bits = bits.put(1, 1).put(1, 2).put(0, 1);
    assert_eq!(error_of(&padding(bits)), ErrorCode::LITERALS_OVERSUBSCRIBED);
    // Literals 255 and 256 of length 1 and three distances of length 1: 138 + 117 zeroes, five
    // ones.
    let lengths = [(0, 1), (1, 2), (18, 2)];
    let zeroes = |bits: Bits| bits.code(3, 2).put(127, 7).code(3, 2).put(106, 7);
    let mut bits = zeroes(Bits::default().dynamic(257, 3, &lengths));
    for _ in 0..5 {
        bits = bits.code(2, 2);
    }
    assert_eq!(error_of(&padding(bits)), ErrorCode::DISTANCES_OVERSUBSCRIBED);
    // One literal code of two bits, 255, and one of one bit, 256; a 11 is unassigned. No distances
    // either.
    let lengths = [(1, 2), (2, 2), (0, 2), (18, 2)];
    let bits = Bits::default().dynamic(257, 1, &lengths).code(3, 2).put(127, 7).code(3, 2).put(106, 7);
    let bits = bits.code(2, 2).code(1, 2).code(0, 2).put(3, 2);
    assert_eq!(error_of(&padding(bits)), ErrorCode::BAD_LITERAL_CODE);
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
    let fixed = || Bits::default().put(1, 1).put(1, 2);
    let literal = |bits: Bits| bits.code(0x30 + 65, 8);
    let padding = |bits: Bits| bits.put(0, 16).0;
    // Symbols 286 and 287; distances 30 and 31.
    assert_eq!(error_of(&padding(literal(fixed()).code(0xc6, 8))), ErrorCode::BAD_MATCH_LENGTH);
    assert_eq!(error_of(&padding(literal(fixed()).code(1, 7).code(30, 5))), ErrorCode::BAD_DISTANCE);
    // Length 3 at distance 2 after one byte.
    assert_eq!(error_of(&padding(literal(fixed()).code(1, 7).code(1, 5))), ErrorCode::BEFORE_START);
    // Distance 4097: the window, not the data, is the limit.
    let mut far = fixed();
    for _ in 0..4100 {
        far = literal(far);
    }
    let far = padding(far.code(1, 7).code(24, 5).put(0, 11).code(0, 7));
    let device = Device::new("");
    let mut out = [0; 5000];
    let record = device.decompress(&far, &mut out);
    assert_eq!((record.status, record.error), (Status::ANALYTICS_ERROR, ErrorCode::BAD_DISTANCE));
    let mut near = fixed();
    for _ in 0..4100 {
        near = literal(near);
    }
    let near = padding(near.code(1, 7).code(23, 5).put(1023, 10).code(0, 7));
    assert!(device.decompress(&near, &mut out).is_success());
    assert_eq!(error_of(&literal(fixed()).0), ErrorCode::NO_EOB);
    // A distance in a block that has no distance codes.
    let lengths = [(0, 1), (1, 2), (18, 2)];
    let bits = Bits::default().dynamic(258, 1, &lengths).code(3, 2).put(127, 7).code(3, 2).put(107, 7);
    // 138 + 118 zeroes; 256 and 257 have one bit each; no distance. A length 3, then anything.
    let bits = bits.code(2, 2).code(2, 2).code(0, 1).code(1, 1).put(0, 5);
    assert_eq!(error_of(&padding(bits)), ErrorCode::BAD_DISTANCE_CODE);
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
        let status = |job: Descriptor| device.run(job).status;
        let opcode = |job: Descriptor, opcode: u8| Descriptor {
            control: job.control & 0xff_ffff | u32::from(opcode) << 24,
            ..job
        };
        let with = |job: Descriptor, bits: u32| Descriptor { control: job.control | bits, ..job };
        let codec = |job: Descriptor, bits: u16| Descriptor { codec_flags: job.codec_flags | bits, ..job };

        assert_eq!(status(noop), Status::SUCCESS);
        assert_eq!(status(Descriptor::drain(ptr::null())), Status::SUCCESS);
        for code in 0..=255u8 {
            let served = [Opcode::NOOP, Opcode::DRAIN, Opcode::COMPRESS, Opcode::DECOMPRESS];
            if !served.contains(&Opcode(code)) {
                assert_eq!(status(opcode(noop, code)), Status::UNSUPPORTED_OPCODE, "{code:#x}");
            }
        }
        for bits in [flags::FENCE, flags::CHECK_RESULT, flags::DESTINATION_READBACK, 1 << 6, 1 << 23] {
            let record = device.run(with(compress, bits));
            assert_eq!((record.status, record.invalid_flags), (Status::INVALID_FLAGS, bits));
        }
        assert_eq!(status(with(noop, flags::READ_AECS)), Status::INVALID_FLAGS);
        assert_eq!(status(with(compress, flags::READ_FILTER_INPUT)), Status::INVALID_FLAGS);
        assert_eq!(status(with(compress, flags::WRITE_SOURCE_2_MASK)), Status::INVALID_FLAGS);
        assert_eq!(status(Descriptor { pasid: 1 << 31, ..compress }), Status::PRIVILEGE);
        assert_eq!(status(Descriptor { pasid: 1 << 20, ..compress }), Status::NONZERO_RESERVED);
        assert_eq!(status(Descriptor { interrupt_handle: 1, ..compress }), Status::NONZERO_RESERVED);
        let interrupting = with(compress, flags::REQUEST_INTERRUPT);
        assert_eq!(status(interrupting), Status::SUCCESS);
        assert_eq!(status(Descriptor { interrupt_handle: 1, ..interrupting }), Status::BAD_INTERRUPT_HANDLE);
        assert_eq!(status(Descriptor { elements: 1, ..compress }), Status::NONZERO_RESERVED);
        assert_eq!(status(Descriptor { codec_flags_2: 1, ..compress }), Status::NONZERO_RESERVED);
        assert_eq!(status(Descriptor { codec_flags_2: 1, ..decompress }), Status::INVALID_FILTER_FLAGS);
        assert_eq!(status(Descriptor { source_2_size: 32, ..decompress }), Status::NONZERO_RESERVED);
        assert_eq!(status(Descriptor { source_size: 1, ..noop }), Status::NONZERO_RESERVED);
        for size in [0, u32::MAX] {
            assert_eq!(status(Descriptor { source_size: size, ..compress }), Status::INVALID_SIZE);
            assert_eq!(status(Descriptor { destination_size: size, ..decompress }), Status::INVALID_SIZE);
        }
        assert_eq!(status(Descriptor { destination_size: 1279, ..statistics }), Status::INVALID_SIZE);
        assert_eq!(status(Descriptor { source_2_size: 1536, ..compress }), Status::INVALID_SIZE);
        assert_eq!(
            status(Descriptor { source_2: compress.source_2 + 16, ..compress }),
            Status::MISALIGNED_ADDRESS
        );
        assert_eq!(status(Descriptor { source_2_size: 1570, ..compress }), Status::MISALIGNED_ADDRESS);
        assert_eq!(status(Descriptor { source: 0, ..compress }), Status::PAGE_FAULT_INVALID);
        assert_eq!(
            status(Descriptor { destination: compress.source + 4095, ..compress }),
            Status::OVERLAPPING_BUFFERS
        );
        for bits in [1 << 9, 1 << 15, compress_flags::BIG_ENDIAN_16, 1 << 6, 1 << 10, 1 << 12, 4 << 12] {
            assert_eq!(status(codec(compress, bits)), Status::INVALID_CODEC_FLAGS, "{bits:#x}");
        }
        for bits in [1 << 13, 1 << 15, decompress_flags::BIG_ENDIAN_16, 1 << 10] {
            assert_eq!(status(codec(decompress, bits)), Status::INVALID_CODEC_FLAGS, "{bits:#x}");
        }
        assert_eq!(status(Descriptor { codec_flags: 0, ..decompress }), Status::INVALID_CODEC_FLAGS);
        let bare = Descriptor {
            control: compress.control & !flags::READ_AECS,
            source_2: 0,
            source_2_size: 0,
            ..compress
        };
        assert_eq!(status(bare), Status::INVALID_FLAGS);
        assert_eq!(status(statistics), Status::SUCCESS);

        let by_generation = |first, second| if generation == 1 { first } else { second };
        assert_eq!(status(one_pass), by_generation(Status::INVALID_CODEC_FLAGS, Status::SUCCESS));
        assert_eq!(status(two_pass), by_generation(Status::INVALID_CODEC_FLAGS, Status::SUCCESS));
        let ignoring = codec(decompress, decompress_flags::IGNORE_END_BITS_HIGH);
        assert_eq!(status(ignoring), by_generation(Status::INVALID_CODEC_FLAGS, Status::ANALYTICS_ERROR));
        if generation == 2 {
            assert_eq!(status(Descriptor { source_size: 4097, ..one_pass }), Status::INVALID_SIZE);
            assert_eq!(status(Descriptor { codec_flags_2: 0, ..two_pass }), Status::INVALID_FLAGS);
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

/// A stream cut and resumed at every kind of place gives the same result as one job.
#[test]
fn decompression_goes_on_where_it_stopped() {
    let device = Device::new("generation=2");
    let data: Vec<u8> = pages()[2..9].concat();
    for (level, memory) in [(0, 8), (1, 8), (6, 8), (9, 1)] {
        let stream = zlib_deflate(&data, level, libz_sys::Z_DEFAULT_STRATEGY, memory);
        let mut whole = vec![0; data.len()];
        let reference = device.decompress(&stream, &mut whole);
        assert!(reference.is_success() && whole == data);
        for (chunk, room) in [(100, 100_000), (1, 100_000), (4096, 700), (33, 300)] {
            let mut aecs = Box::new([DecompressAecs::start(), DecompressAecs::start()]);
            let (mut at, mut plain, mut toggle) = (0, Vec::new(), 0);
            let mut last = None;
            for _ in 0..1_000_000 {
                let piece = &stream[at..(at + chunk).min(stream.len())];
                if piece.is_empty() {
                    break;
                }
                let mut out = vec![0; room];
                let mut job = Descriptor::decompress(ptr::null(), source(piece), destination(&mut out));
                job.control |= flags::READ_AECS | flags::WRITE_AECS | toggle;
                job.codec_flags = decompress_flags::ENABLE
                    | decompress_flags::FLUSH_OUTPUT
                    | decompress_flags::STOP_ON_EOB
                    | decompress_flags::SELECT_FINAL_EOB;
                (job.source_2, job.source_2_size) =
                    (aecs.as_mut_ptr() as u64, size_of::<DecompressAecs>() as u32);
                let record = device.run(job);
                assert!(matches!(record.status, Status::SUCCESS | Status::OUTPUT_OVERFLOW), "{record:?}");
                plain.extend_from_slice(&out[..record.output_size as usize]);
                at += record.bytes_completed as usize;
                toggle ^= flags::AECS_TOGGLE;
                last = Some(record);
                if plain.len() == data.len() {
                    break;
                }
            }
            assert!(plain == data, "level {level}, {chunk} in, {room} out: {} bytes", plain.len());
            // The XOR pairs bytes from the start of each job, so pieces of odd length change it.
            assert_eq!(last.unwrap().crc, reference.crc);
        }
    }
}

/// A job continues compressed data from the previous job's partial byte.
#[test]
fn compression_goes_on_in_the_middle_of_a_byte() {
    let device = Device::new("");
    let data = pages()[2];
    let mut aecs = Box::new([FIXED.clone(), CompressAecs::ZERO]);
    aecs[1].literals = FIXED.literals;
    aecs[1].distances = FIXED.distances;
    let mut stream = Vec::new();
    let mut last = None;
    for (at, piece) in data.chunks(1000).enumerate() {
        let mut out = vec![0; 3000];
        let mut job = Descriptor::compress_fixed(ptr::null(), source(piece), destination(&mut out), &aecs[0]);
        job.control |= flags::WRITE_AECS | if at % 2 == 0 { 0 } else { flags::AECS_TOGGLE };
        let is_last = at == 4;
        job.codec_flags = if is_last { compress_flags::END_EOB | compress_flags::FLUSH_OUTPUT } else { 0 };
        job.source_2 = aecs.as_mut_ptr() as u64;
        let record = device.run(job);
        assert!(record.is_success(), "{record:?}");
        stream.extend_from_slice(&out[..record.output_size as usize]);
        last = Some(record);
    }
    assert!(zlib_inflate(&stream, 4096).is_ok_and(|plain| plain == data));
    let mut plain = [0; 4096];
    let whole = device.decompress(&stream, &mut plain);
    assert_eq!((whole.crc, whole.xor), last.map(|record| (record.crc, record.xor)).unwrap());
}

#[test]
fn the_checksum_of_rfc_3720_is_taken_when_asked_for() {
    let device = Device::new("");
    let data = b"123456789";
    let mut out = [0; 64];
    let mut job = Descriptor::compress_fixed(ptr::null(), source(data), destination(&mut out), &FIXED);
    assert_eq!(device.run(job).crc, 0xcbf4_3926);
    job.control |= flags::CRC_RFC3720;
    assert_eq!(device.run(job).crc, 0xe306_9283);
}
