//! Figures from /proc, read without allocating.

use std::ffi::CStr;
use std::io::{self, Write};
use std::ops::Range;

use crate::checked;

/// An open file of /proc, read from its start each time.
#[derive(Debug, Clone, Copy)]
pub struct ProcFile {
    descriptor: i32,
}

impl ProcFile {
    /// Opens `path`.
    ///
    /// # Errors
    /// If it does not exist or may not be read.
    pub fn open(path: &CStr) -> io::Result<Self> {
        // SAFETY: a terminated path.
        let opened = checked(unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) });
        opened.map(|descriptor| ProcFile { descriptor })
    }

    /// Opens a file about the calling process, `name` of /proc/thread-self. Once the process's
    /// first thread has ended, the same file of /proc/self no longer shows memory; this one is
    /// valid while the calling thread lives.
    ///
    /// # Errors
    /// If it does not exist or may not be read.
    pub fn open_own(name: &CStr) -> io::Result<Self> {
        const PREFIX: &[u8] = b"/proc/thread-self/";
        let (mut path, name) = ([0u8; 40], name.to_bytes());
        path[..PREFIX.len()].copy_from_slice(PREFIX);
        path[PREFIX.len()..][..name.len()].copy_from_slice(name);
        ProcFile::open(CStr::from_bytes_until_nul(&path).expect("the name is short"))
    }

    /// Reads from `offset` and returns the bytes read.
    pub fn read_at<'a>(&self, buffer: &'a mut [u8], offset: u64) -> &'a [u8] {
        // SAFETY: the buffer has the given length.
        let got = unsafe {
            libc::pread(self.descriptor, buffer.as_mut_ptr().cast(), buffer.len(), offset as libc::off_t)
        };
        &buffer[..usize::try_from(got).unwrap_or(0)]
    }

    /// The descriptor in the calling thread's file table.
    pub fn descriptor(&self) -> i32 {
        self.descriptor
    }

    /// Closes the descriptor in the calling thread's file table.
    pub fn close(self) {
        // SAFETY: closing a number is memory-safe.
        unsafe { libc::close(self.descriptor) };
    }
}

/// Opens a file, reads its start and closes it.
pub(crate) fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let file = ProcFile::open(path)?;
    let text = file.read_at(buffer, 0);
    file.close();
    Ok(text)
}

/// Reads the start of the file `name` about a thread.
pub(crate) fn read_of<'a>(thread: i32, name: &str, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    read(CStr::from_bytes_until_nul(&path_in(thread, name)).expect("the last byte is zero"), buffer)
}

/// The terminated path of the file `name` about a thread.
pub(crate) fn path_in(thread: i32, name: &str) -> [u8; 64] {
    let mut path = [0; 64];
    write!(&mut path[..63], "/proc/{thread}/{name}").expect("names are short");
    path
}

/// The fields of /proc/PID/stat from the third on. The name, field 2, is in parentheses and may
/// contain anything.
pub(crate) fn behind_name(stat: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let end = stat.iter().rposition(|byte| *byte == b')')? + 2;
    Some(stat.get(end..)?.split(|byte| *byte == b' '))
}

/// The path of `name` in /proc for process `pid`: its first thread's, or, if that has ended, a
/// living thread's. `None` if the process has ended.
pub fn path_of(pid: i32, name: &str) -> Option<String> {
    let has_memory = |path: &str| {
        let stat = std::fs::read(format!("{path}/stat")).ok()?;
        let state = behind_name(&stat)?.next()?;
        (!matches!(state, b"Z" | b"X")).then(|| format!("{path}/{name}"))
    };
    has_memory(&format!("/proc/{pid}")).or_else(|| {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        threads.filter_map(|thread| has_memory(thread.path().to_str()?)).next()
    })
}

/// The last processor of thread `id`.
pub fn processor_of(id: u32) -> Option<usize> {
    processor_in(read_of(id as i32, "stat", &mut [0; 512]).ok()?)
}

/// Field 39 of /proc/PID/stat.
fn processor_in(stat: &[u8]) -> Option<usize> {
    decimal(behind_name(stat)?.nth(36)?).map(|number| number as usize)
}

/// Addresses of the arguments and environment in /proc/PID/cmdline and environ; empty if unknown.
pub fn arguments() -> [Range<usize>; 2] {
    read(c"/proc/self/stat", &mut [0; 1024]).ok().and_then(arguments_in).unwrap_or_default()
}

/// Fields 48 to 51 of /proc/PID/stat.
fn arguments_in(stat: &[u8]) -> Option<[Range<usize>; 2]> {
    let mut fields = behind_name(stat)?.skip(45).map(decimal);
    let mut next = || Some(fields.next()?? as usize);
    Some([next()?..next()?, next()?..next()?])
}

