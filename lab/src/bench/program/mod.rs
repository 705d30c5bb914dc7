//! `uzswap-lab bench program`: any command bare, under `uzswap run`, and under the kernel's zswap
//! with the same total memory.

mod outcome;
mod print;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde::Serialize;

use self::outcome::Outcome;
use super::usemem::versus::command::{self, InKernel};
use super::usemem::versus::Versus;
use program::run::SwapArguments;
use program::run::RAM_BYTES_MIN;
use program::size::{self, Amount};

/// Run any program bare, under uzswap and under the kernel's zswap in the same memory
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap-lab bench program -- perl examples/concordance.pl
  sudo uzswap-lab bench program --ram 67%,50% --versus kernel-zswap --plot job.svg -- ./job

The command runs once in memory without a limit, to see how much it wants, and once bare; then --repeat times in each memory, \
and the median counts. Its standard output is read and compared, its standard input is empty. The kernel has the same total: \
anonymous memory and the pool together; with --swap its pool is limited to half of that and its shrinker is on. \
To find the limit of the cgroup that comes to that, the command runs up to five times.")]
pub struct ProgramArgs {
    /// Memory: sizes, or shares of what the program wants
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values = ["67%", "50%"])]
    ram: Vec<String>,
    #[command(flatten)]
    swap: SwapArguments,
    /// Compare with the kernel's own zswap (root only), =COMPRESSOR for another than lzo; or with a
    /// swap file alone
    #[arg(long, value_name = "kernel-zswap[=COMPRESSOR]|kernel-swap")]
    versus: Option<Versus>,
    /// Runs under uzswap in each memory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: u32,
    /// Compressor, as for `uzswap run`
    #[arg(long, value_name = "NAME")]
    compressor: Option<String>,
    /// Pages that one request to the compressor holds, as for `uzswap run`
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u32).range(1..=8))]
    batch: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the times as bars into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Everything measured.
#[derive(Debug, Serialize)]
struct Measured {
    command: String,
    /// Most anonymous memory of the program and its children, without a limit.
    wanted_bytes: u64,
    bare: Outcome,
    rows: Vec<Row>,
}

/// In one memory.
#[derive(Debug, Serialize)]
struct Row {
    ram_bytes: u64,
    /// The median by time.
    uzswap: Managed,
    kernel: Option<Kernel>,
}

/// Under uzswap.
#[derive(Debug, Serialize)]
struct Managed {
    #[serde(flatten)]
    outcome: Outcome,
    /// Output and status as bare.
    is_same: bool,
    /// Pages brought in, from the pool and from staging.
    pages_in: u64,
    pages_out: u64,
    /// Written to the swap file, all told; 0 without one.
    disk_written_bytes: u64,
    /// Read from it.
    disk_read_bytes: u64,
    ratio: f64,
    /// The report of the run, without what it tells over time.
    report: serde_json::Value,
}

/// In the kernel's hands.
#[derive(Debug, Serialize)]
struct Kernel {
    /// `kernel zswap` or `kernel swap`.
    kind: &'static str,
    #[serde(flatten)]
    outcome: Outcome,
    is_same: bool,
    #[serde(flatten)]
    figures: InKernel,
}

