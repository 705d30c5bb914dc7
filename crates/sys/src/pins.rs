//! Whether devices, or the kernel on its own, may write into memory of this process behind its page
//! tables.
//!
//! Reads past the page cache and rings of asynchronous requests hold on to pages and write into
//! them later. Where pages cannot be asked whether they are held, the process is asked whether it
//! has what such requests are made with.

use std::ffi::CStr;
use std::io::Write;

use crate::procfs::{self, ProcFile};
use crate::threads;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// A file opened with `O_DIRECT`.
    DirectFile,
    /// An io_uring.
    Ring,
    /// A context of io_setup().
    Aio,
    /// Memory that a driver has pinned.
    Pinned,
    /// None, but the process could not be looked at for want of a descriptor.
    Unknown,
}

impl Evidence {
    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Evidence::DirectFile => "a file is open with O_DIRECT",
            Evidence::Ring => "an io_uring is open",
            Evidence::Aio => "asynchronous I/O is set up",
            Evidence::Pinned => "a driver has pinned memory",
            Evidence::Unknown => "it has too few descriptors (RLIMIT_NOFILE) to be looked at",
        }
    }
}

/// Looks at the process; `maps` is its open list of mappings. Allocates nothing while the first
/// thread lives.
pub fn look(maps: &ProcFile) -> Option<Evidence> {
    match ProcFile::open_own(c"status") {
        Ok(status) => {
            let mut text = [0; 2048];
            let pinned = procfs::kilobytes_field(status.read_at(&mut text, 0), b"VmPin:");
            status.close();
            if pinned.is_some_and(|bytes| bytes > 0) {
                return Some(Evidence::Pinned);
            }
        }
        Err(_) => {
            if let Some(unknown) = why_not_opened() {
                return Some(unknown);
            }
        }
    }
    in_program_files().or_else(|| has_aio(maps).then_some(Evidence::Aio))
}

/// What follows from a file of /proc that cannot be opened: that there is none is no evidence, or
/// `None`.
fn why_not_opened() -> Option<Evidence> {
    let is_want = matches!(crate::errno(), libc::EMFILE | libc::ENFILE | libc::ENOMEM);
    is_want.then_some(Evidence::Unknown)
}

/// The first telling file of the program: of its first thread's table, or, when that thread has
/// ended, of any that is not the calling thread's.
fn in_program_files() -> Option<Evidence> {
    if threads::first_has_ended().is_none() {
        return in_files(c"/proc/self/fdinfo");
    }
    let mut found = None;
    let saw_all = threads::for_each(|thread| {
        let mut path = [0u8; 48];
        let written = write!(&mut path[..47], "/proc/self/task/{thread}/fdinfo");
        let path = CStr::from_bytes_until_nul(&path).expect("the last byte is zero");
        if found.is_none() && written.is_ok() && !shares_files(thread) {
            found = in_files(path);
        }
    });
    found.or_else(|| (!saw_all).then_some(Evidence::Unknown))
}

/// Whether a thread has the calling thread's file table.
fn shares_files(thread: i32) -> bool {
    const KCMP_FILES: usize = 2;
    // SAFETY: takes numbers.
    let answer =
        unsafe { libc::syscall(libc::SYS_kcmp, crate::thread::id(), thread, KCMP_FILES, 0usize, 0usize) };
    answer == 0
}

/// The first telling file of a directory of fdinfo.
fn in_files(path: &CStr) -> Option<Evidence> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a terminated path.
    let directory = unsafe { libc::open(path.as_ptr(), flags) };
    if directory < 0 {
        return why_not_opened();
    }
    let mut found = None;
    let mut buffer = [0u8; 4096];
    while found.is_none() {
        // SAFETY: the buffer is as long as said.
        let got =
            unsafe { libc::syscall(libc::SYS_getdents64, directory, buffer.as_mut_ptr(), buffer.len()) };
        let Some(mut rest) = usize::try_from(got).ok().filter(|got| *got > 0).map(|got| &buffer[..got])
        else {
            break;
        };
        // struct linux_dirent64: inode 8, offset 8, length of the record 2, type 1, terminated
        // name.
        while let (None, Some(length)) = (found, rest.get(16..18)) {
            let length = usize::from(u16::from_ne_bytes(length.try_into().expect("two bytes")));
            let Some(record) = rest.get(19..length) else { break };
            found = CStr::from_bytes_until_nul(record).ok().and_then(|name| in_file(directory, name));
            rest = &rest[length..];
        }
    }
    // SAFETY: opened above.
    unsafe { libc::close(directory) };
    found
}

