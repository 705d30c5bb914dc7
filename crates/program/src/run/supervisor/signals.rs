//! Signals of the supervisor, read as messages.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Signals to uzswap that may be meant for the program.
const FORWARDED: [i32; 11] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGPIPE,
    libc::SIGTSTP,
];

/// A received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// The signal's number.
    pub number: i32,
    /// Sent by a process. The terminal's signals reach the program directly.
    pub from_process: bool,
}

/// Blocks signals and offers them through a descriptor.
pub struct Signals {
    file: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Starts to collect signals.
    pub fn new() -> io::Result<Self> {
        // SAFETY: sets are plain bits, filled before use.
        unsafe {
            let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&mut set, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &set, &mut before);
            let raw = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if raw < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals { file: OwnedFd::from_raw_fd(raw), before })
        }
    }

    /// Returns the descriptor to poll.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns the previous signal mask, with which the program starts.
    pub fn mask_before(&self) -> libc::sigset_t {
        self.before
    }

    /// Returns the next signal, if one has arrived.
    pub fn next(&self) -> Option<Arrived> {
        // SAFETY: the structure is plain numbers.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&info);
        // SAFETY: `info` has room for one structure.
        let got = unsafe { libc::read(self.descriptor(), std::ptr::from_mut(&mut info).cast(), size) };
        (got == size as isize).then_some(Arrived {
            number: info.ssi_signo as i32,
            from_process: info.ssi_code <= 0, // SI_USER, SI_QUEUE, SI_TKILL
        })
    }
}
