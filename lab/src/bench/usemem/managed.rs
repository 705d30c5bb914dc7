//! The job under `uzswap run`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use super::drive::{drive, Driven};
use super::Plan;
use crate::bench::under::{compression_ratio, number, Report};

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
    "decompress_batches",
    "decompress_units",
    "reject_compress_poor",
    "reject_compress_fail",
    "reject_alloc_fail",
    "over_budget",
];

/// Runs the job in the plan's memory.
pub fn run(plan: &Plan) -> Result<Managed> {
    let report = Report::new()?;
    let own = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = report.command(&plan.run, plan.run.swap.words(), plan.ram_bytes);
    command.arg(own).args(plan.job_arguments());
    let driven = drive(command, "managed")?;
    Ok(managed(driven, report.read()?))
}

fn managed(driven: Driven, report: Value) -> Managed {
    let counters = COUNTERS.iter().filter_map(|key| Some(((*key).to_owned(), report.get(key)?.as_u64()?)));
    let forms = report.get("forms").and_then(Value::as_object).into_iter().flatten();
    Managed {
        driven,
        forms: forms.filter_map(|(name, pages)| Some((name.clone(), pages.as_u64()?))).collect(),
        disk_written_bytes: number(&report, "/swap/bytes_written"),
        disk_read_bytes: number(&report, "/swap/bytes_read"),
        ram_peak_bytes: number(&report, "/ram_peak_bytes"),
        compression_ratio: compression_ratio(&report),
        counters: counters.collect(),
        report,
    }
}
