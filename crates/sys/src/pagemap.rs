//! Finds the present pages of a range: `PAGEMAP_SCAN` (Linux 6.7).

use std::io;

use crate::privileged::{self, PrivilegedFile};
use crate::{errno, PAGE_SIZE};

const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const PFN_ZERO: u64 = 1 << 5;
/// Not armed, in a mapping that supports it ([`crate::userfaultfd::Userfaultfd::arm`], Linux 7.3).
const ACCESSED: u64 = 1 << 9;

/// Present pages after which a look ends: the program's mmap() waits for a look. A look at all of
/// 750 MiB took 8 ms, on a busy machine 35 ms (2-CPU virtual machine, November 2026).
pub const LOOK_PAGES: usize = 2048;

/// `PAGEMAP_SCAN`: _IOWR('f', 16, struct pm_scan_arg).
const PAGEMAP_SCAN: libc::c_ulong =
    3 << 30 | (std::mem::size_of::<ScanArgument>() as u64) << 16 | 0x66 << 8 | 16;

/// A run of pages of one kind, as the kernel reports it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    categories: u64,
}

impl Run {
    /// Whether the pages were used since they were armed, or never armed; of [`Pagemap::uses`].
    pub fn is_used(&self) -> bool {
        self.categories & ACCESSED != 0
    }

    /// A run of used or unused pages, for simulations.
    pub fn of_use(start: usize, end: usize, used: bool) -> Self {
        let categories = if used { PRESENT | ACCESSED } else { PRESENT };
        Run { start: start as u64, end: end as u64, categories }
    }
}

#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}
const _: () = assert!(std::mem::size_of::<ScanArgument>() == 96 && std::mem::size_of::<Run>() == 24);

/// An open pagemap of the calling process.
#[derive(Debug, Clone, Copy)]
pub struct Pagemap {
    descriptor: i32,
}

