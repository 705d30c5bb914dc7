//! Memory shared through unnamed memory files.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::{checked, done};

/// Makes a memory file of `len` zeroed bytes, sealed against changes of its length.
///
/// # Errors
/// If the kernel refuses a memory file, or no descriptor is left.
pub fn create(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    let file = open(name)?;
    file.set_len(len as u64)?;
    // Truncating the file would kill all other processes that map it.
    seal(&file, 0)?;
    Ok(file.into())
}

/// Makes a sealed memory file with these bytes. Without the seals, other processes of this user
/// could open the file through `/proc/PID/fd` and change it, and the mappings with it.
///
/// # Errors
/// As [`create`].
pub fn holding(name: &CStr, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = open(name)?;
    file.write_all(bytes)?;
    seal(&file, libc::F_SEAL_WRITE)?;
    Ok(file.into())
}

/// Makes an empty memory file, which may grow and is closed on exec.
///
/// # Errors
/// As [`create`].
pub fn open(name: &CStr) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a terminated name.
    let raw = checked(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
    // SAFETY: just opened, without another owner.
    Ok(unsafe { File::from_raw_fd(raw) })
}

/// Seals a file's length and seals, and adds the seals `more`.
fn seal(file: &File, more: i32) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL | more;
    // SAFETY: takes numbers.
    done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })
}

/// Whether a file is a memory file that is sealed against every change.
pub fn is_sealed(file: BorrowedFd<'_>) -> bool {
    let all = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: takes numbers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & all == all
}

/// Bytes of a memory file.
///
/// # Errors
/// Those of fstat(2).
pub fn len_of(file: BorrowedFd<'_>) -> io::Result<usize> {
    status_of(file).map(|status| status.st_size as usize)
}

/// A memory file's number, which no other one has at the same time.
///
/// # Errors
/// Those of fstat(2).
pub fn number_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    status_of(file).map(|status| status.st_ino)
}

fn status_of(file: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: all zeroes is a valid structure.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor; the structure is writable.
    done(unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) }).map(|()| status)
}

/// Maps the first `len` bytes of a memory file for reading and writing, for ever. Forked children
/// have the same memory at the same address.
///
/// # Errors
/// ENOMEM without address space.
pub fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let hint = crate::arena::file_hint(len) as *mut libc::c_void;
    // SAFETY: a new mapping where nothing else is.
    let at = unsafe { libc::mmap(hint, len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    crate::memory::mapped(at)
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
        // SAFETY: just mapped, for this test alone.
        unsafe {
            one.add(5000).write_volatile(7);
            assert_eq!(two.add(5000).read_volatile(), 7);
        }
        // SAFETY: a file of this test.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 4096) }, -1, "it cannot be truncated");
    }

    #[test]
    fn a_sealed_file_cannot_be_changed() {
        let file = holding(c"uzswap-test", b"what it holds").unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(std::fs::read(&path).unwrap(), b"what it holds");
        let again = File::options().read(true).write(true).open(&path).unwrap();
        assert!((&again).write_all(b"x").is_err() && again.set_len(1).is_err() && again.set_len(99).is_err());
        assert!(map(again.as_fd(), 4096).is_err(), "nor by a shared mapping");
        assert!(is_sealed(file.as_fd()) && !is_sealed(create(c"uzswap-test", 4096).unwrap().as_fd()));
        assert!(!is_sealed(File::open("/dev/zero").unwrap().as_fd()));
        assert_eq!(std::fs::read(&path).unwrap(), b"what it holds");
    }
}
