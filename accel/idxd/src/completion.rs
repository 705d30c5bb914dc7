//! The completion record: 64 bytes that a device writes, and the meaning of every code in them.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};

/// How a job ended: the record's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u8);

/// Set in the status byte when the access that faulted was a write.
pub const FAULT_WAS_WRITE: u8 = 0x80;
/// The status code proper within the status byte.
pub const STATUS_MASK: u8 = 0x3f;

impl Status {
    /// Not finished.
    pub const IN_PROGRESS: Self = Self(0x00);
    /// Done.
    pub const SUCCESS: Self = Self(0x01);
    /// Page fault, not blocked on. Nothing of the job counts; touch the address and submit again.
    pub const PAGE_FAULT: Self = Self(0x03);
    /// Page fault that the operating system answered with "invalid".
    pub const PAGE_FAULT_INVALID: Self = Self(0x04);
    /// The codec failed; the error code says how.
    pub const ANALYTICS_ERROR: Self = Self(0x0a);
    /// More output than room, of the recoverable kind (decompress).
    pub const OUTPUT_OVERFLOW: Self = Self(0x0b);
    /// The device has no such operation.
    pub const UNSUPPORTED_OPCODE: Self = Self(0x10);
    /// Operation flags that do not exist or do not go together.
    pub const INVALID_FLAGS: Self = Self(0x11);
    /// A reserved field is not zero.
    pub const NONZERO_RESERVED: Self = Self(0x12);
    /// A size is zero, too large or does not fit its purpose.
    pub const INVALID_SIZE: Self = Self(0x13);
    /// Buffers overlap.
    pub const OVERLAPPING_BUFFERS: Self = Self(0x16);
    /// Interrupt handle unknown.
    pub const BAD_INTERRUPT_HANDLE: Self = Self(0x19);
    /// The completion record's address cannot be translated.
    pub const COMPLETION_TRANSLATION: Self = Self(0x1a);
    /// The completion record is not aligned to 64 bytes.
    pub const COMPLETION_MISALIGNED: Self = Self(0x1b);
    /// AECS address or size is not a multiple of 32.
    pub const MISALIGNED_ADDRESS: Self = Self(0x1c);
    /// Privilege.
    pub const PRIVILEGE: Self = Self(0x1d);
    /// Traffic class wrongly configured.
    pub const TRAFFIC_CLASS: Self = Self(0x1e);
    /// Page fault on the address to read back.
    pub const READBACK_FAULT: Self = Self(0x1f);
    /// Hardware error.
    pub const HARDWARE_ERROR_1: Self = Self(0x20);
    /// Hardware error while reading back for a drain.
    pub const HARDWARE_ERROR_DRAIN: Self = Self(0x21);
    /// An address cannot be translated.
    pub const TRANSLATION_FAILURE: Self = Self(0x22);
    /// The page request was not answered in time.
    pub const PAGE_REQUEST_TIMEOUT: Self = Self(0x23);
    /// The watchdog ended the job.
    pub const WATCHDOG: Self = Self(0x24);
    /// Compression, decompression or CRC flags that do not exist or do not go together.
    pub const INVALID_CODEC_FLAGS: Self = Self(0x30);
    /// Filter flags invalid.
    pub const INVALID_FILTER_FLAGS: Self = Self(0x31);
    /// Input size invalid.
    pub const INVALID_INPUT_SIZE: Self = Self(0x32);
    /// Number of elements invalid.
    pub const INVALID_ELEMENTS: Self = Self(0x33);
    /// Width of source 1 invalid.
    pub const INVALID_WIDTH: Self = Self(0x34);
    /// Inverted output not possible here.
    pub const INVALID_INVERTED_OUTPUT: Self = Self(0x35);

    /// The code without the fault-was-a-write bit.
    pub fn code(self) -> Self {
        Self(self.0 & STATUS_MASK)
    }

    /// Whether the faulting access was a write. Only meaningful with a page fault.
    pub fn fault_was_write(self) -> bool {
        self.0 & FAULT_WAS_WRITE != 0
    }

    /// Whether the job may succeed when the reported address is touched and the job is submitted
    /// again.
    pub fn is_page_fault(self) -> bool {
        matches!(self.code(), Self::PAGE_FAULT | Self::PAGE_FAULT_INVALID)
    }

