//! Child processes that end with this one.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use super::shelter::Shelter;

const READY_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// A companion process. Dropping it ends the process.
pub struct Companion {
    name: String,
    child: Child,
}

impl Companion {
    /// Starts the process, and moves it into the shelter.
    pub fn start(command: &mut Command, shelter: Option<&Shelter>) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {name}: is it installed? (apt install {name})"))?;
        let companion = Companion { name, child };
        shelter.map(|shelter| shelter.take_in(companion.child.id())).transpose()?;
        Ok(companion)
    }

    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until `ready` returns true.
    pub fn wait_until(&mut self, what: &str, ready: impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            if let Some(status) = self.ended()? {
                bail!("{} ended before {what}: {status}", self.name);
            }
            if start.elapsed() > READY_MAX {
                bail!("{}: {what} took more than {} s", self.name, READY_MAX.as_secs());
            }
            sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // SAFETY: the child was not waited for, so the number is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program that must succeed; returns what it printed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {program}: is it installed?"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {} failed ({}): {}", arguments.join(" "), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub fn exists(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    // An ordinary user's PATH often lacks these.
    let mut directories = path.split(':').chain(["/usr/sbin", "/sbin"]);
    directories.any(|directory| Path::new(directory).join(program).is_file())
}
