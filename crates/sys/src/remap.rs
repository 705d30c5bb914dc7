//! Moving pages between mappings of one process with mremap(2) and `MREMAP_DONTUNMAP` (Linux 5.7):
//! for kernels that have no `UFFDIO_MOVE`.
//!
//! The pages of a range go to another address in one step under the kernel's lock on the address
//! space; the range stays mapped, with nothing in it, and stays registered with its userfaultfd.
//! What a mapping has beside pages (rights, protection key, advice) goes along to the new address.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::errno;

/// Why a range did not move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The range is not, or not all of it, mapped, or not in one mapping (Linux 6.17 also moves
    /// several).
    NotOneMapping,
    /// Too many mappings, or no memory.
    NoMemory,
    /// Mappings of this kind cannot be moved.
    Invalid,
}

/// Moves the pages of `[from, from + len)` to `to`, where nothing is left of what was mapped
/// before. `from` stays mapped and empty. After a refusal nothing has moved, but nothing may be
/// mapped at `to` any more: see [`occupy`].
///
/// If the range is registered with a userfaultfd that reports mremap(), the call returns once that
/// event has been read, and `to` is registered with the same one.
///
/// # Errors
/// [`Refusal`].
///
/// # Safety
/// `to` is whole pages owned by the caller and holds nothing that is needed. The disappearance of
/// the bytes at `from` must be expected there.
pub unsafe fn move_out(from: usize, to: usize, len: usize) -> Result<(), Refusal> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller vouches for both ranges.
    let at = unsafe { libc::mremap(from as *mut libc::c_void, len, len, flags, to as *mut libc::c_void) };
    if at != libc::MAP_FAILED {
        assert_eq!(at as usize, to, "mremap to a fixed address");
        return Ok(());
    }
    Err(match errno() {
        libc::EFAULT => Refusal::NotOneMapping,
        libc::ENOMEM | libc::EAGAIN => Refusal::NoMemory,
        _ => Refusal::Invalid,
    })
}

/// Maps fresh memory at `[at, at + len)` if nothing is mapped there; false when something is.
///
/// # Safety
/// The range belongs to the caller, or to a thread that has mapped something there since: that is
/// not touched.
pub unsafe fn occupy(at: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: NOREPLACE leaves existing mappings alone.
    let got = unsafe { libc::mmap(at as *mut libc::c_void, len, rights, flags, -1, 0) };
    got as usize == at
}

/// Replaces all mappings in `[at, at + len)` by fresh memory.
///
/// # Safety
/// The range is whole pages owned by the caller and holds nothing that is needed.
pub unsafe fn renew(at: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller owns the range.
    let got = unsafe { libc::mmap(at as *mut libc::c_void, len, rights, flags, -1, 0) };
    got as usize == at
}

/// Whether the program has locked pages of `[at, at + len)` into memory. As a side effect the
/// kernel takes the pages for cold.
pub fn is_locked(at: usize, len: usize) -> bool {
    // SAFETY: the advice changes no byte, of any owner. It is refused for locked and for special
    // mappings.
    let answer = unsafe { libc::madvise(at as *mut libc::c_void, len, libc::MADV_COLD) };
    answer != 0 && errno() == libc::EINVAL
}

/// Frees a range that came from [`move_out`] of the rights, the protection key and the advice that
/// came along with it: pages of a mapping that may only be read arrive in one that may only be
/// read.
///
/// # Safety
/// The range is whole pages owned by the caller.
pub unsafe fn make_plain(at: usize, len: usize) {
    static HAS_KEYS: AtomicBool = AtomicBool::new(true);
    let start = at as *mut libc::c_void;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let mut answer = -1;
    if HAS_KEYS.load(Ordering::Relaxed) {
        // SAFETY: the caller owns the range; key 0 is everybody's.
        answer = unsafe { libc::syscall(libc::SYS_pkey_mprotect, start, len, rights, 0) };
    }
    if answer != 0 {
        if matches!(errno(), libc::EINVAL | libc::ENOSYS) {
            HAS_KEYS.store(false, Ordering::Relaxed);
        }
        // A processor without keys refuses key 0 too, but not for a range of no length: so this is
        // how one is known. By system call, because programs may have an mprotect() of their own.
        // SAFETY: as above.
        answer = unsafe { libc::syscall(libc::SYS_mprotect, start, len, rights) };
    }
    assert_eq!(answer, 0, "one's own pages can be read and written");
    // SAFETY: as above; the advice changes no content.
    unsafe { libc::madvise(start, len, libc::MADV_NOHUGEPAGE) };
}