    /// Whether the device is at fault rather than the job: reason to try another device.
    pub fn is_hardware_error(self) -> bool {
        matches!(
            self.code(),
            Self::HARDWARE_ERROR_1
                | Self::HARDWARE_ERROR_DRAIN
                | Self::TRANSLATION_FAILURE
                | Self::PAGE_REQUEST_TIMEOUT
                | Self::WATCHDOG
        )
    }

    /// The code in words.
    pub fn meaning(self) -> &'static str {
        match self.code() {
            Self::IN_PROGRESS => "in progress",
            Self::SUCCESS => "success",
            Self::PAGE_FAULT => "page fault",
            Self::PAGE_FAULT_INVALID => "page fault answered as invalid",
            Self::ANALYTICS_ERROR => "codec error",
            Self::OUTPUT_OVERFLOW => "output does not fit",
            Self::UNSUPPORTED_OPCODE => "operation not supported",
            Self::INVALID_FLAGS => "invalid operation flags",
            Self::NONZERO_RESERVED => "reserved field not zero",
            Self::INVALID_SIZE => "invalid size",
            Self::OVERLAPPING_BUFFERS => "buffers overlap",
            Self::BAD_INTERRUPT_HANDLE => "bad interrupt handle",
            Self::COMPLETION_TRANSLATION => "completion record address has no translation",
            Self::COMPLETION_MISALIGNED => "completion record not aligned to 64",
            Self::MISALIGNED_ADDRESS => "AECS address or size not a multiple of 32",
            Self::PRIVILEGE => "privilege error",
            Self::TRAFFIC_CLASS => "traffic class configuration",
            Self::READBACK_FAULT => "page fault on readback",
            Self::HARDWARE_ERROR_1 => "hardware error",
            Self::HARDWARE_ERROR_DRAIN => "hardware error on drain readback",
            Self::TRANSLATION_FAILURE => "address translation failed",
            Self::PAGE_REQUEST_TIMEOUT => "page request timed out",
            Self::WATCHDOG => "watchdog expired",
            Self::INVALID_CODEC_FLAGS => "invalid compression, decompression or CRC flags",
            Self::INVALID_FILTER_FLAGS => "invalid filter flags",
            Self::INVALID_INPUT_SIZE => "invalid input size",
            Self::INVALID_ELEMENTS => "invalid number of elements",
            Self::INVALID_WIDTH => "invalid source width",
            Self::INVALID_INVERTED_OUTPUT => "invalid inverted output",
            _ => "unknown status",
        }
    }
}

/// Why the codec failed: the record's second byte, valid with [`Status::ANALYTICS_ERROR`]. QPL
/// reports these as 200 plus the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorCode(pub u8);

