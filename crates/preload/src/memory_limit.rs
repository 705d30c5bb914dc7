//! The memory limit that a program reads in its control group.
//!
//! Runtimes with garbage collectors (HotSpot, V8, .NET) size their heaps and nurseries by it, and
//! without one by the machine's memory: a nursery that suits 24 GiB is used from end to end all the
//! time, and no choice of pages makes room for it in 64 MiB. Under `run` there is such a limit,
//! though no control group has it. So the process's own group shows UZSWAP_CGROUP_LIMIT, unless the
//! group's limit is lower and the user did not request this one (a `!` after the number). Only
//! reads of those files are intercepted, and only through the C library's functions.
//!
//! A database that spills to disk by the limit reads the budget instead, the second number: with
//! more it would not spill, and its pages would go out and come back (docs/user/sizing.md).

use core::ffi::{c_char, c_int, c_long, CStr};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use doorway::control_page::end;

use crate::calls::{raw_syscall, set_errno};
use crate::control_page::is_alive;
use crate::line::{Line, Text};
use crate::next::{interposed, library, Next, Onward};
use crate::{fork, mappings, scratch, system};

const ROOT: &[u8] = b"/sys/fs/cgroup/";
/// The files with a limit, of version 2 and of version 1.
const FILES: [&[u8]; 3] = [b"memory.max", b"memory.high", b"memory.limit_in_bytes"];
const PROCESSES: &[u8] = b"/proc/";
const PATH_BYTES_MAX: usize = 1024;

/// Databases that spill by the limit: part of the file name of their program or library.
const SPILLING: &[u8] = b"duckdb";

/// The shown limit in bytes; 0 shows the real one.
static SHOWN: AtomicU64 = AtomicU64::new(0);
/// The limit shown to such databases; 0 shows them `SHOWN`.
static SHOWN_TO_SPILLING: AtomicU64 = AtomicU64::new(0);
/// Whether the user requested it: it then also replaces a lower one.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

library! {
    fn find_all();
    OPEN: open(*const c_char, c_int, u32) -> c_int;
    OPEN64: open64(*const c_char, c_int, u32) -> c_int;
    OPENAT: openat(c_int, *const c_char, c_int, u32) -> c_int;
    OPENAT64: openat64(c_int, *const c_char, c_int, u32) -> c_int;
    FOPEN: fopen(*const c_char, *const c_char) -> *mut libc::FILE;
    FOPEN64: fopen64(*const c_char, *const c_char) -> *mut libc::FILE;
}

/// Reads the limit to show, and looks up functions in advance. The object's constructor calls this.
pub fn prepare() {
    find_all();
    // SAFETY: no other thread changes the environment while constructors run.
    if let Some(text) = unsafe { system::variable(c"UZSWAP_CGROUP_LIMIT") } {
        let mut parts = text.to_bytes().split(|byte| *byte == b' ');
        let text = parts.next().unwrap_or_default();
        let asked = text.strip_suffix(b"!");
        IS_ASKED.store(asked.is_some(), Ordering::Relaxed);
        SHOWN.store(number(asked.unwrap_or(text)).unwrap_or(0), Ordering::Relaxed);
        SHOWN_TO_SPILLING.store(parts.next().and_then(number).unwrap_or(0), Ordering::Relaxed);
    }
}

/// A decimal number, followed only by a line's end.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"\n").unwrap_or(text);
    core::str::from_utf8(digits).ok()?.parse().ok()
}

fn words(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|word| !word.is_empty())
}

/// Whether a path is a limit file of the group in `membership`, the text of /proc/self/cgroup.
fn is_own_limit(path: &[u8], membership: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(ROOT) else { return false };
    membership.split(|byte| *byte == b'\n').any(|line| {
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
            return false;
        };
        let (roots, files): (&[&[u8]], _) = if controllers.is_empty() {
            (&[b"", b"unified"], &FILES[..2])
        } else if controllers.split(|byte| *byte == b',').any(|name| name == b"memory") {
            (&[b"memory"], &FILES[2..])
        } else {
            return false;
        };
        // In a container the group may be mounted as the root.
        roots.iter().any(|root| {
            [group, b""].iter().any(|group| {
                files.iter().any(|file| words(rest).eq(words(root).chain(words(group)).chain([*file])))
            })
        })
    })
}

