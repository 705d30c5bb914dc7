//! The process that the user started, in front of the supervisor.
//!
//! `uzswap run` ends when its program ends, with the program's status. Daemons and background jobs
//! that the program leaves behind still need the supervisor: they page with its help, need its
//! descriptors under their old paths for exec, and are its descendants. So the supervisor is a
//! child of the front, serves the tree until the last process has ended, and tells the front when
//! to end.
//!
//! The front forwards signals and stops when the supervisor stops. `top` and `pause` know the tree
//! by the front's process id. If the front is killed, the supervisor and the tree end too.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use sys::packets;

use crate::run::supervisor::signals::Signals;
use crate::run::tree::kills;

/// Words to the front. A number follows each.
const STOP: u8 = 1;
const END: u8 = 2;

/// The supervisor's connection to the front.
pub struct Front {
    socket: OwnedFd,
    pub pid: u32,
}

impl Front {
    /// Forks the supervisor's process and returns in it. The calling process becomes the front and
    /// does not return. Must be called while this process has one thread.
    pub fn step_behind() -> io::Result<Self> {
        let [ours, theirs] = packets::pair()?;
        let pid = std::process::id();
        // SAFETY: this process has one thread, so the copy is whole.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                crate::run::peers::take_name();
                let front = Front { socket: theirs, pid };
                front.tie(libc::SIGKILL);
                // The front may have died before the line above took effect.
                if std::os::unix::process::parent_id() != pid {
                    std::process::exit(crate::command_line::EXIT_FAILED);
                }
                Ok(front)
            }
            supervisor => {
                drop(theirs);
                std::process::exit(stand(supervisor, &ours));
            }
        }
    }

    /// Stops both processes until they are continued.
    pub fn stop(&self) {
        self.send(STOP, 0);
        // SAFETY: stops this process until it is continued.
        unsafe { libc::raise(libc::SIGSTOP) };
    }

    /// Ends the front with a status; this process continues.
    pub fn dismiss(&self, status: i32) {
        self.tie(0);
        self.send(END, status as u8);
    }

    /// Sets the signal that this process gets when the front ends.
    fn tie(&self, signal: i32) {
        // SAFETY: changes an attribute of this process.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
    }

    fn send(&self, word: u8, number: u8) {
        // If the send fails, the front is dead and this process is about to be killed.
        let _ = packets::send(self.socket.as_raw_fd(), &[&[word, number]], &[]);
    }
}

fn stand(supervisor: i32, socket: &OwnedFd) -> i32 {
    let Ok(signals) = Signals::new() else {
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(supervisor, libc::SIGKILL) };
        return crate::command_line::EXIT_FAILED;
    };
    let mut ended = None;
    loop {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = [entry(signals.descriptor()), entry(socket.as_raw_fd())];
        // SAFETY: two valid entries.
        unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
        while let Some(signal) = signals.next().filter(|_| polled[0].revents != 0) {
            // If the front is process 1 of its namespace, it inherits the supervisor's orphans.
            if signal.number == libc::SIGCHLD {
                ended = ended.or_else(|| reap(supervisor, libc::WNOHANG));
            }
            // The terminal's signals reach the supervisor directly.
            if signal.number != libc::SIGCHLD && signal.from_process {
                // SAFETY: a signal to our own child.
                unsafe { libc::kill(supervisor, signal.number) };
            }
        }
        if polled[1].revents == 0 {
            continue;
        }
        let mut words = [0u8; 2];
        match packets::receive(socket.as_raw_fd(), &mut words).map(|(len, _)| (len, words[0])) {
            // SAFETY: stops this process until it is continued, and then the child.
            Ok((2, STOP)) => unsafe {
                libc::raise(libc::SIGSTOP);
                libc::kill(supervisor, libc::SIGCONT);
            },
            Ok((2, END)) => return words[1].into(),
            Ok((2, _)) => {}
            _ => return ended.or_else(|| reap(supervisor, 0)).unwrap_or(crate::command_line::EXIT_FAILED),
        }
    }
}

/// Reaps children up to the supervisor; returns its exit status, or `None` if it has not ended.
fn reap(supervisor: i32, flags: i32) -> Option<i32> {
    let mut status = 0;
    loop {
        // SAFETY: the status is writable.
        match unsafe { libc::waitpid(-1, &mut status, flags) } {
            pid if pid == supervisor && libc::WIFSIGNALED(status) => {
                let signal = libc::WTERMSIG(status);
                eprintln!(
                    "uzswap: the supervisor was killed ({}), and the program with it",
                    kills::name_of(signal)
                );
                return Some(128 + signal);
            }
            pid if pid == supervisor => return Some(libc::WEXITSTATUS(status)),
            1.. => {}
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
}
