//! Assumptions about real devices that no source proves, in one place.
//!
//! The architecture specification was not available; everything here is reasoned from software that
//! drives the hardware. The emulated device reads these constants, so that a correction is one
//! edit. Drivers should not depend on any of them.

use crate::{ErrorCode, Status};

/// A dynamic header whose first distance length is "repeat the previous" fails (error 4), although
/// RFC 1951 lets runs cross from literal to distance lengths. Only the error's name suggests this.
pub const FIRST_DISTANCE_MAY_NOT_REPEAT: bool = true;

/// Incomplete codes are accepted, and fail only where an unassigned code occurs: error codes exist
/// for over-subscribed codes, none for incomplete ones.
pub const INCOMPLETE_CODES_ARE_ACCEPTED: bool = true;

/// A fixed block's literal symbols 286 and 287 stand for no length, so "bad match length (0 or
/// above 258)".
pub const MEANINGLESS_LENGTH: ErrorCode = ErrorCode::BAD_MATCH_LENGTH;

/// A fixed block's distance symbols 30 and 31, by the same reasoning.
pub const MEANINGLESS_DISTANCE: ErrorCode = ErrorCode::BAD_DISTANCE;

/// The input ends inside a dynamic block's header.
pub const TRUNCATED_HEADER: ErrorCode = ErrorCode::HEADER_TOO_BIG;

/// Compress without an AECS to read codes from, header generation or statistics mode.
pub const COMPRESS_WITHOUT_CODES: Status = Status::INVALID_FLAGS;

/// An AECS that is too short for its purpose. (Error code 24 exists too, but belongs to filters.)
pub const AECS_TOO_SHORT: Status = Status::INVALID_SIZE;

/// Source 2 is named by a job that neither reads nor writes it.
pub const UNUSED_SOURCE_2: Status = Status::NONZERO_RESERVED;

/// One-pass header generation with more input than a page.
pub const ONE_PASS_TOO_LONG: Status = Status::INVALID_SIZE;

/// Most input that one-pass header generation takes.
pub const ONE_PASS_INPUT_MAX: u32 = 4096;

/// Source and destination of compress and decompress must not overlap at all.
pub const OVERLAP_IS_REFUSED: bool = true;

/// `output size` after a compress job that overflowed: drivers only log it.
pub const OUTPUT_SIZE_AFTER_COMPRESS_OVERFLOW: u32 = 0;

/// `output size` of a decompression whose output is suppressed. Its destination size then bounds
/// nothing: QPL passes a dummy of one byte.
pub const OUTPUT_SIZE_WHEN_SUPPRESSED: u32 = 0;

/// Address zero in a field that is used: a fault for which the operating system has no page.
pub const NULL_ADDRESS: Status = Status::PAGE_FAULT_INVALID;

/// A completion record cannot be written if its address is misaligned, or missing although
/// requested: the device latches a software error instead, which
/// [`crate::Status::COMPLETION_MISALIGNED`] names.
pub const BAD_COMPLETION_ADDRESS_IS_A_SOFTWARE_ERROR: bool = true;

/// A descriptor posted to a dedicated queue that is full is lost, and a software error is latched.
pub const OVERFULL_QUEUE_LOSES_DESCRIPTORS: bool = true;

/// An engine that takes a descriptor frees its queue entry; the job's completion does not matter.
pub const ENTRY_IS_FREED_AT_DISPATCH: bool = true;

/// A disabled queue takes nothing more and finishes its descriptors.
pub const DISABLE_DRAINS: bool = true;

/// The block-on-fault flag is ignored, not refused, on a queue that does not allow it.
pub const BLOCK_ON_FAULT_IS_IGNORED_WHERE_NOT_ALLOWED: bool = true;

/// How long the operating system takes to serve a page request: 1 to 10 us for most, 9 us on
/// average, measured by others during migrations of virtual machines.
pub const PAGE_REQUEST_NS: u64 = 9_000;

/// Largest transfer of a device, and default of its queues.
pub const MAX_TRANSFER: u32 = 1 << 31;
/// Default largest transfer of a queue.
pub const MAX_TRANSFER_OF_QUEUE: u32 = 2 << 20;

/// Groups of an IAA device: the figure of a published DSA listing.
pub const MAX_GROUPS: u32 = 4;
