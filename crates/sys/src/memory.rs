//! Private anonymous mappings.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use doorway::placement;

use crate::{arena, done, errno, shared, PAGE_SIZE};

/// Bits of a user space address that the kernel hands out by default.
pub const ADDRESS_BITS: usize = if cfg!(target_arch = "aarch64") { 48 } else { 47 };
/// End of the user address space.
pub const USER_END: usize = 1 << ADDRESS_BITS;

/// Maps `len` bytes of private, readable and writable zeroes. Nothing is resident until touched.
///
/// # Errors
/// ENOMEM if the address space or RLIMIT_AS is exhausted.
pub fn map(len: usize) -> io::Result<NonNull<u8>> {
    map_with(len, libc::PROT_READ | libc::PROT_WRITE)
}

/// Reserves `len` bytes of inaccessible address space.
///
/// # Errors
/// ENOMEM if the address space or RLIMIT_AS is exhausted.
pub fn reserve(len: usize) -> io::Result<NonNull<u8>> {
    map_with(len, libc::PROT_NONE)
}

/// As [`reserve`], but apart from other memory ([`doorway::placement`]), and the limit on data
/// (RLIMIT_DATA) does not count the memory once it is accessible: the kernel takes it for a stack.
/// It cannot grow, since inaccessible memory of another kind lies below it.
///
/// # Errors
/// ENOMEM if the address space or RLIMIT_AS is exhausted.
pub fn reserve_uncounted(len: usize) -> io::Result<NonNull<u8>> {
    let release = |at: usize, len| {
        // SAFETY: a part of the reservation made just before, not null.
        unsafe { unmap(NonNull::new_unchecked(at as *mut u8), len) };
    };
    let below =
        placement::reserve(len + PAGE_SIZE, |len| reserve(len).map(|at| at.as_ptr().addr()), release)?;
    let start = below + PAGE_SIZE;
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_GROWSDOWN | libc::MAP_FIXED;
    // SAFETY: all but the lowest page of the reservation above.
    let at = unsafe { libc::mmap(start as *mut libc::c_void, len, libc::PROT_NONE, flags, -1, 0) };
    mapped(at).inspect_err(|_| {
        release(below, len + PAGE_SIZE);
    })
}

fn map_with(len: usize, prot: libc::c_int) -> io::Result<NonNull<u8>> {
    assert!(len > 0 && len.is_multiple_of(PAGE_SIZE), "length {len} is not whole pages");
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    mapped(unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) })
}

/// The result of mmap().
pub(crate) fn mapped(at: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    match at {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        at => Ok(NonNull::new(at.cast()).expect("the kernel does not map page zero")),
    }
}

/// Maps `len` zeroed bytes that other processes find by name, as `/memfd:NAME` in this one's list
/// of mappings. Forks share them. No descriptor stays open.
///
/// # Errors
/// Those of memfd_create, ftruncate and mmap.
pub fn map_named(name: &std::ffi::CStr, len: usize) -> io::Result<NonNull<u8>> {
    assert!(len > 0 && len.is_multiple_of(PAGE_SIZE), "length {len} is not whole pages");
    let file = shared::open(name)?;
    file.set_len(len as u64)?;
    shared::map(file.as_fd(), len)
}

/// Makes reserved memory readable and writable.
///
/// # Safety
/// `[at, at + len)` is whole pages of a mapping that the caller owns.
///
/// # Errors
/// ENOMEM if the kernel cannot split the mapping.
pub unsafe fn make_accessible(at: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: the caller owns the range.
    done(unsafe { libc::mprotect(at.as_ptr().cast(), len, libc::PROT_READ | libc::PROT_WRITE) })
}

/// Makes memory executable as well as readable and writable.
///
/// # Safety
/// As [`make_accessible`].
///
/// # Errors
/// EACCES if the system forbids memory that is both writable and executable.
pub unsafe fn allow_execution(at: NonNull<u8>, len: usize) -> io::Result<()> {
    let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: the caller owns the range.
    done(unsafe { libc::mprotect(at.as_ptr().cast(), len, rights) })
}

/// Makes memory inaccessible; it keeps its content.
///
/// # Safety
/// `[at, at + len)` is whole pages of a mapping that the caller owns and does not touch until it is
/// accessible again.
///
/// # Errors
/// ENOMEM if the kernel cannot split the mapping.
pub unsafe fn make_inaccessible(at: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: the caller owns the range.
    done(unsafe { libc::mprotect(at.as_ptr().cast(), len, libc::PROT_NONE) })
}

