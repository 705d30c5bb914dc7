//! Restores the machine's settings in every case.
//!
//! Before a setting is changed, its undo is recorded twice: here, and through a pipe to a
//! *watcher*, a process of its own session that ignores signals and only waits for the pipe's end.
//! The pipe ends when this process is done, and also when it panics or is killed, even by SIGKILL.
//! Then the watcher undoes everything, the last change first. If the watcher is killed, this
//! process undoes everything itself.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::{read_trimmed, swap_file, write};

/// The undo of one change. Undoing a change that was not made does no harm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undo {
    /// Write a setting's earlier value.
    Write {
        /// The setting's file.
        path: PathBuf,
        value: String,
    },
    /// Stop swapping to a file of this program.
    SwapOff(PathBuf),
    /// Remove a file of this program.
    RemoveFile(PathBuf),
    /// Stop a cgroup, given its `cgroup.subtree_control`, from handing the memory controller down.
    HandBack(PathBuf),
    /// End the processes of a cgroup of this program, and remove it.
    RemoveCgroup(PathBuf),
}

/// Limit on the time until processes end and a cgroup is empty.
const PATIENCE: Duration = Duration::from_secs(30);

impl Undo {
    pub fn undo(&self) -> Result<()> {
        match self {
            Undo::Write { path, value } => {
                if read_trimmed(path)? != *value {
                    write(path, value)?;
                }
                Ok(())
            }
            Undo::SwapOff(path) => swap_file::swap_off(path),
            Undo::RemoveFile(path) => match fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).with_context(|| path.display().to_string())
                }
                _ => Ok(()),
            },
            Undo::HandBack(path) => {
                if read_trimmed(path)?.split_ascii_whitespace().any(|word| word == "memory") {
                    write(path, "-memory")?;
                }
                Ok(())
            }
            Undo::RemoveCgroup(path) => remove_cgroup(path),
        }
    }
}

fn remove_cgroup(path: &Path) -> Result<()> {
    let give_up = Instant::now() + PATIENCE;
    while path.exists() {
        // Only processes that were started into this group are in it.
        let pids = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 1) {
            // SAFETY: a signal to a process of our own group.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() > give_up => {
                return Err(error).with_context(|| path.display().to_string());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    Ok(())
}

/// Undoes all, the last first; returns the failures.
fn undo_all(changes: &[Undo]) -> Vec<String> {
    changes.iter().rev().filter_map(|change| change.undo().err()).map(|error| format!("{error:#}")).collect()
}

struct Journal {
    changes: Vec<Undo>,
    watcher: Option<(Child, ChildStdin)>,
}

/// The machine's settings while they are changed. Dropping it restores them.
pub struct Changes {
    journal: Arc<Mutex<Journal>>,
    signals: signal_hook::iterator::Handle,
}

fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Changes {
    /// Starts the watcher, and handles signals. The watcher holds `machine` open, so that a lock on
    /// it lasts until all is undone.
    ///
    /// # Errors
    /// If no watcher can be started: the caller should change nothing then.
    pub fn begin(machine: &File) -> Result<Self> {
        let descriptor = machine.as_raw_fd();
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("uzswap-lab")
            .args(["bench", "usemem-undo"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: only async-signal-safe system calls.
        unsafe {
            command.pre_exec(move || {
                libc::setsid();
                libc::fcntl(descriptor, libc::F_SETFD, 0);
                Ok(())
            });
        }
        let mut watcher = command.spawn().context("cannot start the process that restores the settings")?;
        let (input, output) = (watcher.stdin.take().expect("a pipe"), watcher.stdout.take().expect("a pipe"));
        let mut ready = String::new();
        BufReader::new(output).read_line(&mut ready)?;
        ensure!(ready == "ready\n", "the process that restores the settings does not start");
        let journal = Arc::new(Mutex::new(Journal { changes: Vec::new(), watcher: Some((watcher, input)) }));
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])
            .context("cannot look out for signals")?;
        let handle = signals.handle();
        let shared = Arc::clone(&journal);
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Kept locked to the end: no more changes are made.
                let mut journal = lock(&shared);
                journal.finish();
                let _ = signal_hook::low_level::emulate_default_handler(signal);
                std::process::exit(128 + signal);
            }
        });
        Ok(Changes { journal, signals: handle })
    }

    /// Makes a change, after recording its undo.
    ///
    /// # Errors
    /// The change's own, or that the watcher is gone.
    pub fn make<T>(&self, undo: Undo, change: impl FnOnce() -> Result<T>) -> Result<T> {
        // Locked over the change: a signal comes before both or after both.
        let mut journal = lock(&self.journal);
        let Some((_, input)) = &mut journal.watcher else { bail!("the settings were restored already") };
        let mut line = serde_json::to_string(&undo)?;
        line.push('\n');
        input.write_all(line.as_bytes()).context("the process that restores the settings has ended")?;
        journal.changes.push(undo);
        change()
    }

    /// Writes a setting, after recording its undo.
    pub fn write(&self, path: &Path, value: &str) -> Result<()> {
        let undo = Undo::Write { path: path.to_owned(), value: read_trimmed(path)? };
        self.make(undo, || write(path, value))
    }

    /// Restores everything.
    ///
    /// # Errors
    /// Names the settings that could not be restored.
    pub fn end(self) -> Result<()> {
        let left = lock(&self.journal).finish();
        ensure!(left.is_empty(), "not everything could be restored: {}", left.join("; "));
        Ok(())
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.signals.close();
        lock(&self.journal).finish();
    }
}

