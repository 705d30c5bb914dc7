//! The mappings of this process, from /proc/self/maps, without the heap.

use core::ops::Range;

use crate::system;

/// Bytes read at a time: a caller may have little stack. All fields but the path fit.
const BUFFER_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// `rwxp`, as in the file.
    pub rights: [u8; 4],
    /// Backed by a file (its inode is not 0).
    pub file: bool,
}

impl Mapping {
    pub fn shared(&self) -> bool {
        self.rights[3] == b's'
    }

    /// Reads a line: `start-end rwxp offset major:minor inode path`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let mut bounds = fields.next()?.split(|byte| *byte == b'-').map(hexadecimal);
        let (start, end) = (bounds.next()??, bounds.next()??);
        let rights = *fields.next()?.first_chunk()?;
        Some(Mapping { start, end, rights, file: fields.nth(2)? != b"0" })
    }
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

/// Calls `each` for every mapping, in address order. Returns `None` if they cannot be read.
pub fn for_each(mut each: impl FnMut(Mapping)) -> Option<()> {
    for_each_line(&mut [0; BUFFER_BYTES], |line| Mapping::parse(line).into_iter().for_each(&mut each))
}

/// Calls `each` for the line of every mapping, cut to the buffer. Returns `None` if they cannot be
/// read.
pub fn for_each_line(buffer: &mut [u8], mut each: impl FnMut(&[u8])) -> Option<()> {
    let file = system::open(c"/proc/thread-self/maps", libc::O_RDONLY);
    if file < 0 {
        return None;
    }
    let mut reader = Reader { buffer, kept: 0, skips: false };
    let mut offset = 0;
    loop {
        let got = system::read_at(file, reader.room(), offset);
        if got == 0 {
            break;
        }
        offset += got as u64;
        reader.take(got, &mut each);
    }
    system::close(file);
    Some(())
}

/// Text that was read and not parsed yet.
struct Reader<'a> {
    buffer: &'a mut [u8],
    kept: usize,
    /// Set while the rest of the line does not fit.
    skips: bool,
}

impl Reader<'_> {
    /// The free part of the buffer.
    fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.kept..]
    }

    /// Passes on the lines in the buffer, `got` bytes of which are new.
    fn take(&mut self, got: usize, each: &mut impl FnMut(&[u8])) {
        let (mut at, end) = (0, self.kept + got);
        while let Some(len) = self.buffer[at..end].iter().position(|byte| *byte == b'\n') {
            if !core::mem::take(&mut self.skips) {
                each(&self.buffer[at..at + len]);
            }
            at += len + 1;
        }
        self.buffer.copy_within(at..end, 0);
        self.kept = end - at;
        if self.skips {
            self.kept = 0;
        } else if self.kept == self.buffer.len() {
            each(self.buffer);
            (self.kept, self.skips) = (0, true);
        }
    }
}

/// Whether `[start, end)` is in one mapping; `None` if unknown.
pub fn is_one(start: usize, end: usize) -> Option<bool> {
    let file = system::open(c"/proc/thread-self/maps", libc::O_RDONLY);
    if file < 0 {
        return None;
    }
    let found = query(file, start);
    system::close(file);
    match found {
        Ok(found) => Some(found.is_some_and(|(_, behind)| behind >= end)),
        Err(_) => {
            let mut one = false;
            for_each(|mapping| one |= mapping.start <= start && mapping.end >= end)?;
            Some(one)
        }
    }
}

/// `[start, start + len)` extended to all private mappings that it touches. The range alone if they
/// cannot be read; `None` if it is not all mapped.
pub fn around(start: usize, len: usize) -> Option<Range<usize>> {
    let end = start.checked_add(len)?;
    let (mut range, mut at) = (start..end, start);
    let is_seen = for_each(|mapping| {
        if mapping.start < end && start < mapping.end {
            at = if mapping.start <= at { mapping.end } else { at };
            if !mapping.shared() {
                range = range.start.min(mapping.start)..range.end.max(mapping.end);
            }
        }
    });
    (is_seen.is_none() || at >= end).then_some(range)
}

/// `struct procmap_query` of the kernel's fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    others: [u64; 8],
}

/// The mapping at an address in the file's process, by `PROCMAP_QUERY` (Linux 6.11).
fn query(file: isize, address: usize) -> Result<Option<(usize, usize)>, isize> {
    const PROCMAP_QUERY: usize = 0xc068_6611;
    const _: () = assert!(size_of::<Query>() == 0x68);
    const ENOENT: isize = -(libc::ENOENT as isize);
    let mut query = Query { size: size_of::<Query>() as u64, address: address as u64, ..Query::default() };
    match system::ioctl(file, PROCMAP_QUERY, (&raw mut query).addr()) {
        0 => Ok(Some((query.start as usize, query.end as usize))),
        ENOENT => Ok(None),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_or_left_out() {
        let line = b"7f0000000000-7f0000002000 rw-p 00000000 00:00 0 ";
        let expected = Mapping { start: 0x7f0000000000, end: 0x7f0000002000, rights: *b"rw-p", file: false };
        assert_eq!(Mapping::parse(line), Some(expected));
        let line = b"1000-2000 r--s 00000000 08:01 77     /a file";
        assert!(Mapping::parse(line).is_some_and(|mapping| mapping.file && mapping.shared()));
        for line in [&b""[..], b"1000", b"x-y rw-p 0 0 0", b"1000-2000 rw", b"1000-2000 rwxp 0 0"] {
            assert_eq!(Mapping::parse(line), None);
        }
    }

    /// For any split of the file, and paths of any length.
    #[test]
    fn lines_come_in_any_parts() {
        let path = "/a path".repeat(300);
        let line = |index: usize, path: &str| {
            format!("{index:x}000-{:x}000 rw-p 00000000 00:00 0 {path}\n", index + 1)
        };
        let text: String = (1..200).map(|index| line(index, &path[..index * 37 % path.len()])).collect();
        for step in [1, 2, 3, 7, 100, 255, 256] {
            let mut reader = Reader { buffer: &mut [0; BUFFER_BYTES], kept: 0, skips: false };
            let (mut rest, mut next) = (text.as_bytes(), 1);
            while !rest.is_empty() {
                let room = reader.room();
                let got = step.min(room.len()).min(rest.len());
                room[..got].copy_from_slice(&rest[..got]);
                rest = &rest[got..];
                reader.take(got, &mut |line| {
                    let mapping = Mapping::parse(line).unwrap();
                    assert_eq!((mapping.start, mapping.end), (next << 12, (next + 1) << 12));
                    next += 1;
                });
            }
            assert_eq!(next, 200, "{step} bytes at a time");
        }
    }

    #[test]
    fn this_process_s_mappings_are_seen() {
        let here = 0u8;
        let range = around((&raw const here).addr(), 1).unwrap();
        assert!(range.contains(&(&raw const here).addr()) && range.start.is_multiple_of(4096));
        let unmapped = [around(0x10000, 1), around(range.start, 1 << 62), around(1, usize::MAX)];
        assert_eq!(unmapped, [None, None, None]);
        let mut found = 0;
        for_each(|mapping| {
            found += usize::from((mapping.start..mapping.end).contains(&(&raw const here).addr()))
        })
        .unwrap();
        assert_eq!(found, 1);
    }
}
