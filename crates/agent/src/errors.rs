//! System error messages, without the C library's.
//!
//! The standard library calls `strerror_r` for every error it shows. `strerror_r` translates under
//! a lock and allocates on the program's heap, and a pager's thread may do neither: the C library
//! identifies a lock's holder by a thread number that such threads lack, so that the program's next
//! `setlocale` or `bindtextdomain` would wait for ever.

use std::ffi::{c_char, c_int};

fn words(number: c_int) -> &'static str {
    match number {
        libc::EPERM => "not permitted",
        libc::ENOENT => "there is no such file",
        libc::EIO => "input or output failed",
        libc::EBADF => "not an open descriptor",
        libc::EAGAIN => "no more at present, a limit was reached",
        libc::ENOMEM => "out of memory",
        libc::EACCES => "permission denied",
        libc::EBUSY => "in use",
        libc::EEXIST => "there is one already",
        libc::ENODEV | libc::ENXIO => "there is no such device",
        libc::EINVAL => "invalid argument",
        libc::EMFILE | libc::ENFILE => "too many open files",
        libc::ENOSPC => "no space left",
        libc::EPIPE | libc::ECONNRESET => "the other side is gone",
        libc::ECONNREFUSED => "no process listens",
        libc::ENOSYS | libc::ENOTTY => "this kernel does not have it",
        _ => "the system refused",
    }
}

/// POSIX's strerror_r(3).
///
/// # Safety
/// `len` bytes are writable at `buffer`.
unsafe extern "C" fn describe(number: c_int, buffer: *mut c_char, len: usize) -> c_int {
    let words = words(number);
    let Some(room) = len.checked_sub(1) else { return libc::ERANGE };
    let count = words.len().min(room);
    // SAFETY: the caller's promise, with room for the terminating zero.
    unsafe {
        buffer.cast::<u8>().copy_from_nonoverlapping(words.as_ptr(), count);
        buffer.add(count).write(0);
    }
    0
}

// Hidden, so that only this object uses it.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl __xpg_strerror_r",
    ".hidden __xpg_strerror_r",
    "__xpg_strerror_r:",
    "jmp {to}",
    to = sym describe,
);
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".globl __xpg_strerror_r",
    ".hidden __xpg_strerror_r",
    "__xpg_strerror_r:",
    "b {to}",
    to = sym describe,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_librarys_errors_use_these_words() {
        let error = std::io::Error::from_raw_os_error(libc::ENOMEM);
        assert_eq!(error.to_string(), "out of memory (os error 12)");
        let error = std::io::Error::from_raw_os_error(12345);
        assert_eq!(error.to_string(), "the system refused (os error 12345)");
    }

    #[test]
    fn long_words_are_cut() {
        let mut buffer = [1 as c_char; 8];
        // SAFETY: shorter than the buffer.
        assert_eq!(unsafe { describe(libc::ENOMEM, buffer.as_mut_ptr(), 7) }, 0);
        assert_eq!(buffer.map(|byte| byte as u8), *b"out of\0\x01");
        // SAFETY: writes nothing.
        assert_eq!(unsafe { describe(libc::ENOMEM, buffer.as_mut_ptr(), 0) }, libc::ERANGE);
    }
}