impl Pagemap {
    /// Opens the calling process's own map.
    ///
    /// # Errors
    /// If /proc is not mounted, or the kernel has no `PAGEMAP_SCAN`.
    pub fn open() -> io::Result<Self> {
        // SAFETY: a constant, terminated path.
        let own =
            unsafe { libc::open(c"/proc/thread-self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        let error = io::Error::last_os_error();
        let opened = if own >= 0 { Some(own) } else { privileged::open(PrivilegedFile::Pagemap) };
        let descriptor = opened.ok_or(error)?;
        let map = Pagemap { descriptor };
        match map.scan(PAGE_SIZE, 2 * PAGE_SIZE, &mut [Run::default()], PRESENT, PRESENT) {
            Ok(_) => Ok(map),
            Err(code) => {
                map.close();
                Err(io::Error::from_raw_os_error(code))
            }
        }
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

    /// Finds runs of present pages (without the shared zero page) in `[start, end)`, mappings of
    /// anonymous memory; up to [`LOOK_PAGES`] pages. Returns the number of runs, and the address up
    /// to which the range was scanned.
    pub fn present(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize) {
        self.look(start, end, runs, PRESENT)
    }

    /// As [`Self::present`], with separate runs for used and unused pages ([`Run::is_used`]). For
    /// ranges registered as [`crate::userfaultfd::TRACKED`], on Linux 7.3: elsewhere no page counts
    /// as used.
    pub fn uses(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize) {
        self.scan(start, end, runs, PRESENT, PRESENT | ACCESSED).unwrap_or((0, end))
    }

    /// As [`Self::present`], including pages in the kernel's swap or under migration.
    pub fn mapped_runs(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize) {
        self.look(start, end, runs, PRESENT | SWAPPED)
    }

    fn look(&self, start: usize, end: usize, runs: &mut [Run], kinds: u64) -> (usize, usize) {
        self.scan(start, end, runs, kinds, PRESENT).unwrap_or((0, end))
    }

    /// Bits of the mapped pages among the first `count` from `start`, at most 64: includes the
    /// shared zero page, excludes guard regions.
    pub fn mapped(&self, start: usize, count: usize) -> u64 {
        // Bit 63: present. Bit 62: swapped, migrating or a guard region, which has bit 58.
        self.entries(start, count, |entry| entry >> 62 != 0 && entry >> 58 & 1 == 0)
    }

    /// Bits of the pages among the first `count` from `start`, at most 64, that other processes
    /// have mapped, too, since a fork.
    pub fn shared(&self, start: usize, count: usize) -> u64 {
        // Bit 63: present. Bit 56: mapped once.
        self.entries(start, count, |entry| entry >> 63 == 1 && entry >> 56 & 1 == 0)
    }

    fn entries(&self, start: usize, count: usize, is_wanted: impl Fn(u64) -> bool) -> u64 {
        let mut entries = [0u64; 64];
        let bytes = count.min(entries.len()) * 8;
        let offset = (start / PAGE_SIZE * 8) as libc::off_t;
        // SAFETY: `entries` has room for `bytes`.
        let read = || unsafe { libc::pread(self.descriptor, entries.as_mut_ptr().cast(), bytes, offset) };
        // Pages that have moved would count as lost. A short read ends with the address space.
        insist(read).unwrap_or_else(|code| panic!("the pagemap cannot be read (error {code})"));
        let wanted = entries.iter().map(|entry| u64::from(is_wanted(*entry)));
        wanted.enumerate().fold(0, |mask, (index, bit)| mask | bit << index)
    }

    fn scan(
        &self,
        start: usize,
        end: usize,
        runs: &mut [Run],
        kinds: u64,
        told: u64,
    ) -> Result<(usize, usize), i32> {
        let mut argument = ScanArgument {
            size: std::mem::size_of::<ScanArgument>() as u64,
            flags: 0,
            start: start as u64,
            end: end as u64,
            walk_end: 0,
            vec: runs.as_mut_ptr() as u64,
            vec_len: runs.len() as u64,
            max_pages: LOOK_PAGES as u64,
            // Not PAGE_IS_FILE: it would fetch each page's descriptor, which is in no cache.
            category_inverted: PFN_ZERO,
            category_mask: PFN_ZERO,
            category_anyof_mask: kinds,
            return_mask: told,
        };
        // SAFETY: the vector has the given length.
        let found = insist(|| unsafe { libc::ioctl(self.descriptor, PAGEMAP_SCAN, &mut argument) as isize })?;
        Ok((found as usize, argument.walk_end as usize))
    }
}

/// Repeats a call for as long as it fails for want of memory or because it was interrupted.
fn insist(mut call: impl FnMut() -> isize) -> Result<isize, i32> {
    loop {
        match call() {
            found @ 0.. => return Ok(found),
            _ if matches!(errno(), libc::ENOMEM | libc::EINTR | libc::EAGAIN) => std::thread::yield_now(),
            _ => return Err(errno()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a failure of the kernel counted as "nothing is mapped".
    #[test]
    fn want_of_memory_is_no_answer() {
        let mut errors = [libc::ENOMEM, libc::EINTR, libc::EBADF, libc::EPERM].into_iter();
        let mut fail = || {
            // SAFETY: this thread's errno.
            unsafe { *libc::__errno_location() = errors.next().unwrap() };
            -1
        };
        assert_eq!(insist(&mut fail), Err(libc::EBADF));
        assert_eq!(insist(|| 7), Ok(7));
        assert_eq!(insist(fail), Err(libc::EPERM));
    }

    #[test]
    fn touched_pages_are_found() {
        let Ok(map) = Pagemap::open() else {
            return testkit::skip!("kernel", "no PAGEMAP_SCAN before Linux 6.7");
        };
        let at = crate::memory::map(64 * PAGE_SIZE).unwrap();
        for page in [3, 4, 5, 20, 63] {
            // SAFETY: inside the mapping made above.
            unsafe { at.as_ptr().add(page * PAGE_SIZE).write_volatile(1) };
        }
        let base = at.as_ptr() as usize;
        let mut runs = [Run::default(); 8];
        let (count, walked) = map.present(base, base + 64 * PAGE_SIZE, &mut runs);
        let pages =
            |run: &Run| ((run.start as usize - base) / PAGE_SIZE, (run.end as usize - base) / PAGE_SIZE);
        let found: Vec<_> = runs[..count].iter().map(pages).collect();
        assert_eq!(found, [(3, 6), (20, 21), (63, 64)]);
        assert_eq!(walked, base + 64 * PAGE_SIZE);
        let (count, walked) = map.present(base, base + 64 * PAGE_SIZE, &mut runs[..1]);
        assert!(count == 1 && walked <= base + 20 * PAGE_SIZE);
        assert_eq!(map.mapped(base, 64), 0x8000_0000_0010_0038);
        assert_eq!(map.mapped(base + 3 * PAGE_SIZE, 2), 3);
        assert_eq!(map.mapped(crate::memory::USER_END, 16), 0, "beyond the address space");

        // One look at many pages ends early; the next begins there.
        let pages = LOOK_PAGES + 100;
        let base = crate::memory::map(pages * PAGE_SIZE).unwrap().as_ptr() as usize;
        for page in 0..pages {
            // SAFETY: inside the mapping made above.
            unsafe { ((base + page * PAGE_SIZE) as *mut u8).write_volatile(1) };
        }
        let (middle, end) = (base + LOOK_PAGES * PAGE_SIZE, base + pages * PAGE_SIZE);
        for (start, until) in [(base, middle), (middle, end)] {
            assert_eq!(map.present(start, end, &mut runs), (1, until));
            assert_eq!((runs[0].start, runs[0].end), (start as u64, until as u64));
        }
    }
}
