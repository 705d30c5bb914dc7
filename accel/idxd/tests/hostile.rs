//! Descriptors with any fields over any state and any data: the device writes a record, reads and
//! writes only the named memory, and keeps working.
//!
//! All buffers end where their mapping does, so that an access behind them is a fault; bytes before
//! them are checked. `IDXD_FUZZ_ROUNDS` sets the number of descriptors (default 30,000, a few
//! seconds).

mod common;

use std::ptr;

use common::*;
use idxd::aecs::{CompressAecs, COMPRESS_SIZE, FIXED};
use idxd::{compress_flags, decompress_flags, flags, Descriptor, Opcode, Status};

const ROOM: usize = 8 * 4096;
const UNTOUCHED: u8 = 0xa5;

struct Guarded(*mut u8);

impl Guarded {
    fn new() -> Self {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, whose last page is then made inaccessible.
        let at = unsafe {
            let at = libc::mmap(ptr::null_mut(), ROOM + 4096, rights, kind, -1, 0);
            assert!(at != libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(ROOM), 4096, libc::PROT_NONE), 0);
            at
        };
        Guarded(at.cast())
    }

    fn all(&self) -> &[u8] {
        // SAFETY: mapped for ever, and written by jobs alone, which are over when tests look.
        unsafe { std::slice::from_raw_parts(self.0, ROOM) }
    }

    /// Puts `bytes` at the end, and the mark before them. Returns the start of the bytes.
    fn put(&mut self, bytes: &[u8]) -> *mut u8 {
        // SAFETY: as above; no job is under way.
        let all = unsafe { std::slice::from_raw_parts_mut(self.0, ROOM) };
        let (front, back) = all.split_at_mut(ROOM - bytes.len());
        front.fill(UNTOUCHED);
        back.copy_from_slice(bytes);
        back.as_mut_ptr()
    }

    fn back(&self, len: usize) -> &[u8] {
        let (front, back) = self.all().split_at(ROOM - len);
        assert!(front.iter().all(|&byte| byte == UNTOUCHED), "wrote before a buffer");
        back
    }
}

fn bytes_of(aecs: &CompressAecs) -> Vec<u8> {
    let at: *const CompressAecs = aecs;
    // SAFETY: plain numbers without padding, of that size.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), COMPRESS_SIZE) }.to_vec()
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random, within: usize) {
    for _ in 0..random.below(4) {
        let range = if random.below(2) == 0 { within } else { bytes.len() };
        let at = random.below(range.min(bytes.len()).max(1));
        if let Some(byte) = bytes.get_mut(at) {
            *byte = if random.below(2) == 0 { *byte ^ 1 << random.below(8) } else { random.number() as u8 };
        }
    }
    if random.below(4) == 0 {
        bytes.truncate(random.below(bytes.len() + 1).max(1));
    }
}

/// Some of the allowed bits, sometimes any.
fn bits(random: &mut Random, allowed: u32) -> u32 {
    match random.below(20) {
        0 => random.number() as u32,
        _ => random.number() as u32 & random.number() as u32 & allowed,
    }
}

