//! The mappings of this process, from /proc/self/maps, without the heap.

use crate::system;

/// The longest line that is read, and the bytes that are read at a time.
const BUFFER_BYTES: usize = 8192;

/// One mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
    /// `rwxp`, as in the file.
    pub rights: [u8; 4],
    /// Backed by a file (its inode is not 0).
    pub file: bool,
}

impl Mapping {
    /// Shared with other processes by design.
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

/// Calls `each` for every mapping, in address order; `None` when they cannot be seen.
pub fn for_each(mut each: impl FnMut(Mapping)) -> Option<()> {
    let file = system::open(c"/proc/thread-self/maps", libc::O_RDONLY);
    if file < 0 {
        return None;
    }
    let mut buffer = [0; BUFFER_BYTES];
    let (mut offset, mut kept) = (0, 0);
    loop {
        let got = system::read_at(file, &mut buffer[kept..], offset);
        if got == 0 {
            break;
        }
        offset += got as u64;
        let end = kept + got;
        let whole = buffer[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        buffer[..whole].split(|byte| *byte == b'\n').filter_map(Mapping::parse).for_each(&mut each);
        buffer.copy_within(whole..end, 0);
        kept = end - whole;
        if kept == buffer.len() {
            kept = 0; // a line longer than the buffer
        }
    }
    system::close(file);
    Some(())
}

/// Whether `[start, end)` is in one mapping; `None` when that cannot be seen.
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

/// The mapping at an address, by `PROCMAP_QUERY` (Linux 6.11), of the file's process.
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
        let here = 0u8;
        let mut found = 0;
        for_each(|mapping| {
            found += usize::from((mapping.start..mapping.end).contains(&(&raw const here).addr()))
        })
        .unwrap();
        assert_eq!(found, 1);
    }
}
