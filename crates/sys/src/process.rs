//! Other processes, by handles (pidfds) that stay theirs when a number is given again.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A handle of the process that has this number now.
///
/// # Errors
/// ESRCH when there is none, EMFILE when there is no descriptor left.
pub fn handle(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers.
    match unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: opened just now.
        raw => Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) }),
    }
}

/// Whether a process has not been waited for: until then its number is its own.
pub fn is_there(handle: &OwnedFd) -> bool {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: takes no pointers beside a null one; signal 0 is sent to nothing.
    let answer = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), 0, info, 0) };
    answer == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
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
