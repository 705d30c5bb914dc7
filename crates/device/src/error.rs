//! Errors of making a device, and of its requests.

use std::io;

use swapfile::ReadFault;

/// A device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The size is not valid for a device.
    #[error(
        "a device has whole blocks of 4096 bytes, at least one and at most 1 TiB; {0} bytes are not that"
    )]
    Size(u64),
    /// Memory is too small for the tables of a device of this size.
    #[error("a device of this size needs at least {} MiB of memory", .0.div_ceil(1 << 20))]
    Ram(u64),
    /// Locked memory needs a bound.
    #[error("memory is locked in advance, so how much must be said")]
    Unbounded,
    /// Memory cannot be allocated and locked.
    #[error("{} MiB of memory cannot be made and locked: {reason}", bytes >> 20)]
    Lock {
        /// Bytes requested.
        bytes: u64,
        /// The kernel's error.
        reason: io::Error,
    },
    /// A swap file without a bound on memory would stay empty.
    #[error("without a bound on memory nothing goes to the swap file, so how much must be said")]
    SwapUnbounded,
    /// The swap file's thread or memory cannot be had.
    #[error("what writes to the swap file cannot be started: {0}")]
    SwapWriter(#[source] io::Error),
    /// The compressor's name is unknown, or the pool cannot be made.
    #[error(transparent)]
    Pool(#[from] uzswap::Error),
}

impl From<uzswap::PoolError> for Error {
    fn from(error: uzswap::PoolError) -> Self {
        Error::Pool(error.into())
    }
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// Part of the request is beyond the device's end.
    #[error("the request reaches beyond the device's end")]
    OutOfRange,
    /// No room. Nothing was changed from `at` on.
    #[error("no room for what is written at byte {at}")]
    NoSpace {
        /// First byte that was not written.
        at: u64,
    },
    /// This or an earlier write failed midway and left the block without content.
    #[error("the content of the block at byte {at} was lost by a write that failed")]
    Lost {
        /// The block.
        at: u64,
    },
    /// A block in memory does not decompress to the bytes that were written.
    #[error("the block at byte {at} is damaged")]
    Damaged {
        /// The block.
        at: u64,
    },
    /// A block cannot be read from the swap file. It stays there.
    #[error("the block at byte {at} cannot be read from byte {offset} of the swap file: {fault}")]
    Disk {
        /// The block.
        at: u64,
        /// Its offset in the file.
        offset: u64,
        /// The fault.
        fault: ReadFault,
    },
}

impl IoError {
    /// The error number of the kernel and of NBD.
    pub fn errno(&self) -> i32 {
        const EIO: i32 = 5;
        const EINVAL: i32 = 22;
        const ENOSPC: i32 = 28;
        match self {
            IoError::OutOfRange => EINVAL,
            IoError::NoSpace { .. } => ENOSPC,
            IoError::Lost { .. } | IoError::Damaged { .. } | IoError::Disk { .. } => EIO,
        }
    }
}