/// The opened path, if it is intercepted here; `None` also if the kernel cannot read it and fails
/// the call.
///
/// # Safety
/// The path stays mapped during the call.
unsafe fn met<'a>(path: *const c_char) -> Option<&'a CStr> {
    let start = path.addr();
    if !is_alive() && !is_any_shown() || (start as isize) < system::NO_ADDRESS_BELOW {
        return None;
    }
    let mut reader = system::Reader::new();
    let mut begins = |name: &[u8]| (0..name.len()).all(|at| reader.byte(start + at) == Some(name[at]));
    if !begins(PROCESSES) && !begins(ROOT) {
        return None;
    }
    let len = reader.string_len(start, PATH_BYTES_MAX)?;
    // SAFETY: `len + 1` bytes were read, and the last one is zero.
    CStr::from_bytes_with_nul(unsafe { core::slice::from_raw_parts(path.cast(), len + 1) }).ok()
}

fn is_any_shown() -> bool {
    SHOWN.load(Ordering::Relaxed) != 0 || SHOWN_TO_SPILLING.load(Ordering::Relaxed) != 0
}

/// A descriptor of a file to read in place of `path`, if that shows a limit to hide.
fn shown(path: &CStr, flags: c_int) -> Option<isize> {
    let bytes = path.to_bytes();
    let is_limit = bytes.starts_with(ROOT) && FILES.iter().any(|file| bytes.ends_with(file));
    if !is_any_shown() || !is_limit || flags & libc::O_ACCMODE != libc::O_RDONLY {
        return None;
    }
    show(path, flags & libc::O_CLOEXEC != 0)
}

/// The rare part of [`shown`].
#[cold]
#[inline(never)]
fn show(path: &CStr, closes_on_exec: bool) -> Option<isize> {
    let is_own = scratch::with(|membership: &mut [u8; 4096]| {
        let file = system::open(c"/proc/self/cgroup", libc::O_RDONLY);
        let len = system::read_at(file, membership, 0);
        system::close(file);
        is_own_limit(path.to_bytes(), &membership[..len])
    });
    if !is_own {
        return None;
    }
    let to_spilling = SHOWN_TO_SPILLING.load(Ordering::Relaxed);
    let limit = if to_spilling != 0 && spills() { to_spilling } else { SHOWN.load(Ordering::Relaxed) };
    if limit == 0 {
        return None;
    }
    match system::open(path, libc::O_RDONLY) {
        // The topmost group of version 2 has no limit, hence no such file.
        error if error == -(libc::ENOENT as isize) && has_directory(path) => {}
        error if error < 0 => return None,
        file => {
            let mut text = [0; 32];
            let len = system::read_at(file, &mut text, 0);
            system::close(file);
            // A file without a limit contains "max", or a number near 2^63.
            let is_lower = number(&text[..len]).is_some_and(|real| real <= limit);
            if is_lower && !IS_ASKED.load(Ordering::Relaxed) {
                return None;
            }
        }
    }
    let line = Line::new(format_args!("{limit}\n"));
    // On failure (a seccomp filter, no descriptor, a file size limit) the real file is opened.
    Some(system::file_of(c"uzswap's limit", line.bytes(), closes_on_exec)).filter(|file| *file >= 0)
}

/// Whether the program or a library of it is a database that spills.
fn spills() -> bool {
    let mut found = false;
    scratch::with(|text: &mut [u8; 4096]| mappings::for_each_line(text, |line| found |= is_spilling(line)));
    found
}

/// Whether the file of a line of /proc/self/maps is such a database's.
fn is_spilling(line: &[u8]) -> bool {
    let name = line.iter().rposition(|byte| *byte == b'/').map(|at| &line[at..]);
    name.is_some_and(|name| name.windows(SPILLING.len()).any(|part| part == SPILLING))
}

/// Whether the directory of a path's last component exists.
fn has_directory(path: &CStr) -> bool {
    let bytes = path.to_bytes();
    let len = bytes.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    scratch::with(|directory: &mut Text<PATH_BYTES_MAX>| {
        directory.set([&bytes[..len]]).is_some() && system::may_read(directory.as_c_str())
    })
}

/// Whether a path is this process's memory. Other ways to open it give read errors at evicted
/// pages.
fn is_own_memory(path: &[u8], process: i32) -> bool {
    let name = path.strip_prefix(PROCESSES).and_then(|path| path.strip_suffix(b"/mem"));
    name.is_some_and(|name| {
        name == b"self" || name == b"thread-self" || number(name) == u64::try_from(process).ok()
    })
}

/// Whether a path is a file by which a thread changes its profile (AppArmor, SELinux, Smack). The
/// kernel permits that to the thread itself only, whichever process the path names.
fn is_own_profile(path: &[u8]) -> bool {
    let name = path.strip_prefix(PROCESSES).and_then(|path| path.strip_suffix(b"/current"));
    name.is_some_and(|name| words(name).rev().take(2).any(|word| word == b"attr"))
}

