//! Creates, seals and maps memory files.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::snapshot::status_of;

/// Truncating the file would kill all other processes that map it.
pub(crate) const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

pub(crate) fn create(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    // SAFETY: a terminated name.
    let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, owned by nothing else.
    let file = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: sizes a file of our own.
    match unsafe { libc::ftruncate(raw, len as libc::off_t) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn seal(file: &OwnedFd, seals: i32) -> io::Result<()> {
    // SAFETY: takes numbers.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps a whole file of `T`, for ever.
pub(crate) fn map<T>(file: &impl AsFd, access: Access) -> io::Result<NonNull<T>> {
    let protection = match access {
        Access::Read => libc::PROT_READ,
        Access::Write => libc::PROT_READ | libc::PROT_WRITE,
    };
    let (len, raw) = (size_of::<T>(), file.as_fd().as_raw_fd());
    let hint = sys::arena::file_hint(len) as *mut libc::c_void;
    // SAFETY: a new mapping where nothing else is.
    let at = unsafe { libc::mmap(hint, len, protection, libc::MAP_SHARED, raw, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(at.cast()).expect("not page zero"))
}

/// Maps another process's file of `T`, if it has the right size and cannot be truncated.
pub(crate) fn map_sealed<T>(file: &impl AsFd, access: Access, seals: i32) -> io::Result<NonNull<T>> {
    // SAFETY: takes numbers.
    let found = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GET_SEALS) };
    if found < 0 || found & seals != seals || status_of(file.as_fd())?.st_size as usize != size_of::<T>() {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    }
    map(file, access)
}
