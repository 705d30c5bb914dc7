//! The 64 bytes that order one job, and the flags inside them.
//!
//! Layout and names of flags follow Linux's UAPI header `linux/idxd.h` and Intel's QPL. All fields
//! are little-endian, as are the machines these devices are in; the emulated device on other
//! machines uses the same in-memory values.
//!
//! ```text
//!  0  pasid 19:0, privileged 31      32  source size
//!  4  flags 23:0, opcode 31:24       36  interrupt handle   38  codec flags
//!  8  completion record address      40  source 2 address (AECS)
//! 16  source address                 48  destination size   52  source 2 size
//! 24  destination address            56  codec flags 2      60  elements (reserved for compress)
//! ```

use crate::{aecs, Completion};

/// The operation of a descriptor: the codes that [`Descriptor`] builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opcode(pub u8);

impl Opcode {
    /// Does nothing but write its completion record.
    pub const NOOP: Self = Self(0x00);
    /// Completes when all descriptors submitted to the queue before it have.
    pub const DRAIN: Self = Self(0x02);
    /// Inflates a Deflate stream.
    pub const DECOMPRESS: Self = Self(0x42);
    /// Deflates.
    pub const COMPRESS: Self = Self(0x43);
}

/// Operation flags: those of bits 23:0 of the dword at offset 4 that descriptors here have, or that
/// devices are asked about.
pub mod flags {
    /// Waits for earlier descriptors of the same batch.
    pub const FENCE: u32 = 1 << 0;
    /// Waits for the operating system at a page fault instead of completing with one. The queue
    /// must allow it.
    pub const BLOCK_ON_FAULT: u32 = 1 << 1;
    /// The completion record address is valid (CRAV).
    pub const COMPLETION_VALID: u32 = 1 << 2;
    /// Writes a completion record also after success (RCR).
    pub const REQUEST_COMPLETION: u32 = 1 << 3;
    /// Writes the destination into the CPU's cache.
    pub const CACHE_CONTROL: u32 = 1 << 8;
    /// Source 2 is an AECS.
    pub const READ_AECS: u32 = 1 << 16;
    /// Source 2 is two AECS images one after the other; the job writes the second.
    pub const WRITE_AECS: u32 = 1 << 18;
}

/// Compression flags: the u16 at offset 38 when the opcode is compress. Bits, and the four
/// combinations that descriptors here have.
pub mod compress_flags {
    /// Writes symbol counts to the destination instead of compressed data.
    pub const STATISTICS: u16 = 1 << 0;
    /// Emits the last, partly filled byte.
    pub const FLUSH_OUTPUT: u16 = 1 << 1;
    /// Appends the end-of-block symbol.
    pub const END_EOB: u16 = 1 << 2;
    /// One pass for the caller, two inside: the device makes tables and the header of a final block
    /// itself (generation 2).
    pub const HEADER_ONE_PASS_FINAL: u16 = 3 << 12;
    /// First of two passes: tables, and a header of a final block (generation 2).
    pub const HEADER_TWO_PASS_FINAL: u16 = 7 << 12;
    /// Bits without a known meaning.
    pub const RESERVED: u16 = 1 << 9 | 1 << 15;

    /// Compresses with the codes of an AECS.
    pub const WITH_CODES: u16 = FLUSH_OUTPUT | END_EOB;
    /// Compresses with codes that the device makes.
    pub const ONE_PASS: u16 = WITH_CODES | HEADER_ONE_PASS_FINAL;
    /// Makes an AECS for a second job.
    pub const TWO_PASS: u16 = END_EOB | HEADER_TWO_PASS_FINAL;

    /// "Compression 2 flags", the dword at offset 56: writes the Huffman tables into the AECS that
    /// is written.
    pub const WRITE_TABLES: u32 = 1 << 1;
}

/// Decompression flags: the u16 at offset 38 when the opcode is decompress.
///
/// The kernel's header swaps [`STOP_ON_EOB`](decompress_flags::STOP_ON_EOB) and
/// [`CHECK_EOB`](decompress_flags::CHECK_EOB); both drivers set the two together. Here they are
/// named as in QPL, which uses them one by one.
pub mod decompress_flags {
    /// Decompresses; clear, the input passes unchanged.
    pub const ENABLE: u16 = 1 << 0;
    /// Emits the last, partly filled unit of output.
    pub const FLUSH_OUTPUT: u16 = 1 << 1;
    /// Stops at an end-of-block symbol.
    pub const STOP_ON_EOB: u16 = 1 << 2;
    /// Fails when the input does not end with an end-of-block symbol.
    pub const CHECK_EOB: u16 = 1 << 3;
    /// The two flags above look at the end-of-block symbol of the final block only.
    pub const SELECT_FINAL_EOB: u16 = 1 << 4;
    /// Writes no output; checksums are still taken.
    pub const SUPPRESS_OUTPUT: u16 = 1 << 9;
    /// Bits without a known meaning.
    pub const RESERVED: u16 = 1 << 13 | 1 << 15;

