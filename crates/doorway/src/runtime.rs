//! Sanitizer runtimes, which must come first among a program's libraries.
//!
//! AddressSanitizer refuses to start behind another library, and the others miss calls interposed
//! before them. So where a program needs such a runtime, LD_PRELOAD names it before uzswap's
//! object.

/// The longest compared library name.
pub const NAME_BYTES: usize = 48;
/// Most program headers, and most dynamic entries, that are read.
const ENTRIES_MAX: u64 = 512;

/// GCC's names, and the prefix of Clang's.
const PREFIXES: [&[u8]; 6] =
    [b"libasan.so", b"libhwasan.so", b"liblsan.so", b"libtsan.so", b"libubsan.so", b"libclang_rt."];

/// Whether a library, given by name or path, is such a runtime.
pub fn is_runtime(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The name of the first runtime that a program needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runtime {
    name: [u8; NAME_BYTES],
    len: usize,
}

impl Runtime {
    /// The name as written in the program.
    pub fn name(&self) -> &[u8] {
        &self.name[..self.len]
    }

    /// Finds the runtime of the program that `read` reads: `read` fills its buffer from an offset
    /// and returns the number of bytes. Returns `None` for programs that need no runtime, and for
    /// files that are not 64-bit programs.
    pub fn of(read: &mut dyn FnMut(u64, &mut [u8]) -> usize) -> Option<Self> {
        let mut file = File { read };
        let head = file.bytes::<64>(0)?;
        if !head.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let (table, count) = (long(&head, 32), u64::from(u16::from_le_bytes([head[56], head[57]])));
        let count = count.min(ENTRIES_MAX);
        const LOADED: u32 = 1;
        const DYNAMIC: u32 = 2;
        let dynamic = file.header(table, count, &|kind, _| kind == DYNAMIC)?;
        let (at, entries) = (dynamic.offset, (dynamic.len / 16).min(ENTRIES_MAX));
        const END: u64 = 0;
        const NEEDED: u64 = 1;
        const STRINGS: u64 = 5;
        let strings = file.dynamic(at, entries, &mut |_, tag, value| (tag == STRINGS).then_some(value))?;
        let is_there =
            |kind: u32, header: &Header| kind == LOADED && strings.wrapping_sub(header.address) < header.len;
        let loaded = file.header(table, count, &is_there)?;
        let names = loaded.offset.checked_add(strings - loaded.address)?;
        let mut found = Runtime { name: [0; NAME_BYTES], len: 0 };
        file.dynamic(at, entries, &mut |file, tag, value| {
            if tag == END || tag != NEEDED {
                return None;
            }
            let len = (file.read)(names.checked_add(value)?, &mut found.name).min(NAME_BYTES);
            found.len = found.name[..len].iter().position(|byte| *byte == 0)?;
            is_runtime(found.name()).then_some(0)
        })?;
        Some(found)
    }
}

/// The interpreter that the first line of a script names.
pub fn interpreter(head: &[u8]) -> Option<&[u8]> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | 0));
    words.find(|word| !word.is_empty())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

struct Header {
    offset: u64,
    address: u64,
    /// Bytes in the file.
    len: u64,
}

struct File<'a> {
    read: &'a mut dyn FnMut(u64, &mut [u8]) -> usize,
}

impl File<'_> {
    fn bytes<const LEN: usize>(&mut self, at: u64) -> Option<[u8; LEN]> {
        let mut bytes = [0; LEN];
        ((self.read)(at, &mut bytes) == LEN).then_some(bytes)
    }

    fn header(&mut self, table: u64, count: u64, is: &dyn Fn(u32, &Header) -> bool) -> Option<Header> {
        for index in 0..count {
            let entry = self.bytes::<56>(table.checked_add(index * 56)?)?;
            let header = Header { offset: long(&entry, 8), address: long(&entry, 16), len: long(&entry, 32) };
            if is(u32::from_le_bytes(*entry.first_chunk()?), &header) {
                return Some(header);
            }
        }
        None
    }

    /// The first result of `look` in the dynamic section.
    fn dynamic(
        &mut self,
        at: u64,
        count: u64,
        look: &mut dyn FnMut(&mut Self, u64, u64) -> Option<u64>,
    ) -> Option<u64> {
        for first in (0..count).step_by(8) {
            let mut bytes = [0; 128];
            let got = (self.read)(at.checked_add(first * 16)?, &mut bytes).min(128);
            for entry in bytes[..got].chunks_exact(16).take((count - first) as usize) {
                if let Some(found) = look(self, long(entry, 0), long(entry, 8)) {
                    return Some(found);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Option<Runtime> {
        Runtime::of(&mut |offset, room| {
            let rest = bytes.get(offset as usize..).unwrap_or(&[]);
            let len = rest.len().min(room.len());
            room[..len].copy_from_slice(&rest[..len]);
            len
        })
    }

    /// A program with two segments; the second holds the names.
    fn program(names: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0; 0x1000];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(32, 64);
        put(56, 3);
        for (index, [kind, offset, address, len]) in
            [[1, 0, 0, 0x400], [1, 0x800, 0x5800, 0x800], [2, 0x400, 0, 0x400]].into_iter().enumerate()
        {
            let at = 64 + index * 56;
            put(at, kind);
            put(at + 8, offset);
            put(at + 16, address);
            put(at + 32, len);
        }
        let mut text = vec![0];
        for (index, name) in names.iter().enumerate() {
            put(0x400 + index * 16, 1);
            put(0x408 + index * 16, text.len() as u64);
            text.extend(name.bytes().chain([0]));
        }
        put(0x400 + names.len() * 16, 5);
        put(0x408 + names.len() * 16, 0x5900);
        bytes[0x900..0x900 + text.len()].copy_from_slice(&text);
        bytes
    }

    #[test]
    fn the_runtime_that_a_program_needs() {
        let name = |names: &[&str]| of(&program(names)).map(|found| found.name().to_owned());
        assert_eq!(name(&["libasan.so.8", "libc.so.6"]), Some(b"libasan.so.8".to_vec()));
        let many: Vec<&str> = ["libm.so.6"; 20].into_iter().chain(["libclang_rt.asan-x86_64.so"]).collect();
        assert_eq!(name(&many), Some(b"libclang_rt.asan-x86_64.so".to_vec()));
        assert_eq!((name(&["libc.so.6", "libasan"]), name(&[]), of(b"#!/bin/sh")), (None, None, None));
        assert!(is_runtime(b"/usr/lib/libtsan.so.2") && !is_runtime(b"libasan.so.8/x") && !is_runtime(b""));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(of(&own), None);
    }

    #[test]
    fn damage_is_no_runtime_and_no_harm() {
        let whole = program(&["libasan.so.8"]);
        for at in 0..0x940 {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                of(&bytes);
            }
            of(&whole[..at]);
        }
    }

    #[test]
    fn scripts_name_their_interpreters() {
        for (head, found) in [
            (&b"#!/bin/sh\n"[..], Some(&b"/bin/sh"[..])),
            (b"#! \t/usr/bin/env python3", Some(b"/usr/bin/env")),
            (b"#!\n/bin/sh", None),
            (b"#!", None),
            (b"\x7fELF", None),
        ] {
            assert_eq!(interpreter(head), found);
        }
    }
}
