//! One run of a program in a budget, by `uzswap run`, and its report.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use serde::Deserialize;

use crate::command_line::EXIT_FAILED;
use crate::run::SwapArguments;

/// The options that a budget is tried with.
#[derive(Debug, clap::Args)]
pub struct Settings {
    /// Compressor, as for `uzswap run`
    #[arg(long, value_name = "NAME")]
    compressor: Option<String>,
    #[command(flatten)]
    swap: SwapArguments,
}

impl Settings {
    /// The options as words for `uzswap run`.
    pub fn words(&self) -> Vec<OsString> {
        let compressor = self.compressor.iter().flat_map(|name| ["--compressor".into(), name.into()]);
        compressor.chain(self.swap.words()).collect()
    }

    pub fn compressor(&self) -> &str {
        self.compressor.as_deref().unwrap_or(uzswap::DEFAULT_COMPRESSOR)
    }
}

/// A run's figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trial {
    /// The program's exit status; `None` if it was stopped.
    pub status: Option<i32>,
    pub report: Report,
}

/// The part of a report that is used here (docs/user/report.md).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Report {
    pub elapsed_seconds: f64,
    pub ram_wanted_peak_bytes: u64,
    pub ram_peak_bytes: u64,
    pub over_limit_peak_bytes: u64,
    pub over_limit_reason: Option<String>,
    pub faults: u64,
    pub zswpin: u64,
    pub compression_ratio: f64,
}

/// Runs the program; stops it after `seconds_max`.
pub fn run(
    program: &[OsString],
    settings: &Settings,
    budget_bytes: u64,
    seconds_max: Option<f64>,
) -> Result<Trial> {
    let file = sys::shared::open(c"uzswap-report").context("cannot make a file for the report")?;
    let report = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut command = Command::new("/proc/self/exe");
    command.arg0("uzswap").args(["run", "--quiet", "--report", &report]);
    command.args(["--ram", &budget_bytes.to_string()]).args(settings.words()).arg("--").args(program);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // SAFETY: sets an attribute of the child, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut child = command.spawn().context("cannot start uzswap run")?;
    if !ends_within(&child, seconds_max)? {
        stop(&mut child)?;
        return Ok(Trial { status: None, report: read(&file).unwrap_or_default() });
    }
    let status = child.wait().context("cannot wait for uzswap run")?;
    let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    match read(&file) {
        Ok(report) => Ok(Trial { status: Some(status), report }),
        // The message has been printed.
        Err(_) if status >= EXIT_FAILED => bail!("uzswap run failed"),
        Err(error) => Err(error),
    }
}

/// Time to end after SIGTERM. A program may ignore it.
const ENDS_WITHIN: f64 = 5.0;

fn stop(child: &mut Child) -> Result<()> {
    // SAFETY: a signal to our own child, which has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    if !ends_within(child, Some(ENDS_WITHIN))? {
        // The tree ends with it.
        child.kill().context("cannot end uzswap run")?;
    }
    child.wait().context("cannot wait for uzswap run")?;
    Ok(())
}

fn ends_within(child: &Child, seconds: Option<f64>) -> Result<bool> {
    let handle = sys::process::handle(child.id() as i32).context("cannot wait for uzswap run")?;
    let limit = seconds.map(Duration::from_secs_f64);
    let ms = limit.map_or(-1, |limit| i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
    let mut polled = libc::pollfd { fd: handle.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    Ok(unsafe { libc::poll(&mut polled, 1, ms) } != 0)
}

fn read(file: &File) -> Result<Report> {
    let mut text = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut text, 0)?;
    serde_json::from_slice(&text).context("uzswap run left no report")
}
