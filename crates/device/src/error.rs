//! What can go wrong: with a device that is made, and with its requests.

use std::io;

use swapfile::ReadFault;

/// A device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The size is none of a device.
    #[error(
        "a device has whole blocks of 4096 bytes, at least one and at most 1 TiB; {0} bytes are not that"
    )]
    Size(u64),
    /// There is too little memory for the tables of a device of this size.
    #[error("a device of this size needs at least {0} bytes of memory")]
    Ram(u64),
    /// Locked memory has no bound.
    #[error("memory is locked in advance, so how much must be said")]
    Unbounded,
    /// Memory cannot be made and locked.
    #[error("{bytes} bytes of memory cannot be made and locked: {reason}")]
    Lock {
        /// How much was asked for.
        bytes: u64,
        /// What the kernel said.
        reason: io::Error,
    },
    /// A swap file that nothing would ever go to.
    #[error("without a bound on memory nothing goes to the swap file, so how much must be said")]
    SwapUnbounded,
    /// No thread, or no memory, for the swap file.
    #[error("what writes to the swap file cannot be started: {0}")]
    SwapWriter(#[source] io::Error),
    /// No compressor of that name, or no pool.
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
    /// There is no room; nothing was changed from `at` on.
    #[error("no room for what is written at byte {at}")]
    NoSpace {
        /// Where the part that was not done starts.
        at: u64,
    },
    /// An earlier write failed in the middle and left the block without content, or this one did.
    #[error("the content of the block at byte {at} was lost by a write that failed")]
    Lost {
        /// The block.
        at: u64,
    },
    /// A block in memory does not decompress to what was written.
    #[error("the block at byte {at} is damaged")]
    Damaged {
        /// The block.
        at: u64,
    },
    /// A block is in the swap file and cannot be read from there. It stays there.
    #[error("the block at byte {at} cannot be read from byte {offset} of the swap file: {fault}")]
    Disk {
        /// The block.
        at: u64,
        /// Where it lies in the file.
        offset: u64,
        /// What is wrong.
        fault: ReadFault,
    },
}

impl IoError {
    /// The error as the kernel and NBD number it.
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