/// Ends paging for a program that is about to open its own memory, or to change its profile.
fn note_own_files(path: &CStr, flags: c_int) {
    let path = path.to_bytes();
    if is_own_memory(path, system::process_id()) {
        fork::stop_for_good(end::OPENED);
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY && is_own_profile(path) {
        fork::leave_for_good(end::CONFINED);
    }
}

/// Continues open(2) or openat(2): with the C library's function, since threads can be cancelled
/// there, or with the system call if that is not known yet (an allocator may come here first).
unsafe fn open_onward(
    next: &Next<impl Copy>,
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> Onward {
    // SAFETY: the caller's path.
    let met = unsafe { met(path) }.inspect(|path| note_own_files(path, flags));
    let answer = match met.and_then(|path| shown(path, flags)) {
        Some(answer) => answer as c_long,
        None if next.is_found() => return Onward { function: next.find(), answer: 0 },
        None => {
            let arguments = [directory as usize, path as usize, flags as usize, mode as usize, 0, 0];
            // SAFETY: the caller's arguments.
            unsafe { raw_syscall(libc::SYS_openat, arguments) }
        }
    };
    Onward { function: null(), answer: set_errno(answer) as isize }
}

type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

/// Continues fopen(3).
unsafe fn fopen_onward(next: &Next<Fopen>, path: *const c_char, mode: *const c_char) -> Onward {
    // SAFETY: the caller's arguments.
    let bytes = if mode.is_null() { b"" } else { unsafe { CStr::from_ptr(mode) }.to_bytes() };
    let flags = match (bytes.first(), bytes.contains(&b'+'), bytes.contains(&b'e')) {
        (Some(b'r'), false, true) => libc::O_RDONLY | libc::O_CLOEXEC,
        (Some(b'r'), false, false) => libc::O_RDONLY,
        _ => libc::O_RDWR,
    };
    // SAFETY: the caller's path.
    let met = unsafe { met(path) }.inspect(|path| note_own_files(path, flags));
    let Some(file) = met.and_then(|path| shown(path, flags)) else {
        // musl has no fopen64 since 1.2.4, except for programs linked with one.
        let found = [next, &FOPEN].map(Next::find).into_iter().find(|function| !function.is_null());
        if found.is_none() {
            set_errno(-c_long::from(libc::ENOSYS));
        }
        return Onward { function: found.unwrap_or(null_mut()), answer: 0 };
    };
    // SAFETY: the caller's mode; the descriptor has no other owner.
    let stream = unsafe { libc::fdopen(file as c_int, mode) };
    if stream.is_null() {
        system::close(file);
    }
    Onward { function: null(), answer: stream as isize }
}

interposed! {
    // A variable argument that was not passed is not read.
    open = onward_open(path: *const c_char, flags: c_int, mode: u32)
        open_onward(&OPEN, libc::AT_FDCWD, path, flags, mode);
    open64 = onward_open64(path: *const c_char, flags: c_int, mode: u32)
        open_onward(&OPEN64, libc::AT_FDCWD, path, flags, mode);
    // As open(2): the relevant paths are absolute.
    openat = onward_openat(directory: c_int, path: *const c_char, flags: c_int, mode: u32)
        open_onward(&OPENAT, directory, path, flags, mode);
    openat64 = onward_openat64(directory: c_int, path: *const c_char, flags: c_int, mode: u32)
        open_onward(&OPENAT64, directory, path, flags, mode);
    fopen = onward_fopen(path: *const c_char, mode: *const c_char) fopen_onward(&FOPEN, path, mode);
    fopen64 = onward_fopen64(path: *const c_char, mode: *const c_char) fopen_onward(&FOPEN64, path, mode);
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorway::PAGE_SIZE;

    #[test]
    fn the_own_groups_files_are_known() {
        let v2 = b"0::/user.slice/job.scope\n";
        let yes = |path: &[u8], membership: &[u8]| assert!(is_own_limit(path, membership), "{path:?}");
        let no = |path: &[u8], membership: &[u8]| assert!(!is_own_limit(path, membership), "{path:?}");
        yes(b"/sys/fs/cgroup/user.slice/job.scope/memory.max", v2);
        yes(b"/sys/fs/cgroup//user.slice/job.scope/memory.high", v2);
        yes(b"/sys/fs/cgroup/unified/user.slice/job.scope/memory.max", v2);
        yes(b"/sys/fs/cgroup/memory.max", v2);
        yes(b"/sys/fs/cgroup//memory.max", b"0::/\n");
        no(b"/sys/fs/cgroup/user.slice/memory.max", v2);
        no(b"/sys/fs/cgroup/user.slice/other.scope/memory.max", v2);
        no(b"/sys/fs/cgroup/user.slice/job.scope/memory.low", v2);
        no(b"/sys/fs/cgroup/memory/memory.limit_in_bytes", v2);
        no(b"/sys/fs/cgroup/memory.max", b"");
        let v1 = b"3:cpu,cpuacct:/a\n4:blkio,memory:/docker/17\n1:name=systemd:/\n";
        yes(b"/sys/fs/cgroup/memory/docker/17/memory.limit_in_bytes", v1);
        yes(b"/sys/fs/cgroup/memory/memory.limit_in_bytes", v1);
        no(b"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", v1);
        no(b"/sys/fs/cgroup/memory/docker/17/memory.max", v1);
        no(b"/sys/fs/cgroup/memory/docker/17/memory.limit_in_bytes", b"4:memory");
    }

    #[test]
    fn a_database_that_spills_is_known_by_its_file() {
        for name in ["duckdb", "_duckdb.cpython-311.so", "libduckdb_java7.so", "duckdb.node"] {
            assert!(is_spilling(format!("1000-2000 r-xp 0 08:01 7   /opt/{name}").as_bytes()), "{name}");
        }
        for line in ["1000-2000 r-xp 0 08:01 7   /opt/duckdb/libc.so", "1000-2000 rw-p 0 0:0 0 duckdb", ""] {
            assert!(!is_spilling(line.as_bytes()), "{line}");
        }
        assert!(!spills());
    }

    #[test]
    fn the_own_memory_is_known() {
        for path in [&b"/proc/self/mem"[..], b"/proc/thread-self/mem", b"/proc/77/mem"] {
            assert!(is_own_memory(path, 77), "{path:?}");
        }
        for path in [&b"/proc/78/mem"[..], b"/proc/self/maps", b"/proc/mem", b"/proc//mem", b"mem", b""] {
            assert!(!is_own_memory(path, 77), "{path:?}");
        }
    }

    #[test]
    fn the_files_that_change_a_profile_are_known() {
        for path in ["self/attr/current", "7/attr/apparmor/current", "self/task/7/attr/current"] {
            assert!(is_own_profile(format!("/proc/{path}").as_bytes()), "{path:?}");
        }
        for path in ["self/attr/exec", "self/current", "attr/self/task/current", "self/attr/currents"] {
            assert!(!is_own_profile(format!("/proc/{path}").as_bytes()), "{path:?}");
        }
    }

    #[test]
    fn numbers_and_directories() {
        assert_eq!(number(b"1073741824\n"), Some(1 << 30));
        assert_eq!(number(b"9223372036854771712"), Some(9_223_372_036_854_771_712));
        assert!([&b"max\n"[..], b"", b"\n", b"-1\n", b"1 2", b"99999999999999999999"]
            .iter()
            .all(|text| number(text).is_none()));
        assert!(has_directory(c"/proc/no such file") && !has_directory(c"/no such directory/file"));
        let long = std::ffi::CString::new([b'/'; 3000]).unwrap();
        assert!(!has_directory(&long));
    }

    #[test]
    fn a_c_library_without_a_name_for_large_files_has_the_other() {
        // SAFETY: there is no such function; terminated strings.
        let onward = unsafe {
            let missing = Next::new("uzswap has no such function\0");
            fopen_onward(&missing, c"/dev/null".as_ptr(), c"r".as_ptr())
        };
        assert!(!onward.function.is_null() && onward.function == FOPEN.find().cast_const());
    }

    #[test]
    fn a_shown_limit_can_be_read() {
        let file = system::file_of(c"test", b"123\n", true);
        let mut text = [0; 8];
        assert_eq!(system::read_at(file, &mut text, 0), 4);
        assert_eq!(number(&text[..4]), Some(123));
        system::close(file);
    }

    #[test]
    fn invalid_addresses_are_left_to_the_kernel() {
        let before = SHOWN.swap(1 << 40, Ordering::Relaxed);
        for number in [0, 1, 4095, 0x10000, usize::MAX, usize::MAX - 4095, isize::MIN as usize] {
            // SAFETY: no addresses.
            assert_eq!(unsafe { met(number as *const c_char) }, None, "{number:#x}");
        }
        // SAFETY: terminated strings, and one whose end is in an unreadable page.
        unsafe {
            assert_eq!(met(c"/proc/self/mem".as_ptr()), Some(c"/proc/self/mem"));
            assert_eq!((met(c"/proc".as_ptr()), met(c"/sys/fs/cgroup".as_ptr())), (None, None));
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(null_mut(), 2 * PAGE_SIZE, rights, flags, -1, 0).cast::<c_char>();
            libc::mprotect(at.add(PAGE_SIZE).cast(), PAGE_SIZE, libc::PROT_NONE);
            let path = at.add(PAGE_SIZE - 7);
            path.cast::<[u8; 7]>().write(*b"/proc/s");
            assert_eq!(met(path), None);
            path.add(6).write(0);
            assert_eq!(met(path), Some(c"/proc/"));
        }
        SHOWN.store(before, Ordering::Relaxed);
    }
}
