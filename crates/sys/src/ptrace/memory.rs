//! The memory of another process.

use std::io;

/// The memory that a thread runs in.
///
/// Of a thread that is traced, and is not the first one of its process, it is the memory of one
/// program for ever: another program of the process has no such thread, and the number is not used
/// again before the tracer has heard of its end. Others may be read, not written: the process may
/// begin another program at any time.
///
/// An access waits where the process serves the memory itself (a userfaultfd, a file system), for
/// as long as it likes, and ends when this process does. One through /proc/PID/mem would not: it
/// waits for a file system uninterruptibly.
#[derive(Debug, Clone, Copy)]
pub struct Memory(i32);

impl Memory {
    /// Of a thread, or the first one of a process.
    pub fn of(thread: i32) -> Self {
        Memory(thread)
    }

    /// Reads; how much could be read.
    ///
    /// # Errors
    /// When nothing could be read.
    pub fn read(&self, from: usize, to: &mut [u8]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: to.len() };
        // SAFETY: the local buffer is as long as said.
        let answer = unsafe { libc::process_vm_readv(self.0, &local, 1, &remote, 1, 0) };
        usize::try_from(answer).map_err(|_| io::Error::last_os_error())
    }

    /// Writes all of `from` into writable memory.
    ///
    /// # Errors
    /// When not all could be written.
    pub fn write(&self, to: usize, from: &[u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let remote = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: from.len() };
        // SAFETY: the local buffer is as long as said, and is only read.
        let answer = unsafe { libc::process_vm_writev(self.0, &local, 1, &remote, 1, 0) };
        match usize::try_from(answer) {
            Ok(len) if len == from.len() => Ok(()),
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}