#[test]
fn any_descriptor_is_answered_within_its_buffers() {
    let rounds = std::env::var("IDXD_FUZZ_ROUNDS").map_or(30_000, |text| text.parse().unwrap());
    let devices = [1, 2].map(|generation| Device::new(&format!("generation={generation}")));
    let mut random = Random(0x4057);
    let pages = pages();
    let mut inputs: Vec<Vec<u8>> = pages.iter().map(|page| page.to_vec()).collect();
    for page in pages.iter().take(12) {
        inputs.push(zlib_deflate(&page[..], 6, libz_sys::Z_DEFAULT_STRATEGY, 8));
        inputs.push(zlib_deflate(&page[..500], 6, libz_sys::Z_FIXED, 8));
        inputs.push(zlib_deflate(&page[..900], 0, libz_sys::Z_DEFAULT_STRATEGY, 8));
    }
    // Codes, and codes that devices have made; damaged before use.
    let mut states = vec![bytes_of(&FIXED), vec![0; COMPRESS_SIZE]];
    let [mut source, mut destination, mut state] = [Guarded::new(), Guarded::new(), Guarded::new()];
    let (mut refusals, mut seen) = (0, [false; 256]);
    let mut successes = [0; 2];
    for round in 0..rounds {
        let device = &devices[random.below(2)];
        let opcode = match random.below(20) {
            0 => Opcode(random.number() as u8),
            1 => Opcode::NOOP,
            at if at < 10 => Opcode::COMPRESS,
            _ => Opcode::DECOMPRESS,
        };
        let is_compress = opcode == Opcode::COMPRESS;
        let mut input = inputs[random.below(inputs.len())].clone();
        damage(&mut input, &mut random, 40);
        let room = match random.below(4) {
            0 => 1 + random.below(300),
            1 => 1280 + random.below(64),
            _ => 1 + random.below(9000),
        };

        let mut job = Descriptor::noop(ptr::null());
        job.control = (job.flags() | bits(&mut random, flags::CACHE_CONTROL)) & 0xff_ffff;
        job.control |= u32::from(opcode.0) << 24;
        if is_compress {
            use compress_flags::{ONE_PASS, STATISTICS, TWO_PASS, WITH_CODES, WRITE_TABLES};
            job.codec_flags = [WITH_CODES, ONE_PASS, TWO_PASS, STATISTICS][random.below(4)];
            if job.codec_flags == TWO_PASS {
                job.control |= flags::WRITE_AECS;
                job.codec_flags_2 = WRITE_TABLES;
            }
            job.control |= if random.below(4) > 0 { flags::READ_AECS } else { 0 };
        } else if opcode == Opcode::DECOMPRESS {
            let options = decompress_flags::SELECT_FINAL_EOB | decompress_flags::SUPPRESS_OUTPUT;
            job.codec_flags = decompress_flags::WHOLE_STREAM | bits(&mut random, u32::from(options)) as u16;
        }
        if random.below(30) == 0 {
            job.control |= 1 << random.below(24);
            job.codec_flags ^= 1 << random.below(16);
            job.codec_flags_2 = random.number() as u32;
            job.elements = random.below(3) as u32;
            job.pasid = (random.number() & random.number()) as u32;
        }

        if opcode != Opcode::NOOP || random.below(2) == 0 {
            (job.source, job.source_size) = (source.put(&input) as u64, input.len() as u32);
            job.destination = destination.put(&vec![UNTOUCHED; room]) as u64;
            job.destination_size = room as u32;
        }
        let uses_state = job.flags() & (flags::READ_AECS | flags::WRITE_AECS) != 0;
        let mut images = Vec::new();
        if uses_state || random.below(40) == 0 {
            let size = if random.below(8) == 0 { 32 * (1 + random.below(250)) } else { COMPRESS_SIZE };
            for _ in 0..2 {
                let mut image = states[random.below(states.len())].clone();
                if random.below(2) == 0 {
                    damage(&mut image, &mut random, 500);
                }
                image.resize(size, 0);
                images.extend(image);
            }
            job.source_2 = state.put(&images) as u64;
            job.source_2_size = size as u32;
        }

        let record = device.run(job);
        assert_ne!(record.meaning(), "unknown error", "round {round}: {record:?}");
        assert!(
            job.source_size == 0 || source.back(input.len()) == input,
            "round {round}: the source was written"
        );
        if job.destination_size > 0 {
            let written = destination.back(room);
            let is_success = matches!(record.status, Status::SUCCESS | Status::OUTPUT_OVERFLOW);
            assert!(!is_success || record.output_size as usize <= room, "round {round}: {record:?}");
            let refused = !is_success && record.status != Status::ANALYTICS_ERROR;
            assert!(!refused || written.iter().all(|&byte| byte == UNTOUCHED), "round {round}: {record:?}");
        }
        if !images.is_empty() {
            let after = state.back(images.len());
            let size = images.len() / 2;
            assert!(after[..size] == images[..size], "round {round}: wrote what it read");
            let writes = job.flags() & flags::WRITE_AECS != 0;
            assert!(writes || after == images, "round {round}: wrote unasked");
            if writes && record.status == Status::SUCCESS && is_compress {
                let new = after[size..][..COMPRESS_SIZE].to_vec();
                match states.len() {
                    200 => states[1 + random.below(199)] = new,
                    _ => states.push(new),
                }
            }
        }
        if record.status == Status::SUCCESS {
            successes[usize::from(!is_compress)] += 1;
        } else {
            refusals += 1;
        }
        seen[usize::from(record.status.code().0)] = true;
        if round % 16 == 0 {
            let (page, mut stream) = (pages[round / 16 % pages.len()], [0; 8192]);
            let record = device.compress_fixed(&page[..], &mut stream);
            assert!(record.is_success(), "round {round}: {record:?}");
            let plain = libdeflate_inflate(&stream[..record.output_size as usize], 4096);
            assert!(plain.is_some_and(|plain| plain == page), "round {round}");
        }
    }
    let enough = successes.into_iter().chain([refusals]).all(|count| count > rounds / 50);
    assert!(enough, "{successes:?} successes, {refusals} refusals");
    let kinds = seen.iter().filter(|&&seen| seen).count();
    assert!(kinds >= 6, "only {kinds} kinds of outcomes");
}