impl ErrorCode {
    /// No error.
    pub const NONE: Self = Self(0);
    /// The block header does not fit into what is left of the input.
    pub const HEADER_TOO_BIG: Self = Self(1);
    /// A code-length code that is not assigned.
    pub const BAD_CODE_LENGTH_CODE: Self = Self(2);
    /// The first literal/length code length is "repeat the previous".
    pub const FIRST_LENGTH_REPEATS: Self = Self(3);
    /// The first distance code length is "repeat the previous".
    pub const FIRST_DISTANCE_REPEATS: Self = Self(4);
    /// No literal/length code has a length.
    pub const NO_LITERAL_CODES: Self = Self(5);
    /// Code lengths run past the number of literal/length codes.
    pub const WRONG_LITERAL_COUNT: Self = Self(6);
    /// Code lengths run past the number of distance codes.
    pub const WRONG_DISTANCE_COUNT: Self = Self(7);
    /// The code-length codes are over-subscribed.
    pub const CODE_LENGTHS_OVERSUBSCRIBED: Self = Self(8);
    /// The literal/length codes are over-subscribed.
    pub const LITERALS_OVERSUBSCRIBED: Self = Self(9);
    /// The distance codes are over-subscribed.
    pub const DISTANCES_OVERSUBSCRIBED: Self = Self(10);
    /// A literal/length code that is not assigned.
    pub const BAD_LITERAL_CODE: Self = Self(11);
    /// A distance code that is not assigned.
    pub const BAD_DISTANCE_CODE: Self = Self(12);
    /// Block type 3.
    pub const BAD_BLOCK_TYPE: Self = Self(13);
    /// A stored block's length and its complement disagree.
    pub const STORED_LENGTH_MISMATCH: Self = Self(14);
    /// The input ends without an end-of-block symbol.
    pub const NO_EOB: Self = Self(15);
    /// A match length of 0 or above 258.
    pub const BAD_MATCH_LENGTH: Self = Self(16);
    /// A distance of 0 or beyond the 4 KiB history.
    pub const BAD_DISTANCE: Self = Self(17);
    /// A match that begins before the start of the data.
    pub const BEFORE_START: Self = Self(18);
    /// No forward progress.
    pub const NO_PROGRESS: Self = Self(19);
    /// PRLE format error.
    pub const PRLE_FORMAT: Self = Self(20);
    /// Output width too small.
    pub const OUTPUT_WIDTH: Self = Self(21);
    /// The AECS holds values that cannot be.
    pub const INVALID_AECS: Self = Self(22);
    /// Source 1 too small.
    pub const SOURCE_TOO_SMALL: Self = Self(23);
    /// Source 2 too small.
    pub const SOURCE_2_TOO_SMALL: Self = Self(24);
    /// More output than room, of the kind that cannot be continued: compress.
    pub const OUTPUT_OVERFLOW: Self = Self(25);
    /// A match crosses a mini-block by its distance.
    pub const MINI_BLOCK_DISTANCE: Self = Self(26);
    /// A match crosses a mini-block by its length.
    pub const MINI_BLOCK_LENGTH: Self = Self(27);
    /// Mini-block size wrong.
    pub const MINI_BLOCK_SIZE: Self = Self(28);
    /// Zero-decompress verification failed.
    pub const ZERO_VERIFY: Self = Self(29);
    /// The compressor needed a symbol whose code is absent.
    pub const MISSING_CODE: Self = Self(30);
    /// PRLE width above 32.
    pub const PRLE_WIDTH: Self = Self(31);
    /// Fewer elements than stated.
    pub const TOO_FEW_ELEMENTS: Self = Self(32);
    /// Zero-decompress header truncated.
    pub const ZERO_HEADER_TRUNCATED: Self = Self(34);
    /// More than 286 literal/length codes.
    pub const TOO_MANY_LITERAL_CODES: Self = Self(35);
    /// More than 30 distance codes.
    pub const TOO_MANY_DISTANCE_CODES: Self = Self(36);

    /// The code in words.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::NONE => "no error",
            Self::HEADER_TOO_BIG => "block header longer than the input",
            Self::BAD_CODE_LENGTH_CODE => "code-length code not assigned",
            Self::FIRST_LENGTH_REPEATS => "first literal code length repeats nothing",
            Self::FIRST_DISTANCE_REPEATS => "first distance code length repeats nothing",
            Self::NO_LITERAL_CODES => "no literal codes",
            Self::WRONG_LITERAL_COUNT => "wrong number of literal code lengths",
            Self::WRONG_DISTANCE_COUNT => "wrong number of distance code lengths",
            Self::CODE_LENGTHS_OVERSUBSCRIBED => "code-length codes over-subscribed",
            Self::LITERALS_OVERSUBSCRIBED => "literal codes over-subscribed",
            Self::DISTANCES_OVERSUBSCRIBED => "distance codes over-subscribed",
            Self::BAD_LITERAL_CODE => "literal code not assigned",
            Self::BAD_DISTANCE_CODE => "distance code not assigned",
            Self::BAD_BLOCK_TYPE => "block type 3",
            Self::STORED_LENGTH_MISMATCH => "stored block length mismatch",
            Self::NO_EOB => "input ends without end of block",
            Self::BAD_MATCH_LENGTH => "bad match length",
            Self::BAD_DISTANCE => "distance beyond the 4 KiB history",
            Self::BEFORE_START => "match begins before the data",
            Self::NO_PROGRESS => "no forward progress",
            Self::PRLE_FORMAT => "PRLE format",
            Self::OUTPUT_WIDTH => "output width too small",
            Self::INVALID_AECS => "invalid AECS",
            Self::SOURCE_TOO_SMALL => "source 1 too small",
            Self::SOURCE_2_TOO_SMALL => "source 2 too small",
            Self::OUTPUT_OVERFLOW => "compressed data does not fit",
            Self::MINI_BLOCK_DISTANCE => "match distance crosses a mini-block",
            Self::MINI_BLOCK_LENGTH => "match length crosses a mini-block",
            Self::MINI_BLOCK_SIZE => "mini-block size",
            Self::ZERO_VERIFY => "zero-decompress verification",
            Self::MISSING_CODE => "symbol without a code",
            Self::PRLE_WIDTH => "PRLE width above 32",
            Self::TOO_FEW_ELEMENTS => "too few elements",
            Self::ZERO_HEADER_TRUNCATED => "zero-decompress header truncated",
            Self::TOO_MANY_LITERAL_CODES => "more than 286 literal codes",
            Self::TOO_MANY_DISTANCE_CODES => "more than 30 distance codes",
            _ => "unknown error",
        }
    }
}

