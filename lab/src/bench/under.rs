//! A command under `uzswap run`, and its report.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use program::run::SwapArguments;
use serde_json::Value;

/// How programs run, as by the options of `uzswap run`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub swap: SwapArguments,
    /// Compressor, as for `uzswap run`
    #[arg(long, value_name = "NAME")]
    compressor: Option<String>,
    /// Pages that one request to the compressor holds, as for `uzswap run`
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u32).range(1..=8))]
    batch: Option<u32>,
}

/// The report of a run, in memory: it leaves nothing behind, however this ends.
pub struct Report(File);

impl Report {
    pub fn new() -> Result<Self> {
        // SAFETY: a terminated name.
        let raw = unsafe { libc::memfd_create(c"uzswap-report".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(std::io::Error::last_os_error()).context("cannot make a file for the report");
        }
        // SAFETY: opened just now.
        Ok(Report(unsafe { File::from_raw_fd(raw) }))
    }

    /// `uzswap run` with this report; the program and its arguments follow. `swap` are the words of
    /// the swap file.
    pub fn command(&self, arguments: &RunArguments, swap: Vec<OsString>, ram_bytes: u64) -> Command {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        let mut command = Command::new("/proc/self/exe");
        command.arg0("uzswap-lab").args(["run", "--quiet", "--report", &path]);
        command.arg("--ram").arg(ram_bytes.to_string()).args(swap);
        if let Some(compressor) = &arguments.compressor {
            command.args(["--compressor", compressor]);
        }
        if let Some(batch) = arguments.batch {
            command.args(["--batch", &batch.to_string()]);
        }
        command.arg("--");
        command
    }

    /// Reads the report, without its time series.
    pub fn read(&self) -> Result<Value> {
        let (mut file, mut text) = (&self.0, String::new());
        file.rewind()?;
        file.read_to_string(&mut text)?;
        let mut report: Value = serde_json::from_str(&text).context("uzswap run left no report")?;
        report.as_object_mut().context("the report is no object")?.remove("series");
        Ok(report)
    }
}

/// A number of a report by its path, 0 if absent.
pub fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

pub fn compression_ratio(report: &Value) -> f64 {
    report.get("compression_ratio").and_then(Value::as_f64).unwrap_or(0.0)
}

/// CPU time of this process or its ended children (`RUSAGE_SELF`, `RUSAGE_CHILDREN`): user, system.
pub fn cpu_seconds(who: libc::c_int) -> [f64; 2] {
    // SAFETY: all zeroes is a valid structure, which the kernel fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime].map(|time| time.tv_sec as f64 + time.tv_usec as f64 / 1e6)
}
