//! `uzswap-lab bench usemem`: tasks that want more memory than they get.
//!
//! The kernel people's usemem, with the checks of a memory tester: each task fills its memory,
//! reads it back in order and touches it at random; every byte that comes back is compared with
//! its original content. The processes:
//!
//! ```text
//! bench usemem ─┬─ run ── bench usemem-job ─┬─ bench usemem-task
//!               │                           └─ bench usemem-task
//!               ├─ bench usemem-job ─┬─ bench usemem-task          in a memory cgroup, by the kernel's zswap
//!               │                    └─ bench usemem-task
//!               └─ bench usemem-undo                               waits, and restores the machine's settings
//! ```

mod data;
mod drive;
pub mod job;
mod managed;
mod print;
mod ratios;
pub mod task;
pub mod versus;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{bail, ensure, Context, Result};
use serde::Serialize;

use super::size_or_share;
use super::under::RunArguments;
use program::run::RAM_BYTES_MIN;
use program::size::{self, Amount, Size};

/// Arguments of `uzswap-lab bench usemem`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap-lab bench usemem                                        a job of 1 GiB in 512 MiB
  uzswap-lab bench usemem --tasks 4 --size 512M --ram 1G --json
  uzswap-lab bench usemem --size 1500M --pages heap.pages        pages of a live process, captured
  sudo uzswap-lab bench usemem --pages heap.pages --versus kernel-zswap=lz4
  sudo uzswap-lab bench usemem --random --swap 4G --versus kernel-swap

Throughput is the sum of the tasks' rates, in 10^6 bytes a second. A touch is one byte read, at a random place; then \
its page is checked, which is in the phase's throughput and not in the touch's latency. \
Index words compress to half with lz4 and to a seventh with zstd: in 50 % of RAM lz4 cannot keep them.")]
pub struct UsememArgs {
    /// Tasks at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=512))]
    tasks: u16,
    /// Memory of each task
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    size: String,
    /// Memory for all tasks together: a size, or a percentage of what they fill
    #[arg(long, value_name = "SIZE|PERCENT", default_value = "50%")]
    ram: String,
    #[command(flatten)]
    run: RunArguments,
    /// Ask for huge pages for the tasks' memory (MADV_HUGEPAGE)
    #[arg(long)]
    huge: bool,
    #[command(flatten)]
    data: data::DataArguments,
    /// Also run the job unmanaged, in a memory cgroup as large, with the kernel's zswap before a
    /// swap file, or with the file alone; the machine's settings are always restored afterwards.
    /// Needs root
    #[arg(long, value_name = "kernel-zswap[=lzo]|kernel-swap")]
    versus: Option<versus::Versus>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The parameters of a measurement.
#[derive(Debug)]
pub struct Plan {
    job: job::JobArgs,
    ram_bytes: u64,
    run: RunArguments,
}

#[derive(Serialize)]
struct Outcome<'a> {
    tasks: usize,
    size_bytes: usize,
    total_bytes: u64,
    ram_bytes: u64,
    /// Files; empty for index words and random bytes.
    pages: &'a [PathBuf],
    random: bool,
    huge: bool,
    managed: managed::Managed,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel_zswap: Option<versus::KernelZswap>,
    /// Ours by the kernel's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    ratios: BTreeMap<String, f64>,
}

impl UsememArgs {
    pub fn run(&self) -> Result<()> {
        let plan = self.plan()?;
        if let Some(versus) = &self.versus {
            versus.check()?;
        }
        let managed = managed::run(&plan)?;
        // The first measurement is printed even if the comparison cannot be made.
        let (kernel_zswap, failure) = match &self.versus {
            Some(versus) => match versus::run(&plan, versus) {
                Ok(kernel) => (Some(kernel), None),
                Err(error) => (None, Some(error)),
            },
            None => (None, None),
        };
        let ratios =
            kernel_zswap.as_ref().map_or_else(BTreeMap::new, |kernel| ratios::ratios(&managed, kernel));
        let mut out = std::io::stdout().lock();
        if self.json {
            let result = Outcome {
                tasks: plan.job.tasks,
                size_bytes: plan.job.bytes,
                total_bytes: plan.total_bytes(),
                ram_bytes: plan.ram_bytes,
                pages: &plan.job.data.pages,
                random: plan.job.data.random,
                huge: plan.job.huge,
                managed,
                kernel_zswap,
                ratios,
            };
            serde_json::to_writer_pretty(&mut out, &result)?;
            writeln!(out)?;
        } else {
            write!(out, "{}", print::table(&plan, &managed, kernel_zswap.as_ref(), &ratios))?;
        }
        match failure {
            Some(error) => Err(error.context("no comparison")),
            None => Ok(()),
        }
    }

