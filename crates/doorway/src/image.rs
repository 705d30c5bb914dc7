//! The agent's file: an ELF program, static and position-independent.

use crate::PAGE_SIZE;

/// Most segments that are mapped.
pub const SEGMENTS_MAX: usize = 8;
/// Bytes of a program header.
pub const HEADER_BYTES: usize = 56;

/// A part of the file that is mapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Segment {
    /// Offset from the image's start, in bytes; whole pages.
    pub start: usize,
    /// Length in bytes; whole pages.
    pub len: usize,
    /// Bytes from the file, at the start; the rest is zero.
    pub filled: usize,
    /// Their offset in the file, page-aligned.
    pub offset: usize,
    /// Rights in memory, as mmap(2) takes them (PROT_READ, PROT_WRITE, PROT_EXEC).
    pub protection: i32,
}

/// The mapped segments of a program, and its entry point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layout {
    segments: [Segment; SEGMENTS_MAX],
    count: usize,
    /// The entry point, relative to the image's start.
    pub entry: usize,
    /// The program headers in memory, relative to the image's start.
    pub headers: usize,
    /// Number of program headers.
    pub header_count: usize,
}

impl Layout {
    /// Reads the head of an ELF file of `file_bytes`, which contains all its headers. Returns
    /// `None` if it is not an ELF file of this kind.
    pub fn of(head: &[u8], file_bytes: usize) -> Option<Self> {
        let half = |at: usize| Some(usize::from(u16::from_le_bytes(*head.get(at..)?.first_chunk()?)));
        let word = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let long = |at: usize| usize::try_from(u64::from_le_bytes(*head.get(at..)?.first_chunk()?)).ok();
        const SHARED_OBJECT: usize = 3;
        const LOADED: u32 = 1;
        if !head.starts_with(b"\x7fELF\x02\x01") || half(16)? != SHARED_OBJECT || half(54)? != HEADER_BYTES {
            return None;
        }
        let (entry, table, header_count) = (long(24)?, long(32)?, half(56)?);
        let mut layout = Layout { entry, headers: table, header_count, ..Layout::default() };
        for index in 0..header_count {
            let at = table.checked_add(index * HEADER_BYTES)?;
            if word(at)? != LOADED {
                continue;
            }
            let (flags, offset, address) = (word(at + 4)?, long(at + 8)?, long(at + 16)?);
            let (file_len, memory_len) = (long(at + 32)?, long(at + 40)?);
            let shift = address % PAGE_SIZE;
            let end = offset.checked_add(file_len)?;
            if offset % PAGE_SIZE != shift || file_len > memory_len || end > file_bytes {
                return None;
            }
            *layout.segments.get_mut(layout.count)? = Segment {
                start: address - shift,
                len: shift.checked_add(memory_len)?.checked_next_multiple_of(PAGE_SIZE)?,
                filled: shift + file_len,
                offset: offset - shift,
                // The same three bits, in the reverse order.
                protection: (flags >> 2 & 1 | flags & 2 | (flags & 1) << 2) as i32,
            };
            layout.count += 1;
        }
        // The first segment holds the headers and begins the image.
        let is_ordered =
            layout.segments().windows(2).all(|pair| pair[0].start + pair[0].len <= pair[1].start);
        let first = layout.segments().first().filter(|first| first.start == 0 && first.offset == 0)?;
        (is_ordered && table + header_count * HEADER_BYTES <= first.filled).then_some(layout)
    }

    /// The mapped segments, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments[..self.count]
    }

    /// Bytes from the first segment to the end of the last.
    pub fn span(&self) -> usize {
        self.segments().last().map_or(0, |last| last.start + last.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_and_damage_is_refused() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let layout = Layout::of(&bytes, bytes.len()).expect("position-independent, like all of Rust's");
        assert!(layout.segments().len() >= 2 && layout.header_count > layout.segments().len());
        let code = layout.segments().iter().find(|segment| segment.protection == 1 | 4).unwrap();
        assert!((code.start..code.start + code.len).contains(&layout.entry));
        assert_eq!(Layout::of(&bytes[..4096], bytes.len()), Some(layout));
        for cut in (0..4096).step_by(7) {
            Layout::of(&bytes[..cut], cut);
        }
        // The smallest file that holds all mapped bytes, and one that lacks the last byte.
        let needed = layout.segments().iter().map(|segment| segment.offset + segment.filled).max().unwrap();
        assert_eq!((Layout::of(&bytes, needed), Layout::of(&bytes, needed - 1)), (Some(layout), None));
        assert_eq!((Layout::of(b"\x7fELF", 4), Layout::of(b"", 0)), (None, None));
    }
}
