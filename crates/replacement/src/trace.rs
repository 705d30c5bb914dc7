//! Traces: the pages that a program refers to.
//!
//! A recorder keeps so small a part of a program in memory that nearly every change from one page
//! to another is a fault. The trace omits only references to the last few thousand pages used. For
//! memories much larger than that, it stands for the whole reference string.
//!
//! A reference is three little-endian words, written into the recorder's pipe at once:
//!
//! ```text
//!   first page      pages, 0 for a use      process
//! ```

/// One entry of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// The process ID, as the process itself sees it.
    pub process: u32,
    /// The first page's address divided by 4096.
    pub page: u64,
    /// Pages discarded by madvise() or munmap(), or moved by mremap(). 0 for a use.
    pub discarded: u64,
}

/// Bytes of a raw reference, well below the size that a pipe writes atomically.
pub const RAW_BYTES: usize = 24;

impl Reference {
    /// Encodes the reference for the pipe.
    pub fn to_raw(&self) -> [u8; RAW_BYTES] {
        let mut raw = [0; RAW_BYTES];
        let words = [self.page, self.discarded, self.process.into()];
        raw.chunks_exact_mut(8)
            .zip(words)
            .for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
        raw
    }

    /// Decodes bytes from the pipe. Returns `None` for bytes that no process writes.
    pub fn from_raw(raw: &[u8; RAW_BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(raw[at..at + 8].try_into().expect("eight of them"));
        Some(Reference { page: word(0), discarded: word(8), process: word(16).try_into().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_references_are_read_back() {
        for (process, page, discarded) in [(0, 0, 0), (7, 0x7_ffff_ffff, 0), (u32::MAX, 1 << 51, u64::MAX)] {
            let reference = Reference { process, page, discarded };
            assert_eq!(Reference::from_raw(&reference.to_raw()), Some(reference));
        }
        assert_eq!(Reference::from_raw(&[0xff; RAW_BYTES]), None, "no process has this number");
    }
}
