//! The process that would inherit this tree's orphans without uzswap.
//!
//! The supervisor is the tree's subreaper and the parent of its orphans. A program that asks for
//! its parent must see the same as without uzswap: usually process 1 or a session manager. The
//! kernel reveals it only as the parent of an orphan.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Makes an orphan and returns its parent. Call it single-threaded, before becoming a subreaper.
pub fn of_orphans() -> io::Result<u32> {
    let (mut reading, writing) = io::pipe()?;
    // SAFETY: this process has one thread; its children only make system calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; the pause is a valid time.
        unsafe {
            let parent = libc::getpid();
            if libc::fork() == 0 {
                let pause = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
                while libc::getppid() == parent {
                    libc::nanosleep(&pause, std::ptr::null_mut());
                }
                let found = libc::getppid();
                libc::write(writing.as_raw_fd(), (&raw const found).cast(), size_of_val(&found));
            }
            libc::_exit(0);
        }
    }
    drop(writing);
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    let mut found = [0; 4];
    reading.read_exact(&mut found)?;
    Ok(u32::from_ne_bytes(found))
}

/// Returns the inode of this process's pid namespace; 0 where /proc does not tell.
pub fn own_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_has_another_parent() {
        let found = of_orphans().unwrap();
        assert!(found != std::process::id() && own_namespace() != 0, "{found}");
    }
}