impl Journal {
    /// Lets the watcher undo everything, or does it here; returns the failures. Does nothing the
    /// second time.
    fn finish(&mut self) -> Vec<String> {
        let Some((mut watcher, input)) = self.watcher.take() else { return Vec::new() };
        drop(input);
        match watcher.wait() {
            Ok(status) if status.success() => Vec::new(),
            // The watcher was killed, or failed in part. Undoing twice does no harm.
            _ => {
                let left = undo_all(&self.changes);
                for what in &left {
                    eprintln!("uzswap: cannot restore: {what}");
                }
                left
            }
        }
    }
}

/// The watcher: reads undo records until the pipe ends, and then applies them.
pub fn watch() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT, libc::SIGPIPE] {
        // SAFETY: ignoring a signal calls no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = std::io::stdout().lock().write_all(b"ready\n");
    let lines = std::io::stdin().lock().lines();
    // A line cut off by its writer's death announces a change that was not made.
    let changes: Vec<Undo> = lines.map_while(|line| serde_json::from_str(&line.ok()?).ok()).collect();
    let left = undo_all(&changes);
    ensure!(left.is_empty(), "not restored: {}", left.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("uzswap-undo-{}-{name}", std::process::id()))
    }

    #[test]
    fn the_last_change_is_undone_first() {
        let setting = path("setting");
        fs::write(&setting, "third").unwrap();
        let write = |value: &str| Undo::Write { path: setting.clone(), value: value.to_owned() };
        assert_eq!(undo_all(&[write("first"), write("second")]), Vec::<String>::new());
        assert_eq!(fs::read_to_string(&setting).unwrap(), "first");
        let left =
            undo_all(&[Undo::RemoveFile(setting.clone()), write("gone"), Undo::RemoveFile(setting.clone())]);
        assert!(
            left.len() == 1 && left[0].contains("setting"),
            "what fails is named and the rest done: {left:?}"
        );
        assert!(!setting.exists());
    }

    #[test]
    fn undoing_steps_that_were_not_done_does_no_harm() {
        for change in
            [Undo::SwapOff(path("none")), Undo::RemoveFile(path("none")), Undo::RemoveCgroup(path("none"))]
        {
            change.undo().unwrap();
        }
    }

    #[test]
    fn changes_cross_a_pipe_as_lines() {
        let changes = [Undo::Write { path: "/a\nb".into(), value: "Y".into() }, Undo::SwapOff("/c".into())];
        for change in changes {
            let line = serde_json::to_string(&change).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Undo>(&line).unwrap(), change);
        }
    }
}
