//! One run of a command: its time, exit status and output.

use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::bench::under::cpu_seconds;

#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    pub elapsed_seconds: f64,
    /// CPU time of its processes in user mode.
    pub user_seconds: f64,
    /// The same in the kernel.
    pub system_seconds: f64,
    /// As in a shell: 128 and the signal if one ended it.
    pub exit_status: i32,
    /// Killed because it exceeded the patience.
    pub is_overdue: bool,
    pub output_bytes: u64,
    #[serde(skip)]
    digest: u64,
}

impl Outcome {
    /// Whether status and output are the same.
    pub fn is_like(&self, other: &Outcome) -> bool {
        (self.exit_status, self.output_bytes, self.digest)
            == (other.exit_status, other.output_bytes, other.digest)
    }
}

/// Runs a command and keeps a digest of its output. A command that takes longer than `patience` is
/// killed with its process group.
pub fn run(mut command: Command, patience: Option<Duration>) -> Result<Outcome> {
    let name = command.get_program().to_string_lossy().into_owned();
    if patience.is_some() {
        command.process_group(0);
        // The terminal's interrupts do not reach another process group, so the program must not
        // outlive this one.
        // SAFETY: prctl(2) is safe to call between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
    }
    let before = cpu_seconds(libc::RUSAGE_CHILDREN);
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let mut output = child.stdout.take().expect("piped");
    let (mut digest, mut output_bytes) = (DefaultHasher::new(), 0);
    let pid = child.id() as libc::pid_t;
    let (stop, stopped) = mpsc::channel::<()>();
    let (read, is_overdue) = std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let Some(patience) = patience else { return false };
            let is_overdue = stopped.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout);
            if is_overdue {
                // SAFETY: a process group whose leader is not reaped before this thread ends.
                unsafe { libc::kill(-pid, libc::SIGKILL) };
            }
            is_overdue
        });
        let mut buffer = vec![0; 1 << 16];
        let read = loop {
            match output.read(&mut buffer) {
                Ok(0) => break Ok(()),
                Ok(read) => {
                    digest.write(&buffer[..read]);
                    output_bytes += read as u64;
                }
                Err(error) => break Err(error),
            }
        };
        wait_without_reaping(pid);
        drop(stop);
        (read, watch.join().expect("the watch does not panic"))
    });
    let elapsed_seconds = started.elapsed().as_secs_f64();
    let status = child.wait().with_context(|| format!("cannot wait for {name}"))?;
    read.with_context(|| format!("cannot read what {name} writes"))?;
    let after = cpu_seconds(libc::RUSAGE_CHILDREN);
    Ok(Outcome {
        elapsed_seconds,
        user_seconds: after[0] - before[0],
        system_seconds: after[1] - before[1],
        exit_status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        is_overdue,
        output_bytes,
        digest: digest.finish(),
    })
}

/// Waits for a child's end without freeing its process id.
fn wait_without_reaping(pid: libc::pid_t) {
    loop {
        // SAFETY: all zeroes is a valid structure, which the kernel fills.
        let waited = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        if waited == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_alike_when_status_and_output_are() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run(command, None).unwrap()
        };
        let first = shell("echo one; exit 3");
        assert_eq!((first.exit_status, first.output_bytes), (3, 4));
        assert!(first.is_like(&shell("printf 'one\\n'; exit 3")));
        assert!(!first.is_like(&shell("echo two; exit 3")) && !first.is_like(&shell("echo one")));
        assert_eq!(shell("kill -9 $$").exit_status, 137);
        assert!(run(Command::new("/nowhere/at/all"), None).is_err());
    }

    #[test]
    fn a_slow_program_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; sleep 1000 & sleep 1000; echo over"]);
        let outcome = run(command, Some(Duration::from_millis(300))).unwrap();
        // The pipe ends only when both are gone.
        assert!(outcome.is_overdue && outcome.exit_status == 137 && outcome.output_bytes == 6, "{outcome:?}");
        let quick = run(Command::new("true"), Some(Duration::from_secs(1000))).unwrap();
        assert!(!quick.is_overdue && quick.exit_status == 0);
    }
}