impl ProgramArgs {
    /// Measures and prints.
    ///
    /// # Errors
    /// When an argument is no good, or the command cannot be run.
    pub fn run(&self) -> Result<()> {
        if let Some(versus) = &self.versus {
            versus.check()?;
        }
        let say = |what: &str| eprintln!("uzswap: {what} ...");
        say("without a limit");
        let free = self.under_uzswap(1 << 46, Vec::new(), None)?;
        let wanted_bytes = field(&free.report, "ram_peak_bytes");
        ensure!(wanted_bytes > 0, "the program was over before its memory was looked at");
        say("bare");
        let bare = outcome::run(self.bare())?;
        let mut measured =
            Measured { command: self.words(), wanted_bytes, bare: bare.clone(), rows: Vec::new() };
        for text in &self.ram {
            let ram_bytes = self.ram_bytes(text, wanted_bytes)?;
            let mut runs = Vec::new();
            for _ in 0..self.repeat {
                say(&format!("under uzswap in {text}"));
                runs.push(self.under_uzswap(ram_bytes, self.swap.words(), Some(&bare))?);
            }
            runs.sort_by(|a, b| a.outcome.elapsed_seconds.total_cmp(&b.outcome.elapsed_seconds));
            let uzswap = runs.swap_remove(runs.len() / 2);
            let kernel = match &self.versus {
                Some(versus) => {
                    say(&format!("by {} in {text}", versus.title()));
                    Some(self.under_kernel(versus, ram_bytes, wanted_bytes, &bare)?)
                }
                None => None,
            };
            measured.rows.push(Row { ram_bytes, uzswap, kernel });
        }
        if let Some(path) = &self.plot {
            std::fs::write(path, print::svg(&measured))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&measured)?),
            false => print!("{}", print::table(&measured)),
        }
        Ok(())
    }

    fn words(&self) -> String {
        self.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    fn bare(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        command
    }

    fn ram_bytes(&self, text: &str, wanted_bytes: u64) -> Result<u64> {
        let bytes = match size::parse(text).map_err(|error| anyhow::anyhow!("--ram: {error}"))? {
            Amount::Percent(percent) => (wanted_bytes as f64 * percent / 100.0) as u64,
            Amount::Bytes(bytes) => bytes,
        };
        ensure!(
            bytes >= RAM_BYTES_MIN,
            "--ram {text} of {wanted_bytes} bytes that the program wants is less than `uzswap run` can do with ({RAM_BYTES_MIN})"
        );
        Ok(bytes)
    }

    fn under_uzswap(&self, ram_bytes: u64, words: Vec<OsString>, bare: Option<&Outcome>) -> Result<Managed> {
        let report = outcome::memory_file()?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["run", "--quiet", "--ram", &ram_bytes.to_string(), "--report", &report.path()]);
        if let Some(name) = &self.compressor {
            command.args(["--compressor", name]);
        }
        if let Some(batch) = self.batch {
            command.args(["--batch", &batch.to_string()]);
        }
        command.args(words).arg("--").args(&self.command);
        let outcome = outcome::run(command)?;
        let mut report: serde_json::Value =
            serde_json::from_str(&report.text()?).context("uzswap run left no report")?;
        report.as_object_mut().context("the report is no object")?.remove("series");
        Ok(Managed {
            is_same: bare.is_none_or(|bare| outcome.is_like(bare)),
            outcome,
            pages_in: field(&report, "zswpin") + field(&report, "refaults"),
            pages_out: field(&report, "zswpout"),
            disk_written_bytes: disk(&report, "bytes_written"),
            disk_read_bytes: disk(&report, "bytes_read"),
            ratio: report.get("compression_ratio").and_then(serde_json::Value::as_f64).unwrap_or(0.0),
            report,
        })
    }

    fn under_kernel(
        &self,
        versus: &Versus,
        ram_bytes: u64,
        wanted_bytes: u64,
        bare: &Outcome,
    ) -> Result<Kernel> {
        let start = |enter: &mut dyn FnMut(&mut Command) -> Result<()>| {
            let mut command = self.bare();
            enter(&mut command)?;
            outcome::run(command)
        };
        let (outcome, figures) =
            command::run(versus, ram_bytes, wanted_bytes, self.swap.directory(), start, |outcome| {
                outcome.is_like(bare)
            })?;
        Ok(Kernel { kind: versus.title(), is_same: outcome.is_like(bare), outcome, figures })
    }
}

fn disk(report: &serde_json::Value, name: &str) -> u64 {
    report.get("swap").map_or(0, |swap| field(swap, name))
}

fn field(report: &serde_json::Value, name: &str) -> u64 {
    report.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0)
}
