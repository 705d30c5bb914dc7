//! Other processes, by handles (pidfds), which stay valid when a number is reused.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{checked, done};

/// This process's effective user.
pub fn own_user() -> u32 {
    // SAFETY: takes nothing.
    unsafe { libc::geteuid() }
}

/// A handle of the current process with this number.
///
/// # Errors
/// ESRCH if there is none, EMFILE if no descriptor is left.
pub fn handle(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let raw = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// Duplicates a descriptor in the file table of the process behind a handle.
///
/// # Errors
/// EPERM if pidfd_getfd(2) is refused, EBADF or ESRCH if there is none.
pub fn descriptor_of(handle: &OwnedFd, number: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let raw = checked(unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle.as_raw_fd(), number, 0) })?;
    // SAFETY: just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// Whether a process has not been waited for: until then its number is not reused.
pub fn is_there(handle: &OwnedFd) -> bool {
    signal(handle, 0).map_or_else(|error| error.raw_os_error() == Some(libc::EPERM), |()| true)
}

/// Sends a signal to the process behind a handle, or none with 0.
///
/// # Errors
/// ESRCH if it has been waited for, EPERM if this process may not.
pub fn signal(handle: &OwnedFd, signal: i32) -> io::Result<()> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the only pointer is null.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), signal, info, 0u32) };
    checked(sent).map(drop)
}

/// Whether a process has the calling one's memory. The kernel permits to read it then to processes
/// of any rights; a copy of the memory has an older number.
pub fn has_this_memory(pid: i32, nonce: &AtomicU64) -> bool {
    let old = nonce.fetch_add(crate::now_ns() | 1, Ordering::AcqRel);
    let new = nonce.load(Ordering::Acquire);
    let mut found = old;
    let vector = |at: *const u64| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: size_of::<u64>() };
    let (local, remote) = (vector(&raw mut found), vector(nonce.as_ptr()));
    // SAFETY: the variable has eight bytes.
    let got = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    got == size_of::<u64>() as isize && found == new
}

/// Page faults of this process so far that needed no disk.
pub fn minor_faults() -> u64 {
    // SAFETY: zeroes are valid, and the call fills the structure.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage.ru_minflt as u64
    }
}

/// The number of the process behind a handle, in the process namespace of /proc; `None` if it is no
/// handle, or has ended.
pub fn number(handle: i32) -> Option<i32> {
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{handle}")).ok()?;
    let number = told.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
    (number > 0).then_some(number)
}

/// The kernel's information on the process behind a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Its parent, in the caller's numbers; 0 for a parent outside the caller's process namespace.
    pub parent: i32,
    /// Real, effective and saved user.
    pub users: [u32; 3],
    /// Real, effective and saved group.
    pub groups: [u32; 3],
}

/// `struct pidfd_info` in its first version (include/uapi/linux/pidfd.h).
#[repr(C)]
#[derive(Default)]
struct RawInfo {
    mask: u64,
    cgroup: u64,
    pid: u32,
    process: u32,
    parent: u32,
    real_user: u32,
    real_group: u32,
    effective_user: u32,
    effective_group: u32,
    saved_user: u32,
    saved_group: u32,
    file_user: u32,
    file_group: u32,
    exit_code: i32,
}
const _: () = assert!(size_of::<RawInfo>() == 64);

/// `PIDFD_GET_INFO`: `_IOWR(0xff, 11, struct pidfd_info)`.
const GET_INFO: u64 = 3 << 30 | 64 << 16 | 0xff << 8 | 11;
/// Requests process numbers, users and groups.
const INFO_MASK: u64 = 1 | 2;

/// Asks the kernel about a process by handle: its number may have been reused.
///
/// # Errors
/// ESRCH if it has been waited for. ENOTTY or EINVAL before Linux 6.13, where /proc has the same.
pub fn info(handle: &OwnedFd) -> io::Result<Info> {
    let mut raw = RawInfo { mask: INFO_MASK, ..RawInfo::default() };
    // SAFETY: the kernel writes the structure, whose length is in the request.
    done(unsafe { libc::ioctl(handle.as_raw_fd(), GET_INFO as _, &mut raw) })?;
    if raw.mask & INFO_MASK != INFO_MASK {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(Info {
        parent: raw.parent as i32,
        users: [raw.real_user, raw.effective_user, raw.saved_user],
        groups: [raw.real_group, raw.effective_group, raw.saved_group],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_there_until_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let handle = handle(child.id() as i32).unwrap();
        assert!(is_there(&handle));
        child.kill().unwrap();
        assert!(is_there(&handle), "not waited for");
        child.wait().unwrap();
        assert!(!is_there(&handle));
    }
}
