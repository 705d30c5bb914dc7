//! The configuration of a swap file, and its errors.

use std::io;
use std::path::PathBuf;

/// Configuration of a swap file.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory of the file.
    pub directory: PathBuf,
    /// Most bytes of disk; rounded down to segments of 1 MiB.
    pub size_bytes: u64,
    /// Leave out encryption, for disks that are encrypted below. Checksums stay.
    pub plain: bool,
    /// Bypass the page cache where the file system can.
    pub direct: bool,
    /// Threads for transfers, beside the callers'.
    pub threads: usize,
    /// Percent of the disk that stays free.
    pub keep_free_percent: u8,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            directory: PathBuf::from("/var/tmp"),
            size_bytes: 1 << 30,
            plain: false,
            direct: true,
            threads: 2,
            keep_free_percent: 5,
        }
    }
}

/// A swap file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory is in memory.
    #[error("{} lies in memory ({kind}): pages written there would take as much of it as they leave; name a directory on a disk", directory.display())]
    InMemory {
        /// The directory.
        directory: PathBuf,
        /// Its file system.
        kind: &'static str,
    },
    /// The file cannot be created.
    #[error("no swap file in {}: {error}", directory.display())]
    Open {
        /// The directory.
        directory: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The engine's threads cannot be started.
    #[error("the swap file's threads cannot be started: {0}")]
    Threads(io::Error),
    /// The size is less than one segment or above the maximum.
    #[error("a swap file of {} MiB: it can be 1 MiB to 2 TiB", bytes >> 20)]
    Size {
        /// The requested size.
        bytes: u64,
    },
    /// All rows of the shared table are taken by processes.
    #[error("no row is free in the table of segments")]
    NoRow,
    /// The shared memory for the table of segments cannot be created.
    #[error("no memory for the table of segments: {0}")]
    Table(io::Error),
}

/// Why objects were not written. They stay in their old places.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file has its maximum size, or the disk has only the room that must stay free.
    #[error("the swap file is full, or its disk")]
    NoSpace,
    /// Writing failed, in several places.
    #[error("writing to the swap file failed at byte {offset}")]
    Io {
        /// Offset of the last failure.
        offset: u64,
        /// The cause.
        #[source]
        error: io::Error,
    },
}

/// Why an object could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFault {
    /// The disk failed with this error number.
    Io(i32),
    /// The file ends before the object.
    Short,
    /// The bytes differ from those written.
    Damaged,
}

impl std::fmt::Display for ReadFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReadFault::Io(errno) => write!(f, "{}", io::Error::from_raw_os_error(*errno)),
            ReadFault::Short => write!(f, "the file ends before it"),
            ReadFault::Damaged => write!(f, "not what was written there"),
        }
    }
}

/// Objects could not be read. Reads never return bytes that differ from those written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("object {index} of the request, at byte {offset} of the swap file: {fault}")]
pub struct ReadError {
    /// Index of the object in the request.
    pub index: usize,
    /// Its offset in the file.
    pub offset: u64,
    /// The fault.
    pub fault: ReadFault,
}
