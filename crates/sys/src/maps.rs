//! The mappings of the calling process, from /proc/self/maps, parsed without allocating.

use crate::procfs::ProcFile;

/// One mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mapping {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// Shared with other processes by design (MAP_SHARED).
    pub shared: bool,
    /// Backed by a file (its inode is not 0).
    pub file: bool,
    /// A kernel mapping: `[vdso]`, `[vvar]`, `[vsyscall]`; not the first thread's stack.
    pub special: bool,
}

impl Mapping {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether it has no bytes; the kernel reports no such mapping.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// Calls `each` for every mapping, in address order. `buffer` must hold the longest line, 4 KiB and
/// a path; a larger one saves system calls. Only a single read is consistent.
pub fn for_each(file: &ProcFile, buffer: &mut [u8], mut each: impl FnMut(Mapping)) {
    for_each_line(file, buffer, |line| parse(line).into_iter().for_each(&mut each));
}

/// Calls `each` for every mapping of the memory file `name`.
pub fn for_each_of_memory_file(
    file: &ProcFile,
    buffer: &mut [u8],
    name: &str,
    mut each: impl FnMut(Mapping),
) {
    for_each_line(file, buffer, |line| {
        let path = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty()).nth(5);
        let of_memory = path.and_then(|path| path.strip_prefix(b"/memfd:"));
        if of_memory == Some(name.as_bytes()) {
            parse(line).into_iter().for_each(&mut each);
        }
    });
}

/// Calls `each` with the range of every mapping that a forked child gets without its bytes
/// (MADV_WIPEONFORK). `smaps` is /proc/self/smaps, for which the kernel inspects every page;
/// `buffer` as for [`for_each`].
pub fn for_each_wiped(smaps: &ProcFile, buffer: &mut [u8], mut each: impl FnMut(usize, usize)) {
    let mut last = Mapping::default();
    for_each_line(smaps, buffer, |line| match line.strip_prefix(b"VmFlags:") {
        Some(flags) if flags.split(|byte| *byte == b' ').any(|flag| flag == b"wf") => {
            each(last.start, last.end)
        }
        Some(_) => {}
        None => last = parse(line).unwrap_or(last),
    });
}

fn for_each_line(file: &ProcFile, buffer: &mut [u8], mut each: impl FnMut(&[u8])) {
    let (mut offset, mut kept) = (0u64, 0);
    loop {
        let got = file.read_at(&mut buffer[kept..], offset).len();
        if got == 0 {
            return;
        }
        offset += got as u64;
        let text = &buffer[..kept + got];
        let complete = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in text[..complete].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            each(line);
        }
        let end = kept + got;
        buffer.copy_within(complete..end, 0);
        kept = end - complete;
        if kept == buffer.len() {
            kept = 0; // a line longer than the buffer: its start was parsed or is lost, never looped over
        }
    }
}

