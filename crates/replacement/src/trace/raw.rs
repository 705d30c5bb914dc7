//! A reference as a process writes it into the recorder's pipe: four little-endian words, written
//! at once.
//!
//! ```text
//!   kind, 8 bits | first page, 56 bits      pages      thread, 32 bits | process, 32 bits      time, ns
//! ```

use super::{Kind, Reference};

/// Bytes of a raw reference; far fewer than a pipe takes in one piece.
pub const RAW_BYTES: usize = 32;

const PAGE_BITS: u32 = 56;

impl Reference {
    /// As bytes for the pipe.
    pub fn to_raw(&self) -> [u8; RAW_BYTES] {
        let kind = match self.kind {
            Kind::Read => 0u64,
            Kind::Write => 1,
            Kind::Discard => 2,
        };
        let words = [
            kind << PAGE_BITS | self.page & ((1 << PAGE_BITS) - 1),
            self.pages,
            u64::from(self.thread) << 32 | u64::from(self.process),
            self.time_ns,
        ];
        let mut raw = [0; RAW_BYTES];
        for (bytes, word) in raw.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        raw
    }

    /// From bytes of the pipe; `None` for what no process writes.
    pub fn from_raw(raw: &[u8; RAW_BYTES]) -> Option<Self> {
        let word = |index: usize| {
            u64::from_le_bytes(raw[8 * index..8 * index + 8].try_into().expect("eight of them"))
        };
        let kind = match word(0) >> PAGE_BITS {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Discard,
            _ => return None,
        };
        Some(Reference {
            kind,
            process: word(2) as u32,
            thread: (word(2) >> 32) as u32,
            page: word(0) & ((1 << PAGE_BITS) - 1),
            pages: word(1),
            time_ns: word(3),
        })
    }
}
