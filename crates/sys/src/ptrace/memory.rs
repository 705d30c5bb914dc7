//! The memory of another process.

use std::io;

/// The memory of a thread.
///
/// For a traced thread that is not the first of its process, it stays the memory of one program:
/// another program of the process does not have this thread, and its number is not reused before
/// the tracer has learned of its end. Other memory may be read, not written: the process may
/// execute another program at any time.
///
/// If the process serves the memory itself (a userfaultfd, a file system), an access waits as long
/// as the process likes, and ends when this process does. An access through /proc/PID/mem would not
/// end: it waits for a file system uninterruptibly.
#[derive(Debug, Clone, Copy)]
pub struct Memory(i32);

impl Memory {
    /// The memory of a thread, or of a process's first thread.
    pub fn of(thread: i32) -> Self {
        Memory(thread)
    }

    /// Reads memory and returns the number of bytes read.
    ///
    /// # Errors
    /// If nothing could be read.
    pub fn read(&self, from: usize, to: &mut [u8]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: to.len() };
        // SAFETY: the local buffer has the given length.
        let result = unsafe { libc::process_vm_readv(self.0, &local, 1, &remote, 1, 0) };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }

    /// Writes all of `from` into writable memory.
    ///
    /// # Errors
    /// If not all could be written.
    pub fn write(&self, to: usize, from: &[u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let remote = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: from.len() };
        // SAFETY: the local buffer has the given length, and is only read.
        let result = unsafe { libc::process_vm_writev(self.0, &local, 1, &remote, 1, 0) };
        match usize::try_from(result) {
            Ok(len) if len == from.len() => Ok(()),
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}