/// What a finished record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// How the job ended. Compare [`Status::code`] unless the write bit matters.
    pub status: Status,
    /// Why, with [`Status::ANALYTICS_ERROR`].
    pub error: ErrorCode,
    /// Details of a fault, as QPL names them; zero from most devices.
    pub fault_info: u8,
    /// Bytes of input that were processed.
    pub bytes_completed: u32,
    /// The address that faulted.
    pub fault_address: u64,
    /// Flags that were refused, with [`Status::INVALID_FLAGS`].
    pub invalid_flags: u32,
    /// Bytes of output.
    pub output_size: u32,
    /// Valid bits in the last byte of output; 0 means all 8.
    pub output_bits: u8,
    /// XOR of the uncompressed data's 16-bit words.
    pub xor: u16,
    /// CRC of the uncompressed data.
    pub crc: u32,
}

impl Record {
    /// A record with this status and nothing else.
    pub const fn of(status: Status) -> Self {
        Record {
            status,
            error: ErrorCode::NONE,
            fault_info: 0,
            bytes_completed: 0,
            fault_address: 0,
            invalid_flags: 0,
            output_size: 0,
            output_bits: 0,
            xor: 0,
            crc: 0,
        }
    }

    /// Whether the job succeeded.
    pub fn is_success(&self) -> bool {
        self.status.code() == Status::SUCCESS
    }

    /// The outcome in words, with the error code's when there is one.
    pub fn meaning(&self) -> &'static str {
        match self.status.code() {
            Status::ANALYTICS_ERROR => self.error.meaning(),
            _ => self.status.meaning(),
        }
    }
}

/// The record in memory: written by a device, polled by the submitter.
///
/// Every field is an atomic, so that both sides may hold it by reference. The status is stored last
/// (release) and read first (acquire); the other fields are plain relaxed accesses, which cost
/// nothing over ordinary ones.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Completion {
    status: AtomicU8,
    error: AtomicU8,
    fault_info: AtomicU8,
    reserved_3: AtomicU8,
    bytes_completed: AtomicU32,
    fault_address: AtomicU64,
    invalid_flags: AtomicU32,
    reserved_20: AtomicU32,
    output_size: AtomicU32,
    output_bits: AtomicU8,
    reserved_29: AtomicU8,
    xor: AtomicU16,
    crc: AtomicU32,
    min_or_first: AtomicU32,
    max_or_last: AtomicU32,
    sum: AtomicU32,
    reserved_48: [AtomicU64; 2],
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Completion>() == 64 && align_of::<Completion>() == 64);
    assert!(offset_of!(Completion, error) == 1);
    assert!(offset_of!(Completion, fault_info) == 2);
    assert!(offset_of!(Completion, bytes_completed) == 4);
    assert!(offset_of!(Completion, fault_address) == 8);
    assert!(offset_of!(Completion, invalid_flags) == 16);
    assert!(offset_of!(Completion, output_size) == 24);
    assert!(offset_of!(Completion, output_bits) == 28);
    assert!(offset_of!(Completion, xor) == 30);
    assert!(offset_of!(Completion, crc) == 32);
    assert!(offset_of!(Completion, min_or_first) == 36);
    assert!(offset_of!(Completion, max_or_last) == 40);
    assert!(offset_of!(Completion, sum) == 44);
    assert!(offset_of!(Completion, reserved_48) == 48);
};

impl Default for Completion {
    fn default() -> Self {
        Self::new()
    }
}

