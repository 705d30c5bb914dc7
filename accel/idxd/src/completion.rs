//! The completion record: 64 bytes that a device writes, and the meaning of every code in them.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};

/// Names the codes of a byte; each meaning in words is also its documentation.
macro_rules! codes {
    ($type:ident, $unknown:literal: $($(#[$more:meta])* $name:ident = $value:literal, $words:literal;)+) => {
        impl $type {
            $(
                #[doc = concat!($words, ".")]
                $(#[$more])*
                pub const $name: Self = Self($value);
            )+

            fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)+
                    _ => $unknown,
                }
            }
        }
    };
}

/// How a job ended: the record's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u8);

/// Set in the status byte when the access that faulted was a write.
pub const FAULT_WAS_WRITE: u8 = 0x80;
/// The status code proper within the status byte.
pub const STATUS_MASK: u8 = 0x3f;

codes! { Status, "unknown status":
    IN_PROGRESS = 0x00, "in progress";
    SUCCESS = 0x01, "success";
    /// Page fault, not blocked on. The job's output does not count; touch the address and submit
    /// again.
    PAGE_FAULT = 0x03, "page fault";
    PAGE_FAULT_INVALID = 0x04, "page fault answered as invalid";
    ANALYTICS_ERROR = 0x0a, "codec error";
    /// Output overflow of the recoverable kind (decompress).
    OUTPUT_OVERFLOW = 0x0b, "output does not fit";
    UNSUPPORTED_OPCODE = 0x10, "operation not supported";
    INVALID_FLAGS = 0x11, "invalid operation flags";
    NONZERO_RESERVED = 0x12, "reserved field not zero";
    INVALID_SIZE = 0x13, "invalid size";
    OVERLAPPING_BUFFERS = 0x16, "buffers overlap";
    BAD_INTERRUPT_HANDLE = 0x19, "bad interrupt handle";
    COMPLETION_TRANSLATION = 0x1a, "completion record address has no translation";
    COMPLETION_MISALIGNED = 0x1b, "completion record not aligned to 64";
    MISALIGNED_ADDRESS = 0x1c, "AECS address or size not a multiple of 32";
    PRIVILEGE = 0x1d, "privilege error";
    TRAFFIC_CLASS = 0x1e, "traffic class configuration";
    READBACK_FAULT = 0x1f, "page fault on readback";
    HARDWARE_ERROR_1 = 0x20, "hardware error";
    HARDWARE_ERROR_DRAIN = 0x21, "hardware error on drain readback";
    TRANSLATION_FAILURE = 0x22, "address translation failed";
    PAGE_REQUEST_TIMEOUT = 0x23, "page request timed out";
    WATCHDOG = 0x24, "watchdog expired";
    INVALID_CODEC_FLAGS = 0x30, "invalid compression, decompression or CRC flags";
    INVALID_FILTER_FLAGS = 0x31, "invalid filter flags";
    INVALID_INPUT_SIZE = 0x32, "invalid input size";
    INVALID_ELEMENTS = 0x33, "invalid number of elements";
    INVALID_WIDTH = 0x34, "invalid source width";
    INVALID_INVERTED_OUTPUT = 0x35, "invalid inverted output";
}

impl Status {
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

    /// Whether the device failed rather than the job: a reason to try another device.
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
        self.code().words()
    }
}

/// Why the codec failed: the record's second byte, valid with [`Status::ANALYTICS_ERROR`]. QPL
/// reports these as 200 plus the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorCode(pub u8);

codes! { ErrorCode, "unknown error":
    NONE = 0, "no error";
    HEADER_TOO_BIG = 1, "block header longer than the input";
    BAD_CODE_LENGTH_CODE = 2, "code-length code not assigned";
    FIRST_LENGTH_REPEATS = 3, "first literal code length repeats nothing";
    FIRST_DISTANCE_REPEATS = 4, "first distance code length repeats nothing";
    NO_LITERAL_CODES = 5, "no literal codes";
    WRONG_LITERAL_COUNT = 6, "wrong number of literal code lengths";
    WRONG_DISTANCE_COUNT = 7, "wrong number of distance code lengths";
    CODE_LENGTHS_OVERSUBSCRIBED = 8, "code-length codes over-subscribed";
    LITERALS_OVERSUBSCRIBED = 9, "literal codes over-subscribed";
    DISTANCES_OVERSUBSCRIBED = 10, "distance codes over-subscribed";
    BAD_LITERAL_CODE = 11, "literal code not assigned";
    BAD_DISTANCE_CODE = 12, "distance code not assigned";
    BAD_BLOCK_TYPE = 13, "block type 3";
    STORED_LENGTH_MISMATCH = 14, "stored block length mismatch";
    NO_EOB = 15, "input ends without end of block";
    BAD_MATCH_LENGTH = 16, "bad match length";
    BAD_DISTANCE = 17, "distance beyond the 4 KiB history";
    BEFORE_START = 18, "match begins before the data";
    NO_PROGRESS = 19, "no forward progress";
    PRLE_FORMAT = 20, "PRLE format";
    OUTPUT_WIDTH = 21, "output width too small";
    INVALID_AECS = 22, "invalid AECS";
    SOURCE_TOO_SMALL = 23, "source 1 too small";
    SOURCE_2_TOO_SMALL = 24, "source 2 too small";
    /// Output overflow of the kind that cannot be continued (compress).
    OUTPUT_OVERFLOW = 25, "compressed data does not fit";
    MINI_BLOCK_DISTANCE = 26, "match distance crosses a mini-block";
    MINI_BLOCK_LENGTH = 27, "match length crosses a mini-block";
    MINI_BLOCK_SIZE = 28, "mini-block size";
    ZERO_VERIFY = 29, "zero-decompress verification";
    MISSING_CODE = 30, "symbol without a code";
    PRLE_WIDTH = 31, "PRLE width above 32";
    TOO_FEW_ELEMENTS = 32, "too few elements";
    ZERO_HEADER_TRUNCATED = 34, "zero-decompress header truncated";
    TOO_MANY_LITERAL_CODES = 35, "more than 286 literal codes";
    TOO_MANY_DISTANCE_CODES = 36, "more than 30 distance codes";
}

