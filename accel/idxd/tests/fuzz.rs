//! Damaged streams: never a crash, never a byte outside, and the same verdict as an independent
//! inflater.
//!
//! `IDXD_FUZZ_ROUNDS` sets the number of mutated streams (default 30,000, a few seconds).

mod common;

use common::*;
use idxd::{ErrorCode, Status};

/// zlib refuses incomplete code sets and blocks without an end-of-block code; devices have no error
/// code for either and fail only at a missing code.
fn only_stricter(message: &str) -> bool {
    matches!(
        message,
        "invalid code lengths set"
            | "invalid literal/lengths set"
            | "invalid distances set"
            | "invalid code -- missing end-of-block"
    )
}

#[test]
fn mutated_streams_get_the_verdict_of_an_independent_inflater() {
    let rounds = std::env::var("IDXD_FUZZ_ROUNDS").map_or(30_000, |text| text.parse().unwrap());
    let device = Device::new("generation=2");
    let mut random = Random(0x1dcd);
    let mut streams = Vec::new();
    for page in pages().iter().take(24) {
        for level in [0, 1, 6] {
            streams.push(zlib_deflate(
                &page[..1 + random.below(4096)],
                level,
                libz_sys::Z_DEFAULT_STRATEGY,
                1,
            ));
        }
        streams.push(zlib_deflate(&page[..1 + random.below(300)], 6, libz_sys::Z_FIXED, 8));
        streams.push(zlib_deflate(&page[..1 + random.below(600)], 9, libz_sys::Z_DEFAULT_STRATEGY, 8));
    }
    const MOST: usize = 8192;
    let mut seen = [0u32; 256];
    let mut accepted = 0;
    for round in 0..rounds {
        let mut stream = streams[random.below(streams.len())].clone();
        for _ in 0..random.below(4) {
            // Half of the damage goes to the first bytes, where headers are.
            let within = if random.below(2) == 0 { 40 } else { usize::MAX };
            let at = random.below(stream.len().min(within));
            match random.below(4) {
                0 => stream[at] ^= 1 << random.below(8),
                1 => stream[at] = random.number() as u8,
                2 => stream.truncate(at.max(1)),
                _ => stream.insert(at, random.number() as u8),
            }
        }
        let mut out = vec![0xa5; MOST + 64];
        let record = device.decompress(&stream, &mut out[..MOST]);
        assert!(out[MOST..].iter().all(|&byte| byte == 0xa5), "round {round}: wrote outside");
        match (record.status, zlib_inflate(&stream, MOST)) {
            (Status::SUCCESS, Ok(plain)) => {
                assert!(out[..record.output_size as usize] == plain, "round {round}");
                assert_eq!(record.crc, crc32(&plain), "round {round}");
                accepted += 1;
            }
            (Status::OUTPUT_OVERFLOW, Err(Refused::TooLong)) => {}
            (Status::ANALYTICS_ERROR, Ok(_)) => {
                // RFC 1951 lets a distance length repeat the last literal length.
                assert_eq!(record.error, ErrorCode::FIRST_DISTANCE_REPEATS, "round {round}");
            }
            (Status::ANALYTICS_ERROR, Err(refused)) => {
                let cause_agrees = match &refused {
                    Refused::Message(message) => cause(message, record.error),
                    // The input's end may be met before or after a bad code at the very end of it.
                    Refused::Truncated => {
                        matches!(record.error, ErrorCode::NO_EOB | ErrorCode::HEADER_TOO_BIG)
                            || record.error == ErrorCode::FIRST_DISTANCE_REPEATS
                    }
                    Refused::TooLong => record.error == ErrorCode::FIRST_DISTANCE_REPEATS,
                };
                let message = match refused {
                    Refused::Message(message) => message,
                    Refused::Truncated => "truncated".to_owned(),
                    Refused::TooLong => "too long".to_owned(),
                };
                assert!(cause_agrees, "round {round}: {:?} against zlib's {message}", record.error);
            }
            (_, Err(Refused::Message(message))) if only_stricter(&message) => {}
            (status, Ok(_)) => panic!("round {round}: {status:?} against zlib's success"),
            (status, Err(Refused::Message(message))) => {
                panic!("round {round}: {status:?} against zlib's {message}")
            }
            (status, Err(_)) => panic!("round {round}: {status:?} against the end of input or output"),
        }
        seen[usize::from(record.error.0)] += 1;
    }
    assert!(accepted > rounds / 20, "{accepted} accepted");
    let kinds = seen.iter().skip(1).filter(|&&count| count > 0).count();
    assert!(kinds >= 12, "only {kinds} kinds of errors: {seen:?}");
}

fn crc32(data: &[u8]) -> u32 {
    // SAFETY: plain bytes of that length.
    unsafe { libz_sys::crc32(0, data.as_ptr(), data.len() as u32) as u32 }
}

fn cause(message: &str, error: ErrorCode) -> bool {
    match message {
        "invalid block type" => error == ErrorCode::BAD_BLOCK_TYPE,
        "invalid stored block lengths" => error == ErrorCode::STORED_LENGTH_MISMATCH,
        "too many length or distance symbols" => {
            matches!(error, ErrorCode::TOO_MANY_LITERAL_CODES | ErrorCode::TOO_MANY_DISTANCE_CODES)
        }
        "invalid bit length repeat" => matches!(
            error,
            ErrorCode::FIRST_LENGTH_REPEATS
                | ErrorCode::FIRST_DISTANCE_REPEATS
                | ErrorCode::WRONG_LITERAL_COUNT
                | ErrorCode::WRONG_DISTANCE_COUNT
        ),
        "invalid literal/length code" => {
            matches!(error, ErrorCode::BAD_LITERAL_CODE | ErrorCode::BAD_MATCH_LENGTH)
        }
        "invalid distance code" => matches!(error, ErrorCode::BAD_DISTANCE_CODE | ErrorCode::BAD_DISTANCE),
        "invalid distance too far back" => matches!(error, ErrorCode::BAD_DISTANCE | ErrorCode::BEFORE_START),
        // zlib stops at the header here; a device continues and may fail in many ways.
        message => only_stricter(message),
    }
}

/// Streams that zlib never writes: random bits behind each kind of header.
#[test]
fn random_bits_never_hang_or_write_outside() {
    let device = Device::new("generation=2");
    let mut random = Random(77);
    for _ in 0..20_000 {
        let mut stream: Vec<u8> = (0..1 + random.below(400)).map(|_| random.number() as u8).collect();
        stream[0] = stream[0] & 0xf8 | random.below(8) as u8;
        let mut out = vec![0xa5; 1000 + 64];
        let record = device.decompress(&stream, &mut out[..1000]);
        assert!(out[1000..].iter().all(|&byte| byte == 0xa5));
        assert!(matches!(record.status, Status::SUCCESS | Status::OUTPUT_OVERFLOW | Status::ANALYTICS_ERROR));
        if record.status == Status::ANALYTICS_ERROR {
            assert_ne!(record.error.meaning(), "unknown error");
        }
    }
}
