//! Shared by the tests: a device, independent codecs, and pages.
#![allow(dead_code, missing_docs)]

use std::ptr;

use idxd::aecs::{CompressAecs, Histogram, FIXED};
use idxd::emulated::{EmulateSpec, EmulatedPortal, Machine, QueueId};
use idxd::{Completion, Descriptor, Portal, Record, Submission};
use libz_sys as z;
pub use testkit::Random;

pub struct Device {
    pub portal: EmulatedPortal,
    pub machine: Machine,
    pub completion: Box<Completion>,
}

impl Device {
    pub fn new(spec: &str) -> Self {
        let spec: EmulateSpec = spec.parse().unwrap();
        let machine = Machine::new(&spec).unwrap();
        let portal = machine.open(QueueId { device: 0, queue: 0 }).unwrap();
        Device { portal, machine, completion: Box::default() }
    }

    /// Submits `job` and polls until it is done.
    pub fn run(&self, mut job: Descriptor) -> Record {
        self.completion.reset();
        job.completion = &*self.completion as *const Completion as u64;
        // SAFETY: the tests' jobs name live buffers, and wait here until they are done.
        assert_eq!(unsafe { self.portal.submit(&job) }, Submission::Accepted);
        for _ in 0..100_000_000u64 {
            if let Some(record) = self.completion.poll() {
                return record;
            }
            self.portal.progress();
        }
        panic!("no completion");
    }

    pub fn compress_fixed(&self, data: &[u8], out: &mut [u8]) -> Record {
        self.run(Descriptor::compress_fixed(ptr::null(), source(data), destination(out), &FIXED))
    }

    /// One descriptor on generation 2.
    pub fn compress_one_pass(&self, data: &[u8], out: &mut [u8]) -> Record {
        self.run(Descriptor::compress_dynamic(ptr::null(), source(data), destination(out)))
    }

    /// Statistics, tables by software, compress: generation 1.
    pub fn compress_by_statistics(&self, data: &[u8], out: &mut [u8]) -> Record {
        let mut histogram = Histogram::ZERO;
        let first = self.run(Descriptor::compress_statistics(ptr::null(), source(data), &mut histogram));
        assert!(first.is_success(), "{first:?}");
        let mut aecs = CompressAecs::ZERO;
        aecs.set_dynamic(&histogram);
        let second = self.run(Descriptor::compress_fixed(ptr::null(), source(data), destination(out), &aecs));
        if second.is_success() {
            assert_eq!((first.crc, first.xor), (second.crc, second.xor));
        }
        second
    }

    /// Header pass and compress: generation 2, any length.
    pub fn compress_two_pass(&self, data: &[u8], out: &mut [u8]) -> Record {
        let mut aecs = [CompressAecs::ZERO, CompressAecs::ZERO];
        let first = self.run(Descriptor::compress_two_pass_header(ptr::null(), source(data), &mut aecs));
        assert!(first.is_success(), "{first:?}");
        // The header pass left its checksums as seeds.
        (aecs[1].crc, aecs[1].xor) = (0, 0);
        self.run(Descriptor::compress_fixed(ptr::null(), source(data), destination(out), &aecs[1]))
    }

    pub fn decompress(&self, data: &[u8], out: &mut [u8]) -> Record {
        self.run(Descriptor::decompress(ptr::null(), source(data), destination(out)).of_many_blocks())
    }
}

pub fn source(data: &[u8]) -> (*const u8, u32) {
    (data.as_ptr(), data.len() as u32)
}

pub fn destination(data: &mut [u8]) -> (*mut u8, u32) {
    (data.as_mut_ptr(), data.len() as u32)
}

const STREAM_SIZE: i32 = size_of::<z::z_stream>() as i32;

/// Raw deflate by zlib with a 4 KiB window.
pub fn zlib_deflate(data: &[u8], level: i32, strategy: i32, memory: i32) -> Vec<u8> {
    let mut out = vec![0; data.len() * 2 + 1000];
    // SAFETY: the documented calls in their order; the stream has both whole buffers.
    unsafe {
        let mut stream = std::mem::MaybeUninit::<z::z_stream>::zeroed();
        let (at, method, window) = (stream.as_mut_ptr(), z::Z_DEFLATED, -12);
        let ready =
            z::deflateInit2_(at, level, method, window, memory, strategy, z::zlibVersion(), STREAM_SIZE);
        assert_eq!(ready, z::Z_OK);
        // zlib has put its allocator in the place of the null pointers. The stream must not move.
        let stream = stream.assume_init_mut();
        (stream.next_in, stream.avail_in) = (data.as_ptr().cast_mut(), data.len() as u32);
        (stream.next_out, stream.avail_out) = (out.as_mut_ptr(), out.len() as u32);
        assert_eq!(z::deflate(stream, z::Z_FINISH), z::Z_STREAM_END);
        out.truncate(stream.total_out as usize);
        z::deflateEnd(stream);
    }
    out
}

