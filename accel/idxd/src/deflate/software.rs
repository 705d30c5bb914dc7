//! The device's work without a device.

use std::ptr;

use crate::aecs::{CompressAecs, Histogram, FIXED};
use crate::emulated::codec::Codec;
use crate::emulated::validate::Rules;
use crate::{assumptions, Descriptor, Record};

/// Deflate's largest window.
const WINDOW_MAX: usize = 32 * 1024;

/// Compresses as a device does and inflates more: streams with any window. For drivers, when a
/// device cannot or will not. About 250 KiB, all allocated by [`Software::new`].
pub struct Software {
    codec: Codec,
    histogram: Box<Histogram>,
    aecs: Box<CompressAecs>,
}

impl Default for Software {
    fn default() -> Self {
        Self::new()
    }
}

/// Most bytes of a transfer; longer input is cut, and then damaged or too long.
const TRANSFER_MAX: usize = assumptions::MAX_TRANSFER_OF_QUEUE as usize;

/// The rules of an unlimited device.
const RULES: Rules =
    Rules { generation: 2, max_transfer: assumptions::MAX_TRANSFER_OF_QUEUE, window: WINDOW_MAX };

impl Software {
    /// Allocates all memory.
    pub fn new() -> Self {
        Software {
            codec: Codec::new(),
            histogram: Box::new(Histogram::ZERO),
            aecs: Box::new(CompressAecs::ZERO),
        }
    }

    fn run(&mut self, job: &Descriptor) -> Record {
        // SAFETY: the callers below take slices for all buffers and hold them until this returns,
        // when the job is done.
        unsafe { self.codec.execute(job, RULES) }
    }

    /// Compresses into one block with fixed or dynamic codes. Returns the bytes written, or `None`
    /// if `out` is too short. At most 2 MiB at a time.
    pub fn compress(&mut self, data: &[u8], out: &mut [u8], is_dynamic: bool) -> Option<usize> {
        let source = (data.as_ptr(), u32::try_from(data.len()).ok()?);
        let destination = (out.as_mut_ptr(), u32::try_from(out.len()).unwrap_or(u32::MAX));
        let record = if !is_dynamic {
            self.run(&Descriptor::compress_fixed(ptr::null(), source, destination, &FIXED))
        } else if data.len() <= assumptions::ONE_PASS_INPUT_MAX as usize {
            self.run(&Descriptor::compress_dynamic(ptr::null(), source, destination))
        } else {
            let histogram: *mut Histogram = &mut *self.histogram;
            let counted = self.run(&Descriptor::compress_statistics(ptr::null(), source, histogram));
            if !counted.is_success() {
                return None;
            }
            *self.aecs = CompressAecs::ZERO;
            self.aecs.set_dynamic(&self.histogram);
            let aecs: *const CompressAecs = &*self.aecs;
            self.run(&Descriptor::compress_fixed(ptr::null(), source, destination, aecs))
        };
        record.is_success().then_some(record.output_size as usize)
    }

    /// Inflates one whole stream, of any number of blocks and any window. Returns the record of a
    /// device with a window of 32 KiB.
    pub fn inflate(&mut self, data: &[u8], out: &mut [u8]) -> Record {
        let source = (data.as_ptr(), data.len().min(TRANSFER_MAX) as u32);
        let destination = (out.as_mut_ptr(), out.len().min(TRANSFER_MAX) as u32);
        self.run(&Descriptor::decompress(ptr::null(), source, destination).of_many_blocks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_modes_come_back_at_every_length() {
        let mut software = Software::new();
        let text: Vec<u8> = (0..70_000u32).map(|at| (at / 7 * at % 251) as u8 & 0x3f).collect();
        for len in [1, 2, 100, 4096, 4097, 65_536] {
            for is_dynamic in [false, true] {
                let mut packed = vec![0; len + 600];
                let size = software.compress(&text[..len], &mut packed, is_dynamic).unwrap();
                let mut plain = vec![0; len];
                let record = software.inflate(&packed[..size], &mut plain);
                assert!(record.is_success() && plain == text[..len], "{len} {is_dynamic}: {record:?}");
                assert_eq!(software.compress(&text[..len], &mut packed[..size - 1], is_dynamic), None);
            }
        }
    }

    #[test]
    fn distances_beyond_the_device_are_followed() {
        // A literal block of 8 KiB, stored, then a fixed block with one match of length 3 at
        // distance 8192.
        let plain: Vec<u8> = (0..8192u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut stream = vec![0x00];
        stream.extend_from_slice(&8192u16.to_le_bytes());
        stream.extend_from_slice(&(!8192u16).to_le_bytes());
        stream.extend_from_slice(&plain);
        // Final, fixed; length symbol 257; distance symbol 25, which begins at 6145 and has 11
        // extra bits (up to 8192); end of block.
        let (mut bits, mut count) = (0u64, 0);
        let mut put = |value: u64, len: u32, reversed: bool| {
            let value = if reversed { value.reverse_bits() >> (64 - len) } else { value };
            bits |= value << count;
            count += len;
        };
        put(1, 1, false);
        put(1, 2, false);
        put(1, 7, true);
        put(25, 5, true);
        put(8192 - 6145, 11, false);
        put(0, 7, true);
        stream.extend_from_slice(&bits.to_le_bytes()[..count.div_ceil(8) as usize]);
        let mut out = vec![0; 8195];
        let record = Software::new().inflate(&stream, &mut out);
        assert!(record.is_success(), "{record:?}");
        assert!(out[..8192] == plain && out[8192..] == plain[..3]);
    }
}
