//! The job under `uzswap run`.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use super::drive::{drive, Driven};
use super::{Plan, Progress};

/// The job's report, with the pager's counters.
#[derive(Debug, Serialize)]
pub struct Managed {
    #[serde(flatten)]
    pub driven: Driven,
    /// Peak memory of the tree, pool and staging included.
    pub ram_peak_bytes: u64,
    /// Total written to the swap file; 0 without one.
    pub disk_written_bytes: u64,
    pub disk_read_bytes: u64,
    /// Bytes stored by the pool's bytes, at the peak of stored bytes.
    pub compression_ratio: f64,
    /// Stored pages by form.
    pub forms: BTreeMap<String, u64>,
    /// The counters that correspond to the kernel's tables.
    pub counters: BTreeMap<String, u64>,
    /// The report of `uzswap run`, without its time series.
    pub report: Value,
}

/// Counters copied from the report.
const COUNTERS: [&str; 13] = [
    "zswpout",
    "zswpin",
    "zswpwb",
    "refaults",
    "zero_filled",
    "batches",
    "compress_units",
    "stored_incompressible_pages",
    "reject_compress_poor",
    "reject_compress_fail",
    "reject_alloc_fail",
    "pool_limit_hit",
    "over_budget",
];

/// Runs the job in the plan's memory.
pub fn run(plan: &Plan, progress: &Progress) -> Result<Managed> {
    // A file without a name: it leaves nothing behind, however this ends.
    // SAFETY: a terminated name.
    let raw = unsafe { libc::memfd_create(c"uzswap-report".as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error()).context("cannot make a file for the report");
    }
    // SAFETY: opened just now.
    let file = unsafe { <fs::File as std::os::fd::FromRawFd>::from_raw_fd(raw) };
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let own = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("uzswap-lab").args(["run", "--quiet", "--report", &path]);
    command.arg("--ram").arg(plan.ram_bytes.to_string());
    command.args(plan.swap.words());
    if let Some(compressor) = &plan.compressor {
        command.arg("--compressor").arg(compressor);
    }
    if let Some(batch) = plan.batch {
        command.arg("--batch").arg(batch.to_string());
    }
    command.arg("--").arg(own).args(plan.job_arguments(progress));
    let driven = drive(command, "managed", progress)?;
    let text = fs::read_to_string(&path).context("cannot read the report")?;
    let mut report: Value = serde_json::from_str(&text).context("the report is not complete")?;
    report.as_object_mut().context("the report is no object")?.remove("series");
    Ok(managed(driven, report))
}

fn managed(driven: Driven, report: Value) -> Managed {
    let number = |key: &str| report.get(key).and_then(Value::as_u64);
    let counters: BTreeMap<String, u64> =
        COUNTERS.iter().filter_map(|key| Some(((*key).to_owned(), number(key)?))).collect();
    let disk = |key: &str| report.pointer(&format!("/swap/{key}")).and_then(Value::as_u64).unwrap_or(0);
    let pages = |key: &str| -> BTreeMap<String, u64> {
        let members = report.get(key).and_then(Value::as_object).into_iter().flatten();
        members.filter_map(|(name, pages)| Some((name.clone(), pages.as_u64()?))).collect()
    };
    Managed {
        driven,
        forms: pages("forms"),
        disk_written_bytes: disk("bytes_written"),
        disk_read_bytes: disk("bytes_read"),
        ram_peak_bytes: number("ram_peak_bytes").unwrap_or(0),
        compression_ratio: report.get("compression_ratio").and_then(Value::as_f64).unwrap_or(0.0),
        counters,
        report,
    }
}