/// Sets whether forked children have a copy of the range; without one, their accesses raise
/// SIGSEGV.
///
/// # Safety
/// `[at, at + len)` is whole pages of a mapping that the caller owns.
///
/// # Errors
/// ENOMEM if the kernel cannot split the mapping.
pub unsafe fn inherit(at: NonNull<u8>, len: usize, inherits: bool) -> io::Result<()> {
    let advice = if inherits { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
    // SAFETY: the caller owns the range; the advice changes no content.
    done(unsafe { libc::madvise(at.as_ptr().cast(), len, advice) })
}

/// Unmaps a mapping made here.
///
/// # Safety
/// `[at, at + len)` is whole pages owned by the caller and never used again.
pub unsafe fn unmap(at: NonNull<u8>, len: usize) {
    // SAFETY: the caller owns the range.
    let result = unsafe { libc::munmap(at.as_ptr().cast(), len) };
    assert_eq!(result, 0, "munmap of an owned range");
}

/// Replaces memory by empty memory, without a moment in which nothing is mapped. Where a
/// userfaultfd reports the removal, returns once it has been read.
///
/// # Safety
/// The range is whole pages whose bytes are not needed.
///
/// # Errors
/// ENOMEM if there are too many mappings.
pub unsafe fn map_again(at: usize, len: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the caller's promise.
    let at = unsafe { libc::mmap(at as *mut _, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    mapped(at).map(|_| ())
}

/// Maps the start of a file over memory, read-only and at once resident, shared by all processes
/// that map it.
///
/// # Safety
/// `[at, at + len)`, rounded up to pages, is the caller's, and nothing in it is needed. The file is
/// as long, and sealed.
///
/// # Errors
/// Those of mmap(2).
pub unsafe fn map_over(at: NonNull<u8>, len: usize, file: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
    let (to, file) = (at.as_ptr().cast(), file.as_raw_fd());
    // SAFETY: the caller's promise.
    mapped(unsafe { libc::mmap(to, len, libc::PROT_READ, flags, file, 0) }).map(|_| ())
}

/// Replaces memory of the arena, over which something else was mapped, by empty memory of the kind
/// that the arena has.
///
/// # Safety
/// `[at, at + len)` is whole pages that the caller owns and does not need.
///
/// # Errors
/// ENOMEM if there are too many mappings.
pub unsafe fn empty_again(at: NonNull<u8>, len: usize) -> io::Result<()> {
    let start = at.as_ptr() as usize;
    let uncounted = if arena::range().contains(&start) { libc::MAP_GROWSDOWN } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED | uncounted;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's promise.
    mapped(unsafe { libc::mmap(at.as_ptr().cast(), len, rights, flags, -1, 0) })?;
    // SAFETY: just mapped.
    unsafe { keep_small_pages(at, len) };
    Ok(())
}

/// Gives the pages of `[at, at + len)` back to the system; the range then reads as zeroes. Pages of
/// a stocked arena stay.
///
/// # Safety
/// The range is whole pages that the caller owns and does not need.
pub unsafe fn discard(at: NonNull<u8>, len: usize) {
    if arena::is_stocked(at.as_ptr() as usize) {
        // SAFETY: the caller owns the range, which is mapped and writable.
        unsafe { at.as_ptr().write_bytes(0, len) };
        return;
    }
    // SAFETY: the caller owns the range.
    let mut result = unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_DONTNEED) };
    if result != 0 && errno() == libc::EINVAL {
        // The memory is locked, by mlockall() of the host process. Linux 5.18.
        const MADV_DONTNEED_LOCKED: libc::c_int = 24;
        // SAFETY: as above.
        result = unsafe { libc::madvise(at.as_ptr().cast(), len, MADV_DONTNEED_LOCKED) };
    }
    assert_eq!(result, 0, "madvise(MADV_DONTNEED) of an owned range");
}

/// Gives whole pages of unused memory back to the system where possible. Locked pages stay, so that
/// they need not be allocated again.
pub fn give_back(memory: &mut [MaybeUninit<u8>]) {
    let start = memory.as_ptr() as usize;
    let first = start.next_multiple_of(PAGE_SIZE) - start;
    let Some(memory) = memory.get_mut(first..) else { return };
    let len = memory.len() & !(PAGE_SIZE - 1);
    if len > 0 {
        // SAFETY: whole borrowed pages, which may hold anything afterwards; errors change nothing.
        unsafe { libc::madvise(memory.as_mut_ptr().cast(), len, libc::MADV_DONTNEED) };
    }
}

/// Allocates all pages of the range and locks them in memory.
///
/// # Safety
/// `[at, at + len)` is whole pages of a mapping that the caller owns.
///
/// # Errors
/// ENOMEM without memory or over RLIMIT_MEMLOCK, EPERM if locking is forbidden.
pub unsafe fn lock(at: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: the caller owns the range; locking changes no content.
    done(unsafe { libc::mlock(at.as_ptr().cast(), len) })
}

/// Asks for 2 MiB pages where the range has room. Only advice.
///
/// # Safety
/// `[at, at + len)` is whole pages of a mapping that the caller owns.
pub unsafe fn prefer_huge_pages(at: NonNull<u8>, len: usize) {
    // SAFETY: the caller owns the range; the advice changes no content.
    unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
}

/// Keeps the range in 4 KiB pages: with transparent huge pages one touched byte makes 2 MiB
/// resident. Only advice: a kernel without huge pages returns an error, which is ignored.
///
/// # Safety
/// `[at, at + len)` is whole pages of a mapping that the caller owns.
pub unsafe fn keep_small_pages(at: NonNull<u8>, len: usize) {
    if arena::is_stocked(at.as_ptr() as usize) {
        return;
    }
    // SAFETY: the caller owns the range; the advice changes no content.
    unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_NOHUGEPAGE) };
}