    /// Decompresses one whole stream.
    pub const WHOLE_STREAM: u16 = ENABLE | FLUSH_OUTPUT | STOP_ON_EOB | CHECK_EOB;
}

/// One job. See the module's text for the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Descriptor {
    /// PASID (19:0) and privilege (31): zero from user space, filled by CPU or kernel.
    pub pasid: u32,
    /// Flags (23:0) and opcode (31:24).
    pub control: u32,
    /// Address of the [`Completion`], aligned to 64.
    pub completion: u64,
    /// Address of the input.
    pub source: u64,
    /// Address of the output.
    pub destination: u64,
    /// Bytes of input.
    pub source_size: u32,
    /// Interrupt handle: zero, as programs get no interrupts.
    pub interrupt_handle: u16,
    /// [`compress_flags`] or [`decompress_flags`].
    pub codec_flags: u16,
    /// Address of the AECS, aligned to 32, or zero.
    pub source_2: u64,
    /// Most bytes of output.
    pub destination_size: u32,
    /// Bytes of AECS, a multiple of 32.
    pub source_2_size: u32,
    /// Compress: [`compress_flags::WRITE_TABLES`]. Decompress: filter flags, zero.
    pub codec_flags_2: u32,
    /// Number of input elements for a filter: zero.
    pub elements: u32,
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Descriptor>() == 64 && align_of::<Descriptor>() == 64);
    assert!(offset_of!(Descriptor, control) == 4);
    assert!(offset_of!(Descriptor, completion) == 8);
    assert!(offset_of!(Descriptor, source) == 16);
    assert!(offset_of!(Descriptor, destination) == 24);
    assert!(offset_of!(Descriptor, source_size) == 32);
    assert!(offset_of!(Descriptor, interrupt_handle) == 36);
    assert!(offset_of!(Descriptor, codec_flags) == 38);
    assert!(offset_of!(Descriptor, source_2) == 40);
    assert!(offset_of!(Descriptor, destination_size) == 48);
    assert!(offset_of!(Descriptor, source_2_size) == 52);
    assert!(offset_of!(Descriptor, codec_flags_2) == 56);
    assert!(offset_of!(Descriptor, elements) == 60);
};

/// Flags of every built job, which always wants a completion record.
const ANSWERED: u32 = flags::COMPLETION_VALID | flags::REQUEST_COMPLETION;

impl Descriptor {
    fn new(opcode: Opcode, flags: u32, completion: *const Completion) -> Self {
        debug_assert!(flags < 1 << 24);
        Descriptor {
            pasid: 0,
            control: flags | u32::from(opcode.0) << 24,
            completion: completion as u64,
            source: 0,
            destination: 0,
            source_size: 0,
            interrupt_handle: 0,
            codec_flags: 0,
            source_2: 0,
            destination_size: 0,
            source_2_size: 0,
            codec_flags_2: 0,
            elements: 0,
        }
    }

    /// Only completes: probes whether a queue works.
    pub fn noop(completion: *const Completion) -> Self {
        Self::new(Opcode::NOOP, ANSWERED, completion)
    }

    /// Completes after all earlier submissions to the same queue.
    pub fn drain(completion: *const Completion) -> Self {
        Self::new(Opcode::DRAIN, ANSWERED, completion)
    }

    fn job(
        opcode: Opcode,
        completion: *const Completion,
        source: (*const u8, u32),
        destination: (*mut u8, u32),
    ) -> Self {
        Descriptor {
            source: source.0 as u64,
            source_size: source.1,
            destination: destination.0 as u64,
            destination_size: destination.1,
            ..Self::new(opcode, ANSWERED | flags::CACHE_CONTROL, completion)
        }
    }

    /// Compresses with the codes of `aecs`, as the kernel driver does in fixed mode with
    /// [`aecs::FIXED`]: one final block, end-of-block appended, padded to a byte.
    pub fn compress_fixed(
        completion: *const Completion,
        source: (*const u8, u32),
        destination: (*mut u8, u32),
        aecs: *const aecs::CompressAecs,
    ) -> Self {
        let mut job = Self::job(Opcode::COMPRESS, completion, source, destination);
        job.control |= flags::READ_AECS;
        job.codec_flags = compress_flags::WITH_CODES;
        job.source_2 = aecs as u64;
        job.source_2_size = aecs::COMPRESS_SIZE as u32;
        job
    }

    /// Compresses with tables the device makes itself, in one descriptor. Generation 2 with header
    /// generation; input of up to one page.
    pub fn compress_dynamic(
        completion: *const Completion,
        source: (*const u8, u32),
        destination: (*mut u8, u32),
    ) -> Self {
        let codec_flags = compress_flags::ONE_PASS;
        Descriptor { codec_flags, ..Self::job(Opcode::COMPRESS, completion, source, destination) }
    }

