//! Memory that processes share by a file without a place in any file system.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// Makes a memory file of `len` bytes of zeroes, sealed against changes of its length.
///
/// # Errors
/// When the kernel refuses a memory file, or there are no descriptors left.
pub fn create(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    // SAFETY: a terminated name.
    let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, with no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(raw) };
    // A process that cut the file short would end all others that have it mapped.
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: sizes and seals a file of our own.
    let is_sealed = unsafe {
        libc::ftruncate(raw, len as libc::off_t) == 0 && libc::fcntl(raw, libc::F_ADD_SEALS, seals) == 0
    };
    is_sealed.then_some(file).ok_or_else(io::Error::last_os_error)
}

/// Bytes of a memory file.
///
/// # Errors
/// What fstat(2) returns.
pub fn len_of(file: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: all zeroes is a valid structure.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor; the structure is writable.
    match unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) } {
        0 => Ok(status.st_size as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps the first `len` bytes of a memory file, to be read and written; never unmapped. Children of
/// fork have the same memory at the same address.
///
/// # Errors
/// ENOMEM without address space.
pub fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    match at {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        at => Ok(NonNull::new(at.cast()).expect("not page zero")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn two_mappings_are_the_same_memory() {
        let file = create(c"uzswap-test", 8192).unwrap();
        assert_eq!(len_of(file.as_fd()).unwrap(), 8192);
        let [one, two] = [0; 2].map(|_| map(file.as_fd(), 8192).unwrap());
        assert_ne!(one, two);
        // SAFETY: mapped just now, for this test alone.
        unsafe {
            one.add(5000).write_volatile(7);
            assert_eq!(two.add(5000).read_volatile(), 7);
        }
        // SAFETY: a file of this test.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 4096) }, -1, "it cannot be truncated");
    }
}