fn in_file(directory: i32, name: &CStr) -> Option<Evidence> {
    if !name.to_bytes().iter().all(u8::is_ascii_digit) {
        return None;
    }
    // SAFETY: a terminated name.
    let file = unsafe { libc::openat(directory, name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return why_not_opened();
    }
    let mut text = [0u8; 512];
    // SAFETY: the buffer is as long as said; opened above.
    let got = unsafe {
        let got = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        got
    };
    in_text(&text[..usize::try_from(got).unwrap_or(0)])
}

/// What the lines of a file of fdinfo say: `flags:` in octal, and for an io_uring the masks of its
/// queues.
fn in_text(text: &[u8]) -> Option<Evidence> {
    let mut lines = text.split(|byte| *byte == b'\n');
    if text.windows(7).any(|word| word == b"SqMask:") {
        return Some(Evidence::Ring);
    }
    let flags = lines.find_map(|line| line.strip_prefix(b"flags:"))?;
    let digits = flags.iter().filter(|byte| byte.is_ascii_digit());
    let flags = digits.fold(0u64, |value, digit| value << 3 | u64::from(digit - b'0'));
    (flags & libc::O_DIRECT as u64 != 0).then_some(Evidence::DirectFile)
}

/// Whether the ring of a context of io_setup() is mapped. Most systems have none at all, which is
/// known at once.
fn has_aio(maps: &ProcFile) -> bool {
    let Ok(contexts) = ProcFile::open(c"/proc/sys/fs/aio-nr") else { return false };
    let mut text = [0; 32];
    let none = contexts.read_at(&mut text, 0) == b"0\n";
    contexts.close();
    if none {
        return false;
    }
    const NAME: &[u8] = b"/[aio]";
    let mut buffer = [0u8; 4096];
    let (mut offset, mut kept) = (0, 0);
    loop {
        let got = maps.read_at(&mut buffer[kept..], offset).len();
        if got == 0 {
            return false;
        }
        offset += got as u64;
        let end = kept + got;
        if buffer[..end].windows(NAME.len()).any(|word| word == NAME) {
            return true;
        }
        kept = end.min(NAME.len() - 1);
        buffer.copy_within(end - kept..end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_fdinfo() {
        assert_eq!(in_text(b"pos:\t0\nflags:\t0100002\nmnt_id:\t15\n"), None);
        let direct = format!("pos:\t0\nflags:\t0{:o}\nmnt_id:\t15\n", libc::O_DIRECT | libc::O_RDWR);
        assert_eq!(in_text(direct.as_bytes()), Some(Evidence::DirectFile));
        assert_eq!(in_text(b"pos:\t0\nflags:\t02000002\nSqMask:\t0x7\n"), Some(Evidence::Ring));
        assert_eq!(in_text(b""), None);
    }

    #[test]
    fn a_direct_file_is_found_as_long_as_it_is_open() {
        let mut ends = [0; 2];
        let maps = ProcFile::open(c"/proc/self/maps").unwrap();
        let before = look(&maps);
        // A pipe of packets has the same flag as a file past the page cache, and can be had
        // anywhere. SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_DIRECT | libc::O_CLOEXEC) }, 0);
        assert!(look(&maps).is_some());
        for end in ends {
            // SAFETY: opened above.
            unsafe { libc::close(end) };
        }
        assert_eq!(look(&maps), before);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_evidence_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..200), flags in "[0-9\t x]{0,40}", ring in any::<bool>(),
        ) {
            prop_assert!(in_text(&bytes) != Some(Evidence::Aio));
            let ring = if ring { "SqMask:" } else { "" };
            let text = format!("pos:\t0\nflags:{flags}\n{ring}");
            match in_text(text.as_bytes()) {
                Some(Evidence::Ring) => prop_assert!(!ring.is_empty()),
                Some(found) => prop_assert!(found == Evidence::DirectFile && flags.bytes().any(|byte| byte > b'0')),
                None => prop_assert!(ring.is_empty()),
            }
        }
    }
}
