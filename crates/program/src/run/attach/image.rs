//! The agent's file: its segments, and a memory file of it that processes map.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};

use sys::PAGE_SIZE;

/// What mappings of the agent are called in /proc/PID/maps.
pub const NAME: &std::ffi::CStr = c"uzswap-agent";

/// A part of the file that is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Whole pages: where it lies from the image's start, and how long it is.
    pub start: usize,
    /// See above.
    pub len: usize,
    /// Bytes of it that come from the file, from the start; the rest is zero.
    pub filled: usize,
    /// Where they are in the file, at a page's border.
    pub offset: usize,
    /// As for mmap(2).
    pub protection: i32,
}

/// A position-independent static program.
#[derive(Debug)]
pub struct Image {
    bytes: &'static [u8],
    file: File,
    /// What is mapped.
    pub segments: Vec<Segment>,
    /// Bytes from the first to the last.
    pub span: usize,
    /// Where it begins, from the image's start.
    pub entry: usize,
    /// Where its program headers are in memory, and how many.
    pub headers: (usize, usize),
}

/// Bytes of a program header.
pub const HEADER_BYTES: usize = 56;

impl Image {
    /// Reads an ELF file.
    ///
    /// # Errors
    /// When it is none, or not of the kind, or there is no memory file for it.
    pub fn new(bytes: &'static [u8]) -> io::Result<Self> {
        let (segments, entry, headers) = parse(bytes)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this build carries no agent"))?;
        let span = segments.iter().map(|segment| segment.start + segment.len).max().unwrap_or(0);
        // SAFETY: a terminated name.
        let raw = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: opened just now.
        let mut file = unsafe { File::from_raw_fd(raw) };
        file.write_all(bytes)?;
        Ok(Image { bytes, file, segments, span, entry, headers })
    }

    /// The path of the memory file, for processes that see this one and may look inside.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// What a segment is filled with.
    pub fn contents(&self, segment: &Segment) -> &[u8] {
        &self.bytes[segment.offset..segment.offset + segment.filled]
    }
}

type Parsed = (Vec<Segment>, usize, (usize, usize));

fn parse(bytes: &[u8]) -> Option<Parsed> {
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)));
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let long = |at: usize| usize::try_from(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok();
    const SHARED_OBJECT: usize = 3;
    if !bytes.starts_with(b"\x7fELF\x02\x01") || half(16)? != SHARED_OBJECT || half(54)? != HEADER_BYTES {
        return None;
    }
    let (entry, table, count) = (long(24)?, long(32)?, half(56)?);
    let mut segments = Vec::new();
    for index in 0..count {
        let at = table.checked_add(index * HEADER_BYTES)?;
        if word(at)? != libc::PT_LOAD {
            continue;
        }
        let (flags, offset, address) = (word(at + 4)?, long(at + 8)?, long(at + 16)?);
        let (file_len, memory_len) = (long(at + 32)?, long(at + 40)?);
        let shift = address % PAGE_SIZE;
        if offset % PAGE_SIZE != shift || file_len > memory_len || offset.checked_add(file_len)? > bytes.len() {
            return None;
        }
        let bit = |flag, protection| if flags & flag != 0 { protection } else { 0 };
        segments.push(Segment {
            start: address - shift,
            len: shift.checked_add(memory_len)?.checked_next_multiple_of(PAGE_SIZE)?,
            filled: shift + file_len,
            offset: offset - shift,
            protection: bit(libc::PF_R, libc::PROT_READ)
                | bit(libc::PF_W, libc::PROT_WRITE)
                | bit(libc::PF_X, libc::PROT_EXEC),
        });
    }
    // The first segment has the headers, and is where the image starts.
    let first = segments.first().filter(|first| first.start == 0 && first.offset == 0)?;
    (table + count * HEADER_BYTES <= first.filled).then_some((segments, entry, (table, count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_and_damage_is_refused() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let (segments, entry, (_, count)) = parse(&bytes).expect("position-independent, like all of Rust's");
        assert!(segments.len() >= 2 && count > segments.len());
        let code = segments.iter().find(|segment| segment.protection & libc::PROT_EXEC != 0).unwrap();
        assert!((code.start..code.start + code.len).contains(&entry));
        assert!(segments.windows(2).all(|pair| pair[0].start + pair[0].len <= pair[1].start));
        for cut in (0..4096).step_by(7) {
            parse(&bytes[..cut]);
        }
        assert!(parse(&bytes[..bytes.len() / 2]).is_none() && parse(b"\x7fELF").is_none() && parse(b"").is_none());
    }
}
