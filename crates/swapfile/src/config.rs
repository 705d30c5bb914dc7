//! What a swap file is opened with, and what its calls answer when they refuse.

use std::io;
use std::path::PathBuf;

/// How a swap file is opened.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it lies.
    pub directory: PathBuf,
    /// What it may take of the disk at most; rounded down to segments of 1 MiB.
    pub size_bytes: u64,
    /// Leave out encryption: for disks that are encrypted below. Checksums stay.
    pub plain: bool,
    /// Go past the page cache where the file system can.
    pub direct: bool,
    /// Threads that move its bytes beside its callers'.
    pub threads: usize,
    /// Percent of the disk that stay free.
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
    /// The directory is memory itself.
    #[error("{} lies in memory ({kind}): pages written there would take as much of it as they leave; name a directory on a disk", directory.display())]
    InMemory {
        /// The directory.
        directory: PathBuf,
        /// Its file system.
        kind: &'static str,
    },
    /// No file can be had there.
    #[error("no swap file in {}: {error}", directory.display())]
    Open {
        /// The directory.
        directory: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Its threads cannot be started.
    #[error("the swap file's threads cannot be started: {0}")]
    Threads(io::Error),
    /// A size of less than one segment, or more than there may be.
    #[error("a swap file of {bytes} bytes: it can be 1 MiB to 2 TiB")]
    Size {
        /// What was asked for.
        bytes: u64,
    },
    /// As many processes use the file as the shared table has rows.
    #[error("no row is free in the table of segments")]
    NoRow,
    /// No shared memory for the table of segments.
    #[error("no memory for the table of segments: {0}")]
    Table(io::Error),
}

/// Why objects were not written. They are where they were.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file is as large as it may be, or the disk has no room but what must stay free.
    #[error("the swap file is full, or its disk")]
    NoSpace,
    /// Writing failed, in several places.
    #[error("writing to the swap file failed at byte {offset}")]
    Io {
        /// Where it failed last.
        offset: u64,
        /// How.
        #[source]
        error: io::Error,
    },
}

/// What is wrong with an object that was to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFault {
    /// The disk answered with this error number.
    Io(i32),
    /// The file ends before it.
    Short,
    /// There are other bytes than were written.
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

/// Objects could not be read. Nothing that is not what was written is ever handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("object {index} of the request, at byte {offset} of the swap file: {fault}")]
pub struct ReadError {
    /// Which object, counted from the request's first.
    pub index: usize,
    /// Where it lies in the file.
    pub offset: u64,
    /// What is wrong.
    pub fault: ReadFault,
}