/// Asks that pages of the range, when first touched, come from NUMA node `node` if it has free
/// memory. Only advice: machines without such a node ignore it.
///
/// # Safety
/// `[at, at + len)` is whole pages of a mapping that the caller owns.
pub unsafe fn prefer_node(at: NonNull<u8>, len: usize, node: u8) {
    if arena::is_stocked(at.as_ptr() as usize) {
        return;
    }
    let mut nodes = [0u64; 4];
    nodes[usize::from(node) / 64] = 1 << (node % 64);
    const MPOL_PREFERRED: libc::c_long = 1;
    const MASK_BITS: usize = 257;
    // SAFETY: the caller owns the range; the mask outlives the call and has MASK_BITS bits (the
    // kernel reads one fewer).
    unsafe { libc::syscall(libc::SYS_mbind, at.as_ptr(), len, MPOL_PREFERRED, nodes.as_ptr(), MASK_BITS, 0) };
}

/// Asks the kernel for private copies of pages shared with a forked relative, as if each had been
/// written to, without writing. Changes no content; failed pages stay as they are.
pub fn unshare(start: usize, len: usize) {
    populate(start, len);
}

/// Makes the kernel bring in the pages of a range in order, as if each had been read. Changes no
/// content. Linux 5.14; does nothing before, and stops at the first failed page.
pub fn fetch(start: usize, len: usize) {
    const MADV_POPULATE_READ: libc::c_int = 22;
    // SAFETY: populating changes no byte, of any owner.
    unsafe { libc::madvise(start as *mut libc::c_void, len, MADV_POPULATE_READ) };
}

/// Makes the kernel allocate pages that will be written, with one call instead of a fault per page.
/// Changes no content. Failed pages, and all pages on Linux before 5.14, are allocated when
/// written.
pub fn populate(start: usize, len: usize) {
    if arena::is_stocked(start) {
        return;
    }
    const MADV_POPULATE_WRITE: libc::c_int = 23;
    // SAFETY: populating breaks copy-on-write sharing and changes no byte, of any owner.
    unsafe { libc::madvise(start as *mut libc::c_void, len, MADV_POPULATE_WRITE) };
}

/// Waits for all current readers and writers of this process's address space lock (`mmap_lock`): a
/// writer queues behind them.
///
/// # Errors
/// If there is no memory for a mapping.
pub fn outwait_readers() -> io::Result<()> {
    let page = reserve(crate::PAGE_SIZE)?;
    // SAFETY: just mapped, not shared.
    unsafe { unmap(page, crate::PAGE_SIZE) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::{kilobytes_field, ProcFile};

    #[test]
    fn whole_pages_are_given_back_and_locked_ones_stay() {
        if crate::is_emulated() {
            return;
        }
        let at = map(4 * PAGE_SIZE).unwrap();
        // SAFETY: mapped just now.
        let memory = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), 4 * PAGE_SIZE) };
        let give = |memory: &mut [u8]| {
            memory.fill(1);
            // SAFETY: the same bytes, which may hold anything afterwards.
            give_back(unsafe { &mut *(std::ptr::from_mut(&mut memory[1..3 * PAGE_SIZE]) as *mut _) });
            memory.iter().step_by(PAGE_SIZE).copied().collect::<Vec<u8>>()
        };
        assert_eq!(give(memory), [1, 0, 0, 1]);
        give_back(&mut []);
        // SAFETY: this test's mapping.
        match unsafe { lock(at, 4 * PAGE_SIZE) } {
            Ok(()) => assert_eq!(give(memory), [1; 4]),
            Err(error) => testkit::skip!("capability", "mlock: {error}"),
        }
        // SAFETY: as above.
        unsafe { unmap(at, 4 * PAGE_SIZE) };
    }

    #[test]
    fn a_limit_on_data_does_not_count_the_arena() {
        if crate::is_emulated() {
            return;
        }
        const LEN: usize = 8 << 30;
        let data = || {
            let (status, mut text) = (ProcFile::open_own(c"status").unwrap(), [0; 4096]);
            let bytes = kilobytes_field(status.read_at(&mut text, 0), b"VmData:").unwrap() as usize;
            status.close();
            bytes
        };
        let before = data();
        let at = reserve_uncounted(LEN).unwrap();
        // SAFETY: reserved just now.
        unsafe {
            make_accessible(at, LEN).unwrap();
            at.as_ptr().write(1);
            at.as_ptr().add(LEN - 1).write(1);
        }
        // Other tests allocate and free memory at the same time.
        assert!(data() < before + LEN / 2, "{before} {}", data());
        // The page below stays inaccessible.
        let mut byte = 0u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: (at.as_ptr() as usize - 1) as *mut libc::c_void, iov_len: 1 };
        // SAFETY: the kernel reads only readable memory.
        assert_eq!(unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) }, -1);
        // SAFETY: mapped above.
        unsafe { unmap(at, LEN) };
    }
}