    /// First of two descriptors on generation 1: counts symbols into `histogram`. Software then
    /// makes the tables ([`aecs::CompressAecs::set_dynamic`]), writes them into an AECS and
    /// compresses with [`Descriptor::compress_fixed`].
    pub fn compress_statistics(
        completion: *const Completion,
        source: (*const u8, u32),
        histogram: *mut aecs::Histogram,
    ) -> Self {
        let destination = (histogram.cast(), aecs::HISTOGRAM_SIZE as u32);
        let codec_flags = compress_flags::STATISTICS;
        Descriptor { codec_flags, ..Self::job(Opcode::COMPRESS, completion, source, destination) }
    }

    /// First of two descriptors on generation 2, for inputs over one page: makes tables and header
    /// into the second of two adjacent AECS images, which the second descriptor,
    /// [`Descriptor::compress_fixed`], uses.
    pub fn compress_two_pass_header(
        completion: *const Completion,
        source: (*const u8, u32),
        aecs: *mut [aecs::CompressAecs; 2],
    ) -> Self {
        let mut job = Self::job(Opcode::COMPRESS, completion, source, (std::ptr::null_mut(), 0));
        job.control |= flags::READ_AECS | flags::WRITE_AECS;
        job.codec_flags = compress_flags::TWO_PASS;
        job.codec_flags_2 = compress_flags::WRITE_TABLES;
        job.source_2 = aecs as u64;
        job.source_2_size = aecs::COMPRESS_SIZE as u32;
        job
    }

    /// Decompresses one whole Deflate stream, of either mode.
    pub fn decompress(
        completion: *const Completion,
        source: (*const u8, u32),
        destination: (*mut u8, u32),
    ) -> Self {
        let codec_flags = decompress_flags::WHOLE_STREAM;
        Descriptor { codec_flags, ..Self::job(Opcode::DECOMPRESS, completion, source, destination) }
    }

    /// Decompresses without output: the record's CRC, compared with that of the compress record,
    /// tells whether a compressed page is intact. `destination` is not written. Rely on status and
    /// CRC only.
    pub fn verify(
        completion: *const Completion,
        source: (*const u8, u32),
        destination: (*mut u8, u32),
    ) -> Self {
        let mut job = Self::decompress(completion, source, destination);
        job.codec_flags |= decompress_flags::SUPPRESS_OUTPUT;
        job
    }

    /// The same decompression, of a stream that may have several blocks: only the final block's end
    /// stops it. Pages from this crate's compressors are one block; streams from elsewhere may not
    /// be.
    pub fn of_many_blocks(mut self) -> Self {
        debug_assert_eq!(self.opcode(), Opcode::DECOMPRESS);
        self.codec_flags |= decompress_flags::SELECT_FINAL_EOB;
        self
    }

    /// The same job with [`flags::BLOCK_ON_FAULT`] set: only on queues that allow it.
    pub fn blocking_on_fault(mut self) -> Self {
        self.control |= flags::BLOCK_ON_FAULT;
        self
    }

    /// The operation.
    pub fn opcode(&self) -> Opcode {
        Opcode((self.control >> 24) as u8)
    }

    /// The operation flags.
    pub fn flags(&self) -> u32 {
        self.control & 0xff_ffff
    }

    /// The 64 bytes as they cross the portal.
    pub fn to_bytes(&self) -> [u8; 64] {
        // SAFETY: 64 plain bytes without padding, as asserted above.
        unsafe { std::mem::transmute(*self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The control words of the kernel driver's own descriptors.
    #[test]
    fn builders_give_the_kernel_drivers_descriptors() {
        let record = Completion::new();
        let input = [0u8; 64];
        let mut output = [0u8; 64];
        let source = (input.as_ptr(), 64);
        let destination = (output.as_mut_ptr(), 64);

        let fixed = Descriptor::compress_fixed(&record, source, destination, &aecs::FIXED);
        assert_eq!((fixed.control, fixed.codec_flags, fixed.source_2_size), (0x4301_010c, 0x0006, 1568));
        let dynamic = Descriptor::compress_dynamic(&record, source, destination);
        assert_eq!((dynamic.control, dynamic.codec_flags, dynamic.source_2), (0x4300_010c, 0x3006, 0));
        let decompress = Descriptor::decompress(&record, source, destination);
        assert_eq!((decompress.control, decompress.codec_flags), (0x4200_010c, 0x000f));
        let verify = Descriptor::verify(&record, source, destination);
        assert_eq!((verify.control, verify.codec_flags), (0x4200_010c, 0x020f));
        assert_eq!(verify.blocking_on_fault().flags(), 0x10e);
        assert_eq!(Descriptor::noop(&record).opcode(), Opcode::NOOP);
    }
}
