//! The guardian: a small process that outlives a killed supervisor for a moment and ends what is left of its tree.
//!
//! A process past its exec notices the supervisor's death by itself (its connection ends) and ends at once. One that is
//! between fork and exec at that moment cannot: when its loader looks for the object to preload, the supervisor that
//! held it open is gone, and the program would run on without limit. So somebody has to look for such processes, and
//! only one that was there before can. It holds nothing but the reading end of a pipe, sleeps for as long as the
//! supervisor lives, and takes part in neither the terminal nor the tree.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// An exec takes so long at most until the new program's environment can be read, on a busy machine.
const SEARCH: Duration = Duration::from_secs(2);
/// A tree that still grows is searched no longer than this.
const SEARCH_MAX: Duration = Duration::from_secs(20);
/// Between searches.
const PAUSE: Duration = Duration::from_millis(20);
/// The supervisor's word that its tree has ended, or may run on alone.
const GOODBYE: u8 = b'.';

/// The supervisor's side. Dropping it sends the guardian home.
#[derive(Debug)]
pub struct Guardian {
    pipe: File,
    pid: i32,
}

impl Guardian {
    /// Starts the guardian of the tree whose processes have `UZSWAP_SOCKET=socket` in their environment. To be called
    /// while this process has one thread.
    ///
    /// # Errors
    /// When there is no descriptor or process left.
    pub fn start(socket: &str) -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both were opened just now.
        let [reading, writing] = ends.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) });
        // SAFETY: this process has one thread, so the copy is whole.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(writing);
                guard(reading, format!("UZSWAP_SOCKET={socket}").as_bytes());
                // SAFETY: ends without running the supervisor's exit handlers.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Guardian { pipe: writing.into(), pid }),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // A supervisor that breaks leaves a tree that nobody holds to its budget.
        if std::thread::panicking() {
            return;
        }
        let _ = self.pipe.write_all(&[GOODBYE]);
        // SAFETY: waits for a child.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// What the guardian does with its life.
fn guard(pipe: OwnedFd, entry: &[u8]) {
    withdraw(&pipe);
    let mut word = [0];
    let mut pipe = File::from(pipe);
    match pipe.read(&mut word) {
        Ok(0) => {}
        _ => return,
    }
    let started = Instant::now();
    let mut until = started + SEARCH;
    while Instant::now() < until.min(started + SEARCH_MAX) {
        if kill_all(entry) {
            until = Instant::now() + SEARCH;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Lets go of everything but the pipe: the terminal, standard streams, directory, signals.
fn withdraw(pipe: &OwnedFd) {
    let keep = pipe.as_raw_fd() as u32;
    // SAFETY: system calls on this process's own attributes; the descriptors closed belong to structures of the
    // supervisor that are never used or dropped here, and the standard ones are replaced first.
    unsafe {
        libc::setsid();
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"uzswap-guardian".as_ptr());
        libc::chdir(c"/".as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..3 {
            if standard != keep {
                libc::dup2(null, standard as i32);
            }
        }
        if keep > 3 {
            libc::syscall(libc::SYS_close_range, 3u32, keep - 1, 0u32);
        }
        libc::syscall(libc::SYS_close_range, keep.max(2) + 1, u32::MAX, 0u32);
    }
}

/// Kills every process whose environment has `entry`; whether there was any.
fn kill_all(entry: &[u8]) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let mut any = false;
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // SAFETY: takes no pointers. The descriptor names this very process even if its number is used again.
        let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0u32) } as i32;
        if handle < 0 {
            continue;
        }
        // SAFETY: opened just now.
        let handle = unsafe { OwnedFd::from_raw_fd(handle) };
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if has_entry(&environment, entry) {
            // SAFETY: takes no pointers beside a null one.
            let answer = unsafe {
                let info = std::ptr::null::<libc::siginfo_t>();
                libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), libc::SIGKILL, info, 0u32)
            };
            any |= answer == 0;
        }
    }
    any
}

/// Whether a block of terminated strings has this one.
fn has_entry(environment: &[u8], entry: &[u8]) -> bool {
    environment.split(|byte| *byte == 0).any(|candidate| candidate == entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_entries_count() {
        let environment = b"A=1\0UZSWAP_SOCKET=uzswap-12-ab\0B=\0";
        assert!(has_entry(environment, b"UZSWAP_SOCKET=uzswap-12-ab"));
        assert!(!has_entry(environment, b"UZSWAP_SOCKET=uzswap-12-a"));
        assert!(!has_entry(environment, b"UZSWAP_SOCKET=uzswap-12-abc"));
        assert!(!has_entry(b"", b"UZSWAP_SOCKET=uzswap-12-ab"));
        assert!(!has_entry(b"X=UZSWAP_SOCKET=u\0", b"UZSWAP_SOCKET=u"));
    }
}
