//! Traces: what a program referred to, page by page.
//!
//! A recorder keeps so few pages of a program in memory that nearly every change from one page to
//! another is a fault. What it sees is the program's string of references, without those to pages
//! among the last few thousand used; for memories much larger than that, it stands for the whole
//! string.

mod file;
mod raw;

pub use file::{Meta, Reader, TraceError, Writer};
pub use raw::RAW_BYTES;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A page was read.
    Read,
    /// A page was written.
    Write,
    /// Pages were given back: madvise(), munmap(), or moved away by mremap().
    Discard,
}

/// One entry of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// What happened.
    pub kind: Kind,
    /// The process, by the number it has itself.
    pub process: u32,
    /// The thread; 0 when it is not known.
    pub thread: u32,
    /// The first page, as a number: its address by 4096.
    pub page: u64,
    /// Pages: 1 unless discarded.
    pub pages: u64,
    /// Nanoseconds, from anywhere.
    pub time_ns: u64,
}