/// Tries it. Returns whether a refused move leaves its target mapped (Linux 6.17) or not (before):
/// that is known by the version, because it cannot be tried beside threads that map memory where
/// there is a gap for a moment.
///
/// # Errors
/// The kernel's: it is older, or a filter forbids mremap().
pub fn probe() -> io::Result<bool> {
    let len = crate::PAGE_SIZE;
    let both = crate::memory::map(2 * len)?.as_ptr() as usize;
    let (from, to) = (both, both + len);
    // SAFETY: the mapping was made above, two pages long, and is used here alone.
    unsafe {
        *(from as *mut u8) = 1;
        let moved = move_out(from, to, len);
        let error = io::Error::last_os_error();
        let arrived = moved.is_ok() && *(to as *const u8) == 1 && *(from as *const u8) == 0;
        // After a refusal the target may be another thread's.
        libc::munmap(both as *mut libc::c_void, if moved.is_ok() { 2 * len } else { len });
        match (moved, arrived) {
            (Err(_), _) => Err(error),
            (Ok(()), true) => Ok(crate::kernel::version() >= (6, 17)),
            (Ok(()), false) => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use crate::userfaultfd::{feature, Message, Userfaultfd, MESSAGES_MAX, MISSING};
    use crate::PAGE_SIZE;

    fn filled(pages: usize) -> usize {
        let at = memory::map(pages * PAGE_SIZE).unwrap().as_ptr() as usize;
        for page in 0..pages {
            // SAFETY: inside the mapping made above.
            unsafe { *((at + page * PAGE_SIZE) as *mut usize) = page + 1 };
        }
        at
    }

    fn word(at: usize) -> usize {
        // SAFETY: tests pass addresses of their own mappings.
        unsafe { *(at as *const usize) }
    }

    #[test]
    fn pages_go_and_the_range_stays() {
        let (from, to) = (filled(8), filled(8));
        // SAFETY: both mappings are this test's.
        unsafe { move_out(from + 2 * PAGE_SIZE, to + 2 * PAGE_SIZE, 4 * PAGE_SIZE).unwrap() };
        let words = |at: usize| (0..8).map(|page| word(at + page * PAGE_SIZE)).collect::<Vec<_>>();
        assert_eq!(words(from), [1, 2, 0, 0, 0, 0, 7, 8]);
        assert_eq!(words(to), [1, 2, 3, 4, 5, 6, 7, 8]);
        // SAFETY: as above.
        unsafe { make_plain(to, 8 * PAGE_SIZE) };
        assert_eq!(words(to), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_range_that_is_gone_is_refused_and_the_target_can_be_had_back() {
        let (from, to) = (filled(4), filled(4));
        // SAFETY: this test's mapping, not used any more.
        unsafe { libc::munmap(from as *mut libc::c_void, 4 * PAGE_SIZE) };
        // SAFETY: both ranges are this test's.
        let refused = unsafe { move_out(from, to, 4 * PAGE_SIZE) };
        assert_eq!(refused, Err(Refusal::NotOneMapping));
        let keeps_target = probe().unwrap();
        // SAFETY: the target is this test's.
        assert_eq!(unsafe { occupy(to, 4 * PAGE_SIZE) }, !keeps_target);
        assert_eq!(word(to), usize::from(keeps_target));
        // SAFETY: as above.
        assert!(!unsafe { occupy(to, 4 * PAGE_SIZE) });
    }

    #[test]
    fn pages_that_may_only_be_read_arrive_where_one_may_write() {
        let (from, to) = (filled(4), memory::map(4 * PAGE_SIZE).unwrap().as_ptr() as usize);
        // SAFETY: both mappings are this test's.
        unsafe {
            assert_eq!(libc::mprotect(from as *mut libc::c_void, 4 * PAGE_SIZE, libc::PROT_READ), 0);
            move_out(from, to, 4 * PAGE_SIZE).unwrap();
            make_plain(to, 4 * PAGE_SIZE);
            // A page that came, and one that is missing by now.
            libc::madvise((to + PAGE_SIZE) as *mut libc::c_void, PAGE_SIZE, libc::MADV_DONTNEED);
            for page in 0..2 {
                ((to + page * PAGE_SIZE) as *mut usize).write_volatile(7);
            }
        }
        assert_eq!([word(to), word(to + PAGE_SIZE)], [7, 7]);
    }

    #[test]
    fn locked_memory_is_known() {
        if crate::is_emulated() {
            return;
        }
        let at = filled(4);
        assert!(!is_locked(at, 4 * PAGE_SIZE));
        // SAFETY: this test's mapping.
        if unsafe { libc::mlock(at as *const libc::c_void, PAGE_SIZE) } != 0 {
            testkit::skip!("mlock", "mlock is not permitted");
            return;
        }
        assert!(is_locked(at, PAGE_SIZE) && is_locked(at, 4 * PAGE_SIZE));
        assert!(!is_locked(at + 2 * PAGE_SIZE, PAGE_SIZE));
    }

    /// What eviction builds on: the event comes when the pages have moved, the range stays
    /// registered, and the target is registered too until it is unregistered.
    #[test]
    fn a_registered_range_stays_registered() {
        let uffd = match Userfaultfd::open(feature::EVENT_REMAP | feature::EVENT_UNMAP) {
            Ok(uffd) => uffd,
            Err(error) => {
                testkit::skip!("kernel", "{error}");
                return;
            }
        };
        let (from, to, len) = (filled(4), filled(4), 4 * PAGE_SIZE);
        uffd.register(from, len, MISSING).unwrap();
        let mut messages = [Message::Unmap { start: 0, end: 0 }; MESSAGES_MAX];
        std::thread::scope(|scope| {
            // SAFETY: both mappings are this test's.
            scope.spawn(|| unsafe { move_out(from, to, len).unwrap() });
            assert!(uffd.wait(10_000));
            assert_eq!(uffd.read(&mut messages, MESSAGES_MAX), 1);
        });
        assert_eq!(messages[0], Message::Remap { from, to, len });
        uffd.unregister(to, len).unwrap();
        assert_eq!((word(to), word(to + 3 * PAGE_SIZE)), (1, 4));
        let progress = uffd.zero(from, PAGE_SIZE);
        assert_eq!((progress.done, progress.stop), (PAGE_SIZE, None), "missing, and still ours to fill");
        assert!(uffd.zero(to, PAGE_SIZE).stop.is_some(), "not ours any more");
        uffd.close();
    }
}