/// Parses a line as `start-end rwxp offset major:minor inode path`.
pub fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let range = fields.next()?;
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let (start, end) = (hexadecimal(&range[..dash])?, hexadecimal(&range[dash + 1..])?);
    let rights = fields.next()?;
    if rights.len() < 4 || start >= end {
        return None;
    }
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or(b"");
    Some(Mapping {
        start,
        end,
        read: rights[0] == b'r',
        write: rights[1] == b'w',
        execute: rights[2] == b'x',
        shared: rights[3] == b's',
        file: inode != b"0",
        special: name.first() == Some(&b'[')
            && !matches!(name, b"[heap]" | b"[stack]")
            && !name.starts_with(b"[anon"),
    })
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() {
        return None;
    }
    digits
        .iter()
        .try_fold(0usize, |value, byte| Some(value.checked_mul(16)? + (*byte as char).to_digit(16)? as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mappings_that_children_get_empty_are_known() {
        let at = crate::memory::map(4 * crate::PAGE_SIZE).unwrap().as_ptr() as usize;
        let (start, len) = (at + crate::PAGE_SIZE, 2 * crate::PAGE_SIZE);
        // SAFETY: this test's mapping; the advice changes no byte here.
        if unsafe { libc::madvise(start as *mut _, len, libc::MADV_WIPEONFORK) } != 0 {
            return testkit::skip!("kernel", "no MADV_WIPEONFORK");
        }
        let smaps = ProcFile::open(c"/proc/self/smaps").unwrap();
        let mut found = Vec::new();
        for_each_wiped(&smaps, &mut [0; 8192], |start, end| found.push((start, end)));
        smaps.close();
        assert!(found.contains(&(start, start + len)), "{found:x?}");
        assert!(found.iter().all(|(begin, end)| *end <= at || *begin >= start));
    }

    #[test]
    fn lines_of_each_kind() {
        let heap = parse(b"55d0c8a2b000-55d0c8a4c000 rw-p 00000000 00:00 0                          [heap]")
            .unwrap();
        assert!(heap.read && heap.write && !heap.execute && !heap.shared && !heap.file && !heap.special);
        assert_eq!(heap.len(), 0x21000);
        let stack =
            parse(b"7ffd1b0e5000-7ffd1b106000 rw-p 00000000 00:00 0                          [stack]")
                .unwrap();
        assert!(!stack.special && stack.write);
        let vdso = parse(b"7ffd1b1e5000-7ffd1b1e6000 r-xp 00000000 00:00 0   [vdso]").unwrap();
        assert!(vdso.special);
        let code = parse(
            b"7f0000000000-7f0000001000 r-xp 00001000 08:01 1234                       /usr/lib/a b.so",
        )
        .unwrap();
        assert!(code.file && code.execute && !code.write);
        let named = parse(b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0    [anon:heap]").unwrap();
        assert!(!named.special);
        assert_eq!(parse(b"garbage"), None);
        assert_eq!(parse(b"5-4 rw-p 0 00:00 0"), None);
    }

    #[test]
    fn own_mappings_are_found_with_a_small_buffer() {
        let at = crate::memory::map(5 * 4096).unwrap().as_ptr() as usize;
        let file = ProcFile::open(c"/proc/self/maps").unwrap();
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for_each(&file, &mut [0; 600], |mapping| small.push(mapping));
        for_each(&file, &mut [0; 1 << 16], |mapping| large.push(mapping));
        let holds =
            |list: &[Mapping]| list.iter().any(|m| m.start <= at && m.end >= at + 5 * 4096 && m.write);
        assert!(holds(&small) && holds(&large));
        assert!(large.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }

    /// A line like the kernel's, or almost.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        let range = "[0-9a-f]{0,17}-[0-9a-f]{0,17}";
        let rights = "[rwxps-]{0,5}";
        let field = prop_oneof![Just("0".to_owned()), "[0-9a-f:]{0,8}", "\\PC{0,300}"];
        prop_oneof![
            4 => (range, rights, field.clone(), field.clone(), field)
                .prop_map(|(a, b, c, d, e)| format!("{a} {b} 0 {c} {d}   {e}").into_bytes()),
            1 => prop::collection::vec(any::<u8>(), 0..300),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_read_with_any_buffer(lines in prop::collection::vec(line(), 0..20), room in 1usize..5000) {
            let text: Vec<u8> = lines.join(&b'\n');
            // SAFETY: a terminated name.
            let file = unsafe { libc::memfd_create(c"maps".as_ptr(), libc::MFD_CLOEXEC) };
            // SAFETY: `text` is readable.
            let put = unsafe { libc::write(file, text.as_ptr().cast(), text.len()) };
            prop_assert_eq!(put as usize, text.len());
            let path = std::ffi::CString::new(format!("/proc/self/fd/{file}")).unwrap();
            let opened = ProcFile::open(&path).unwrap();
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            for_each(&opened, &mut vec![0; room], |mapping| found.push(mapping));
            // The last line counts only if it has an end.
            let complete = text.iter().rposition(|byte| *byte == b'\n').map_or(&[][..], |at| &text[..at]);
            expected.extend(complete.split(|byte| *byte == b'\n').filter_map(parse));
            opened.close();
            // SAFETY: opened above.
            unsafe { libc::close(file) };
            prop_assert!(expected.iter().all(|mapping| !mapping.is_empty()));
            if text.split(|byte| *byte == b'\n').all(|line| line.len() < room) {
                prop_assert_eq!(found, expected);
            } else {
                prop_assert!(found.iter().all(|mapping| mapping.start < mapping.end));
            }
        }
    }
}
