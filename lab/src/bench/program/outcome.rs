//! One run of a command: how long, with what end, and what it wrote.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

/// How a command went.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// From its start to its end.
    pub elapsed_seconds: f64,
    /// Of its processes.
    pub user_seconds: f64,
    /// The same in the kernel.
    pub system_seconds: f64,
    /// As a shell has it: 128 and the signal when one ended it.
    pub exit_status: i32,
    /// What it wrote to its standard output.
    pub output_bytes: u64,
    #[serde(skip)]
    digest: u64,
}

impl Outcome {
    /// Whether a command ended in the same way and wrote the same.
    pub fn is_like(&self, other: &Outcome) -> bool {
        (self.exit_status, self.output_bytes, self.digest)
            == (other.exit_status, other.output_bytes, other.digest)
    }
}

/// Runs a command; its output is read and forgotten.
///
/// # Errors
/// When it cannot be started.
pub fn run(mut command: Command) -> Result<Outcome> {
    let name = command.get_program().to_string_lossy().into_owned();
    let before = children_seconds();
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let mut output = child.stdout.take().expect("piped");
    let (mut digest, mut output_bytes) = (DefaultHasher::new(), 0);
    let mut buffer = vec![0; 1 << 16];
    loop {
        match output.read(&mut buffer).with_context(|| format!("cannot read what {name} writes"))? {
            0 => break,
            read => {
                digest.write(&buffer[..read]);
                output_bytes += read as u64;
            }
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for {name}"))?;
    let after = children_seconds();
    Ok(Outcome {
        elapsed_seconds: started.elapsed().as_secs_f64(),
        user_seconds: after.0 - before.0,
        system_seconds: after.1 - before.1,
        exit_status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        output_bytes,
        digest: digest.finish(),
    })
}

/// CPU time of all children that have ended: user, system.
fn children_seconds() -> (f64, f64) {
    // SAFETY: all zeroes is a valid structure, which the kernel fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}

/// A file in memory that a child can write to by its path.
pub struct MemoryFile(File);

/// Makes one.
///
/// # Errors
/// When the kernel refuses.
pub fn memory_file() -> Result<MemoryFile> {
    // SAFETY: a terminated name.
    let raw = unsafe { libc::memfd_create(c"uzswap-report".as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error()).context("cannot make a memory file");
    }
    // SAFETY: opened just now.
    Ok(MemoryFile(unsafe { File::from_raw_fd(raw) }))
}

impl MemoryFile {
    /// Its path, while this process lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// What is in it.
    ///
    /// # Errors
    /// When it cannot be read, or is no text.
    pub fn text(&self) -> Result<String> {
        let mut text = String::new();
        let mut file = &self.0;
        file.rewind()?;
        file.read_to_string(&mut text)?;
        Ok(text)
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
            run(command).unwrap()
        };
        let first = shell("echo one; exit 3");
        assert_eq!((first.exit_status, first.output_bytes), (3, 4));
        assert!(first.is_like(&shell("printf 'one\\n'; exit 3")));
        assert!(!first.is_like(&shell("echo two; exit 3")) && !first.is_like(&shell("echo one")));
        assert_eq!(shell("kill -9 $$").exit_status, 137);
        assert!(run(Command::new("/nowhere/at/all")).is_err());
    }

    #[test]
    fn a_memory_file_is_written_by_its_path() {
        let file = memory_file().unwrap();
        std::fs::write(file.path(), "some text").unwrap();
        assert_eq!(file.text().unwrap(), "some text");
    }
}