/// Anonymous resident bytes from the text of /proc/PID/statm: resident minus shared pages.
pub fn anonymous_bytes(statm: &[u8]) -> Option<u64> {
    let mut fields = statm.split(|byte| *byte == b' ').skip(1).map(decimal);
    let (resident, shared) = (fields.next()??, fields.next()??);
    Some(resident.saturating_sub(shared).saturating_mul(crate::PAGE_SIZE as u64))
}

/// Total size, and size of private writable memory and stacks, in pages, from the text of
/// /proc/PID/statm. They change when mappings do.
pub fn sizes(statm: &[u8]) -> Option<(u64, u64)> {
    let mut fields = statm.split(|byte| *byte == b' ').map(decimal);
    let total = fields.next()??;
    let data = fields.nth(4)??;
    Some((total, data))
}

/// The value in bytes of `name` (`b"Pss_Anon:"`) in a text of `name   value kB` lines.
pub fn kilobytes_field(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find(|line| line.starts_with(name))?;
    let value =
        line[name.len()..].split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    decimal(value)?.checked_mul(1024)
}

fn decimal(word: &[u8]) -> Option<u64> {
    let digits = word.strip_suffix(b"\n").unwrap_or(word);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, byte| match byte {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arguments_are_where_this_process_has_them() {
        let [arguments, environment] = arguments();
        assert!(!arguments.is_empty() && arguments.end <= environment.start && !environment.is_empty());
        let first = std::env::args_os().next().unwrap();
        // SAFETY: the process's initial strings, which do not change.
        let there = unsafe { CStr::from_ptr(arguments.start as *const _) };
        assert_eq!(there.to_bytes(), first.as_encoded_bytes());
        assert_eq!((arguments_in(b"1 (a) b) R 2"), arguments_in(b"")), (None, None));
    }

    #[test]
    fn statm_gives_resident_less_shared() {
        assert_eq!(anonymous_bytes(b"1000 300 100 5 0 200 0\n"), Some(200 * 4096));
        assert_eq!(sizes(b"1000 300 100 5 0 200 0\n"), Some((1000, 200)));
        assert_eq!(anonymous_bytes(b"1000"), None);
        assert_eq!(anonymous_bytes(b"x y z"), None);
    }

    #[test]
    fn fields_in_kilobytes_are_found() {
        let text = b"Rss:    12 kB\nPss_Anon:             34 kB\nRssShmem:\t   5 kB\n";
        assert_eq!(kilobytes_field(text, b"Pss_Anon:"), Some(34 * 1024));
        assert_eq!(kilobytes_field(text, b"RssShmem:"), Some(5 * 1024));
        assert_eq!(kilobytes_field(text, b"Swap:"), None);
    }

    #[test]
    fn a_threads_processor() {
        let id = crate::thread::id() as u32;
        assert!(processor_of(id).unwrap() < 4096);
        assert_eq!(processor_of(u32::MAX), None);
        assert_eq!(processor_of(0), None);
        let text =
            b"1 (a ) b) S 0 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0";
        assert_eq!(processor_in(text), Some(3));
    }

    #[test]
    fn own_statm_grows_with_touched_memory() {
        let file = ProcFile::open_own(c"statm").unwrap();
        let mut buffer = [0; 128];
        let before = anonymous_bytes(file.read_at(&mut buffer, 0)).unwrap();
        let len = 32 << 20;
        let at = crate::memory::map(len).unwrap();
        for page in 0..len / crate::PAGE_SIZE {
            // SAFETY: inside the mapping made above.
            unsafe { at.as_ptr().add(page * crate::PAGE_SIZE).write_volatile(1) };
        }
        let after = anonymous_bytes(file.read_at(&mut buffer, 0)).unwrap();
        assert!(after - before >= (len as u64) * 9 / 10, "{before} {after}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_has_figures_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            words in prop::collection::vec(prop_oneof![any::<u64>().prop_map(|n| n.to_string()), "[0-9) (\\PC]{0,24}"], 0..60),
        ) {
            for text in [bytes, words.join(" ").into_bytes(), format!("VmPin: {}", words.join(" ")).into_bytes()] {
                let numbers: Vec<Option<u64>> = text.split(|byte| *byte == b' ').map(decimal).collect();
                let number = |at: usize| numbers.get(at).copied().flatten();
                prop_assert_eq!(anonymous_bytes(&text).is_some(), number(1).is_some() && number(2).is_some());
                prop_assert_eq!(sizes(&text), number(0).zip(number(5)));
                let value = kilobytes_field(&text, b"VmPin:");
                prop_assert!(value.is_none_or(|bytes| bytes % 1024 == 0));
                if let Some(processor) = processor_in(&text) {
                    prop_assert!(numbers.contains(&Some(processor as u64)));
                }
            }
        }
    }
}