pub enum Refused {
    Message(String),
    Truncated,
    TooLong,
}

/// Inflates with zlib and a window of exactly 4 KiB: output is fetched byte by byte, so that zlib
/// uses its window, whose limits it checks, instead of the output buffer.
pub fn zlib_inflate(data: &[u8], most: usize) -> Result<Vec<u8>, Refused> {
    let mut out = Vec::new();
    // SAFETY: the documented calls in their order; the stream has the whole input and one byte of
    // output at a time.
    unsafe {
        let mut stream = std::mem::MaybeUninit::<z::z_stream>::zeroed();
        assert_eq!(z::inflateInit2_(stream.as_mut_ptr(), -12, z::zlibVersion(), STREAM_SIZE), z::Z_OK);
        // As above.
        let stream = stream.assume_init_mut();
        (stream.next_in, stream.avail_in) = (data.as_ptr().cast_mut(), data.len() as u32);
        let result = loop {
            let mut byte = 0u8;
            (stream.next_out, stream.avail_out) = (&mut byte, 1);
            let code = z::inflate(stream, z::Z_NO_FLUSH);
            if stream.avail_out == 0 {
                out.push(byte);
                if out.len() > most {
                    break Err(Refused::TooLong);
                }
            }
            match code {
                z::Z_STREAM_END => break Ok(()),
                z::Z_OK if stream.avail_out == 0 || stream.avail_in > 0 => {}
                z::Z_OK | z::Z_BUF_ERROR => break Err(Refused::Truncated),
                z::Z_DATA_ERROR => {
                    let message = std::ffi::CStr::from_ptr(stream.msg).to_string_lossy().into_owned();
                    break Err(Refused::Message(message));
                }
                other => panic!("inflate: {other}"),
            }
        };
        z::inflateEnd(stream);
        result.map(|()| out)
    }
}

pub fn libdeflate_inflate(data: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; most];
    let mut len = 0;
    // SAFETY: one decompressor, used once and freed; both buffers are whole.
    let result = unsafe {
        let decompressor = libdeflate_sys::libdeflate_alloc_decompressor();
        let result = libdeflate_sys::libdeflate_deflate_decompress(
            decompressor,
            data.as_ptr().cast(),
            data.len(),
            out.as_mut_ptr().cast(),
            out.len(),
            &mut len,
        );
        libdeflate_sys::libdeflate_free_decompressor(decompressor);
        result
    };
    (result == libdeflate_sys::libdeflate_result_LIBDEFLATE_SUCCESS).then(|| {
        out.truncate(len);
        out
    })
}

/// Pages like those of programs: zero, text, pointers, small integers, records, noise, and
/// mixtures.
pub fn pages() -> Vec<[u8; 4096]> {
    let mut random = Random(42);
    let words: Vec<String> = (0..200)
        .map(|_| (0..2 + random.below(9)).map(|_| (b'a' + random.below(26) as u8) as char).collect())
        .collect();
    let mut pages = vec![[0; 4096], [0xff; 4096]];
    for kind in 0..62 {
        let mut page = Vec::new();
        while page.len() < 4096 {
            match kind % 7 {
                0 => {
                    // Rank-frequency as in text: small indices more often.
                    let rank = random.below(200) * random.below(200) / 200;
                    page.extend_from_slice(words[rank].as_bytes());
                    page.push(b' ');
                }
                1 => page.extend_from_slice(&(0x7f12_3456_0000 + (random.number() & 0x3_fff8)).to_le_bytes()),
                2 => page.extend_from_slice(&(random.below(1000) as u32).to_le_bytes()),
                3 => {
                    page.extend_from_slice(&(0x5581_0040_2000u64 + (random.number() & 0xff0)).to_le_bytes());
                    page.extend_from_slice(&(random.below(3) as u64).to_le_bytes());
                    page.extend_from_slice(&(random.number() as u16).to_le_bytes());
                    page.extend_from_slice(&[0; 14]);
                }
                4 => page.push(random.number() as u8),
                5 => page.extend(std::iter::repeat_n(random.below(4) as u8, 1 + random.below(300))),
                _ => {
                    let from = random.below(page.len().max(1));
                    let len = (3 + random.below(60)).min(page.len() - from.min(page.len()));
                    let piece = page[from.min(page.len())..][..len].to_vec();
                    page.extend_from_slice(&piece);
                    page.push(random.number() as u8);
                }
            }
        }
        page.truncate(4096);
        pages.push(page.try_into().unwrap());
    }
    pages
}