impl ErrorCode {
    /// The code in words.
    pub fn meaning(self) -> &'static str {
        self.words()
    }
}

/// The content of a finished record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// How the job ended. Compare [`Status::code`] unless the write bit matters.
    pub status: Status,
    /// The codec's error, with [`Status::ANALYTICS_ERROR`].
    pub error: ErrorCode,
    /// Bytes of input that were processed.
    pub bytes_completed: u32,
    /// The address that faulted.
    pub fault_address: u64,
    /// Flags that were refused, with [`Status::INVALID_FLAGS`].
    pub invalid_flags: u32,
    /// Bytes of output.
    pub output_size: u32,
    /// XOR of the uncompressed data's 16-bit words.
    pub xor: u16,
    /// CRC of the uncompressed data.
    pub crc: u32,
}

impl Record {
    /// A record with this status and zeroes.
    pub const fn of(status: Status) -> Self {
        Record {
            status,
            error: ErrorCode::NONE,
            bytes_completed: 0,
            fault_address: 0,
            invalid_flags: 0,
            output_size: 0,
            xor: 0,
            crc: 0,
        }
    }

    /// Whether the job succeeded.
    pub fn is_success(&self) -> bool {
        self.status.code() == Status::SUCCESS
    }

    /// The outcome in words, with the error code's if present.
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
    unused_2: [AtomicU8; 2],
    bytes_completed: AtomicU32,
    fault_address: AtomicU64,
    invalid_flags: AtomicU32,
    unused_20: AtomicU32,
    output_size: AtomicU32,
    unused_28: [AtomicU8; 2],
    xor: AtomicU16,
    crc: AtomicU32,
    unused_36: [AtomicU32; 7],
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Completion>() == 64 && align_of::<Completion>() == 64);
    assert!(offset_of!(Completion, error) == 1);
    assert!(offset_of!(Completion, bytes_completed) == 4);
    assert!(offset_of!(Completion, fault_address) == 8);
    assert!(offset_of!(Completion, invalid_flags) == 16);
    assert!(offset_of!(Completion, output_size) == 24);
    assert!(offset_of!(Completion, xor) == 30);
    assert!(offset_of!(Completion, crc) == 32);
};

impl Default for Completion {
    fn default() -> Self {
        Self::new()
    }
}

impl Completion {
    /// A record in progress.
    pub const fn new() -> Self {
        // SAFETY: atomic integers alone, valid as zero bytes.
        unsafe { std::mem::zeroed() }
    }

    /// Resets the record for a submission: in progress, no error.
    #[inline]
    pub fn reset(&self) {
        self.error.store(0, Ordering::Relaxed);
        self.status.store(0, Ordering::Relaxed);
    }

    /// Whether the device has written the record.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.status.load(Ordering::Acquire) != 0
    }

    /// The finished record, or `None` while the job is in progress.
    #[inline]
    pub fn poll(&self) -> Option<Record> {
        let status = Status(self.status.load(Ordering::Acquire));
        (status != Status::IN_PROGRESS).then(|| Record {
            status,
            error: ErrorCode(self.error.load(Ordering::Relaxed)),
            bytes_completed: self.bytes_completed.load(Ordering::Relaxed),
            fault_address: self.fault_address.load(Ordering::Relaxed),
            invalid_flags: self.invalid_flags.load(Ordering::Relaxed),
            output_size: self.output_size.load(Ordering::Relaxed),
            xor: self.xor.load(Ordering::Relaxed),
            crc: self.crc.load(Ordering::Relaxed),
        })
    }

    /// Writes the record as a device does: the status last.
    #[inline]
    pub fn complete(&self, record: &Record) {
        assert!(record.status != Status::IN_PROGRESS);
        self.error.store(record.error.0, Ordering::Relaxed);
        self.bytes_completed.store(record.bytes_completed, Ordering::Relaxed);
        self.fault_address.store(record.fault_address, Ordering::Relaxed);
        self.invalid_flags.store(record.invalid_flags, Ordering::Relaxed);
        self.output_size.store(record.output_size, Ordering::Relaxed);
        self.xor.store(record.xor, Ordering::Relaxed);
        self.crc.store(record.crc, Ordering::Relaxed);
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
            bytes_completed: 2,
            fault_address: 3,
            invalid_flags: 4,
            output_size: 5,
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