impl Completion {
    /// A record in progress.
    pub const fn new() -> Self {
        Completion {
            status: AtomicU8::new(0),
            error: AtomicU8::new(0),
            fault_info: AtomicU8::new(0),
            reserved_3: AtomicU8::new(0),
            bytes_completed: AtomicU32::new(0),
            fault_address: AtomicU64::new(0),
            invalid_flags: AtomicU32::new(0),
            reserved_20: AtomicU32::new(0),
            output_size: AtomicU32::new(0),
            output_bits: AtomicU8::new(0),
            reserved_29: AtomicU8::new(0),
            xor: AtomicU16::new(0),
            crc: AtomicU32::new(0),
            min_or_first: AtomicU32::new(0),
            max_or_last: AtomicU32::new(0),
            sum: AtomicU32::new(0),
            reserved_48: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Makes the record ready for a submission: in progress, and without an error from the last
    /// job.
    #[inline]
    pub fn reset(&self) {
        self.error.store(0, Ordering::Relaxed);
        self.status.store(0, Ordering::Relaxed);
    }

    /// Whether the device has answered.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.status.load(Ordering::Acquire) != 0
    }

    /// What the device answered, or `None` while the job is in progress.
    #[inline]
    pub fn poll(&self) -> Option<Record> {
        let status = Status(self.status.load(Ordering::Acquire));
        (status != Status::IN_PROGRESS).then(|| Record {
            status,
            error: ErrorCode(self.error.load(Ordering::Relaxed)),
            fault_info: self.fault_info.load(Ordering::Relaxed),
            bytes_completed: self.bytes_completed.load(Ordering::Relaxed),
            fault_address: self.fault_address.load(Ordering::Relaxed),
            invalid_flags: self.invalid_flags.load(Ordering::Relaxed),
            output_size: self.output_size.load(Ordering::Relaxed),
            output_bits: self.output_bits.load(Ordering::Relaxed),
            xor: self.xor.load(Ordering::Relaxed),
            crc: self.crc.load(Ordering::Relaxed),
        })
    }

    /// Writes the record as a device does: the status last.
    #[inline]
    pub fn complete(&self, record: &Record) {
        assert!(record.status != Status::IN_PROGRESS);
        self.error.store(record.error.0, Ordering::Relaxed);
        self.fault_info.store(record.fault_info, Ordering::Relaxed);
        self.bytes_completed.store(record.bytes_completed, Ordering::Relaxed);
        self.fault_address.store(record.fault_address, Ordering::Relaxed);
        self.invalid_flags.store(record.invalid_flags, Ordering::Relaxed);
        self.output_size.store(record.output_size, Ordering::Relaxed);
        self.output_bits.store(record.output_bits, Ordering::Relaxed);
        self.xor.store(record.xor, Ordering::Relaxed);
        self.crc.store(record.crc, Ordering::Relaxed);
        self.min_or_first.store(0, Ordering::Relaxed);
        self.max_or_last.store(0, Ordering::Relaxed);
        self.sum.store(0, Ordering::Relaxed);
        self.status.store(record.status.0, Ordering::Release);
    }

    /// The address for instructions that watch a cache line (UMONITOR, MONITORX).
    pub fn status_address(&self) -> *const u8 {
        self.status.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_back_whole() {
        let completion = Completion::new();
        assert_eq!(completion.poll(), None);
        let record = Record {
            status: Status(Status::PAGE_FAULT.0 | FAULT_WAS_WRITE),
            error: ErrorCode::NO_EOB,
            fault_info: 1,
            bytes_completed: 2,
            fault_address: 3,
            invalid_flags: 4,
            output_size: 5,
            output_bits: 6,
            xor: 7,
            crc: 8,
        };
        completion.complete(&record);
        assert_eq!(completion.poll(), Some(record));
        assert!(record.status.is_page_fault() && record.status.fault_was_write() && !record.is_success());
        completion.reset();
        assert!(!completion.is_done());
    }

    #[test]
    fn every_named_code_has_its_own_meaning() {
        let statuses: std::collections::BTreeSet<_> = (0..64).map(|code| Status(code).meaning()).collect();
        // 29 codes and "unknown".
        assert_eq!(statuses.len(), 30);
        let errors: std::collections::BTreeSet<_> = (0..=255).map(|code| ErrorCode(code).meaning()).collect();
        // 35 codes (33 does not exist), "no error" and "unknown".
        assert_eq!(errors.len(), 37);
        assert_eq!(ErrorCode(33).meaning(), "unknown error");
    }

    #[test]
    fn the_first_bytes_are_where_devices_write_them() {
        let completion = Completion::new();
        completion.complete(&Record { crc: 0xdead_beef, output_size: 77, ..Record::of(Status::SUCCESS) });
        // SAFETY: 64 bytes of atomics, which are not written concurrently.
        let image: [u8; 64] = unsafe { std::mem::transmute(completion) };
        assert_eq!(
            (image[0], image[24], image[32..36].to_vec()),
            (1, 77, 0xdead_beefu32.to_ne_bytes().to_vec())
        );
    }
}
