//! The program's stderr, from threads whose file table does not have it.

/// Writes a line to descriptor 2 of the process's first thread, if it can be opened: a terminal, a
/// pipe, a file. Needs neither heap nor thread-local storage.
pub fn write(line: &[u8]) {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: a terminated path, and `line` is readable; without a descriptor the other calls fail.
    unsafe {
        let stderr = libc::open(c"/proc/self/fd/2".as_ptr(), flags);
        libc::write(stderr, line.as_ptr().cast(), line.len());
        libc::close(stderr);
    }
}