    fn plan(&self) -> Result<Plan> {
        let size = match size::parse(&self.size).map_err(|error| anyhow::anyhow!("--size: {error}"))? {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(_) => bail!("--size {}: give bytes, for example 512M", self.size),
        };
        let bytes = usize::try_from(size).unwrap_or(usize::MAX) & !(uzswap::PAGE_SIZE - 1);
        ensure!(bytes > 0, "--size {}: the least is a page of 4096 bytes", self.size);
        let tasks = usize::from(self.tasks);
        let total =
            bytes.checked_mul(tasks).context("--size and --tasks: that is more than any machine has")?;
        let ram_bytes = size_or_share("--ram", &self.ram, total as u64)?;
        ensure!(
            ram_bytes >= RAM_BYTES_MIN,
            "--ram {}: {} is too little, the least that works is {}",
            self.ram,
            Size::from(ram_bytes),
            Size::from(RAM_BYTES_MIN)
        );
        let mut pages = Vec::new();
        for path in &self.data.pages {
            let whole = path.canonicalize().with_context(|| path.display().to_string())?;
            // Reads each file once, so that the page cache has it before the job starts and it
            // costs the job nothing.
            let one = data::DataArguments { pages: vec![whole.clone()], random: false };
            data::Data::open(&one, 0, 1)?;
            pages.push(whole);
        }
        let data = data::DataArguments { pages, random: self.data.random };
        Ok(Plan {
            job: job::JobArgs { tasks, bytes, huge: self.huge, data },
            ram_bytes,
            run: self.run.clone(),
        })
    }
}

impl Plan {
    fn total_bytes(&self) -> u64 {
        (self.job.tasks * self.job.bytes) as u64
    }

    /// The arguments of this program that run the job.
    fn job_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["bench", "usemem-job", "--tasks"].map(OsString::from).into();
        arguments.push(self.job.tasks.to_string().into());
        arguments.push("--bytes".into());
        arguments.push(self.job.bytes.to_string().into());
        arguments.extend(self.job.huge.then(|| "--huge".into()));
        arguments.extend(self.job.data.words());
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(size: &str, ram: &str) -> UsememArgs {
        UsememArgs {
            tasks: 2,
            size: size.to_owned(),
            ram: ram.to_owned(),
            run: RunArguments::default(),
            huge: false,
            data: data::DataArguments::default(),
            versus: None,
            json: false,
        }
    }

    #[test]
    fn a_share_is_of_the_job() {
        let plan = args("64M", "50%").plan().unwrap();
        assert_eq!((plan.job.bytes, plan.ram_bytes, plan.total_bytes()), (64 << 20, 64 << 20, 128 << 20));
        assert_eq!(args("64M", "40M").plan().unwrap().ram_bytes, 40 << 20);
    }

    #[test]
    fn bad_sizes_are_named() {
        for (size, ram, word) in [
            ("12Q", "50%", "--size"),
            ("50%", "50%", "--size"),
            ("1000", "50%", "--size"),
            ("64M", "x", "--ram"),
            ("64M", "1%", "16 MiB"),
        ] {
            let error = args(size, ram).plan().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn the_job_receives_the_plan() {
        let mut plan = args("64M", "50%").plan().unwrap();
        plan.job.data.pages = vec!["a.pages".into(), "b.pages".into()];
        let words = plan.job_arguments();
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let wanted = "bench usemem-job --tasks 2 --bytes 67108864 --pages a.pages --pages b.pages";
        assert_eq!(words.join(" "), wanted);
    }
}
