//! `uzswap-lab bench program`: any command bare, under `uzswap run`, and under the kernel's zswap
//! with the same total memory.

mod outcome;
mod print;
mod search;
mod slowdown;
mod statistics;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde::Serialize;

use self::outcome::Outcome;
use self::statistics::Statistics;
use super::size_or_share;
use super::under::{compression_ratio, number, Report, RunArguments};
use super::usemem::versus::command::{ByKernel, Figures};
use super::usemem::versus::Versus;
use program::run::RAM_BYTES_MIN;
use program::size::Size;

/// Run any program bare, under uzswap and under the kernel's zswap in the same memory
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap-lab bench program -- perl examples/concordance.pl
  sudo uzswap-lab bench program --runs 5 --warmup 1 --versus kernel-zswap -- ./job
  sudo uzswap-lab bench program --slowdown 5% --versus kernel-zswap --json -- ./job

The command runs once in memory without a limit, to see how much it wants. Then bare, uzswap and the kernel take turns, and \
each runs as often as the others. Its standard output is read and compared, its standard input is empty. The kernel has the \
same total: anonymous memory and the pool together; with --swap its pool is limited to half of that and its shrinker is on. \
To find the limit of the cgroup that comes to that, the command runs up to five times. A run is an outlier if it is 14.8 \
median absolute deviations from the median.

With --slowdown, the least memory is searched for by bisection, to a 32nd of what the program wants. In each memory the \
command runs bare and limited, in turns, and the medians are compared.")]
pub struct ProgramArgs {
    /// Memory: sizes, or shares of what the program wants
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values = ["67%", "50%"], conflicts_with = "slowdown")]
    ram: Vec<String>,
    #[command(flatten)]
    run: RunArguments,
    /// Compare with the kernel's own zswap (root only), =COMPRESSOR for another than lzo; or with a
    /// swap file alone
    #[arg(long, value_name = "kernel-zswap[=COMPRESSOR]|kernel-swap")]
    versus: Option<Versus>,
    /// Search for the least memory in which the command takes at most this much longer than bare
    #[arg(long, value_name = "PERCENT", value_parser = slowdown::parse)]
    slowdown: Option<f64>,
    /// Runs of each side in each memory
    #[arg(long, alias = "repeat", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=999))]
    runs: u32,
    /// Runs of each side before those, which do not count
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=99))]
    warmup: u32,
    /// Print JSON instead of the table, or write it to =FILE beside it
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Serialize)]
struct Measured {
    command: String,
    /// Most anonymous memory of the program and its children, without a limit.
    wanted_bytes: u64,
    /// Bare first, then the others in each memory.
    sides: Vec<Measurement>,
}

/// The memory manager under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Bare,
    Uzswap,
    Kernel,
}

/// One side of the comparison, in one memory.
#[derive(Debug, Clone, Copy, Serialize)]
struct Side {
    kind: Kind,
    /// `bare`, `uzswap`, `kernel zswap` or `kernel swap`.
    name: &'static str,
    /// The budget; 0 for bare.
    ram_bytes: u64,
    /// The limit of the kernel's cgroup, or uzswap's, that meets the budget.
    limit_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Measurement {
    #[serde(flatten)]
    side: Side,
    #[serde(flatten)]
    statistics: Statistics,
    runs: Vec<Run>,
}

#[derive(Debug, Clone, Serialize)]
struct Run {
    #[serde(flatten)]
    outcome: Outcome,
    /// Output and status equal those of bare.
    is_same: bool,
    #[serde(flatten)]
    figures: Figures,
    /// The report of `uzswap run`, without its time series.
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<serde_json::Value>,
}

impl Measurement {
    /// Requires at least one run.
    fn of(side: Side, runs: Vec<Run>) -> Self {
        let seconds: Vec<f64> = runs.iter().map(|run| run.outcome.elapsed_seconds).collect();
        Measurement { side, statistics: Statistics::of(&seconds), runs }
    }

    /// The run with the median time, for figures that belong together.
    fn median_run(&self) -> &Run {
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort_by(|a, b| a.outcome.elapsed_seconds.total_cmp(&b.outcome.elapsed_seconds));
        runs[runs.len() / 2]
    }
}

fn say(what: &str) {
    eprintln!("uzswap: {what} ...");
}

impl ProgramArgs {
    pub fn run(&self) -> Result<()> {
        if let Some(versus) = &self.versus {
            versus.check()?;
        }
        say("without a limit");
        let free = self.under_uzswap(1 << 46, Vec::new(), None, None)?;
        let wanted_bytes = free.figures.peak_bytes;
        ensure!(wanted_bytes > 0, "the program was over before its memory was looked at");
        say("bare");
        let first = outcome::run(self.bare(), None)?;
        if let Some(slowdown) = self.slowdown {
            let found = self.search(slowdown, wanted_bytes, &first)?;
            return self.export(&found, slowdown::table);
        }
        let mut sides = vec![Side { kind: Kind::Bare, name: "bare", ram_bytes: 0, limit_bytes: 0 }];
        for text in &self.ram {
            let ram_bytes = self.ram_bytes(text, wanted_bytes)?;
            sides.push(Side { kind: Kind::Uzswap, name: "uzswap", ram_bytes, limit_bytes: ram_bytes });
            if let Some(versus) = &self.versus {
                say(&format!("{}: looking for the limit that comes to {text}", versus.title()));
                let limit_bytes = self.by_kernel(versus, wanted_bytes).find_limit(
                    ram_bytes,
                    |enter| self.in_kernel(enter, None),
                    |outcome| outcome.is_like(&first),
                )?;
                sides.push(Side { kind: Kind::Kernel, name: versus.title(), ram_bytes, limit_bytes });
            }
        }
        let mut runs: Vec<Vec<Run>> = sides.iter().map(|_| Vec::new()).collect();
        for round in 0..self.warmup + self.runs {
            for (side, runs) in sides.iter().zip(&mut runs) {
                match round.checked_sub(self.warmup) {
                    None => say(&format!("{}, to warm up", side.title())),
                    Some(round) => say(&format!("{}, run {} of {}", side.title(), round + 1, self.runs)),
                }
                let run = self.one(*side, wanted_bytes, &first, None)?;
                if round >= self.warmup {
                    runs.push(run);
                }
            }
        }
        let sides = sides.into_iter().zip(runs).map(|(side, runs)| Measurement::of(side, runs)).collect();
        let measured = Measured { command: self.words(), wanted_bytes, sides };
        self.export(&measured, print::table)
    }

    /// Prints the measurements, or writes them to a file.
    fn export<T: Serialize>(&self, measured: &T, table: fn(&T) -> String) -> Result<()> {
        let json = serde_json::to_string_pretty(measured)? + "\n";
        match &self.json {
            Some(path) if path.as_os_str() == "-" => print!("{json}"),
            Some(path) => {
                std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
                print!("{}", table(measured));
            }
            None => print!("{}", table(measured)),
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
        let bytes = size_or_share("--ram", text, wanted_bytes)?;
        ensure!(
            bytes >= RAM_BYTES_MIN,
            "--ram {text} of {wanted_bytes} bytes that the program wants is less than `uzswap run` can do with ({RAM_BYTES_MIN})"
        );
        Ok(bytes)
    }

    /// One run of a side. `first` is the run whose output is the reference.
    fn one(&self, side: Side, wanted_bytes: u64, first: &Outcome, patience: Option<Duration>) -> Result<Run> {
        let (outcome, figures) = match (side.kind, &self.versus) {
            (Kind::Uzswap, _) => {
                return self.under_uzswap(side.limit_bytes, self.run.swap.words(), Some(first), patience);
            }
            (Kind::Kernel, Some(versus)) => {
                self.by_kernel(versus, wanted_bytes)
                    .run(side.limit_bytes, side.ram_bytes, |enter| self.in_kernel(enter, patience))?
            }
            _ => {
                let figures = Figures { peak_bytes: wanted_bytes, ..Figures::default() };
                (outcome::run(self.bare(), patience)?, figures)
            }
        };
        Ok(Run { is_same: outcome.is_like(first), outcome, figures, report: None })
    }

    fn under_uzswap(
        &self,
        ram_bytes: u64,
        swap: Vec<OsString>,
        first: Option<&Outcome>,
        patience: Option<Duration>,
    ) -> Result<Run> {
        let report = Report::new()?;
        let mut command = report.command(&self.run, swap, ram_bytes);
        command.args(&self.command);
        let outcome = outcome::run(command, patience)?;
        let report = match outcome.is_overdue {
            // Killed before it wrote a report.
            true => serde_json::json!({}),
            false => report.read()?,
        };
        Ok(Run {
            is_same: first.is_none_or(|first| outcome.is_like(first)),
            outcome,
            figures: Figures {
                peak_bytes: number(&report, "/ram_peak_bytes"),
                pages_in: number(&report, "/zswpin") + number(&report, "/refaults"),
                pages_out: number(&report, "/zswpout"),
                disk_written_bytes: number(&report, "/swap/bytes_written"),
                disk_read_bytes: number(&report, "/swap/bytes_read"),
                ratio: compression_ratio(&report),
            },
            report: Some(report),
        })
    }

    fn by_kernel<'a>(&'a self, versus: &'a Versus, wanted_bytes: u64) -> ByKernel<'a> {
        ByKernel { versus, wanted_bytes, disk: self.run.swap.directory() }
    }

    fn in_kernel(
        &self,
        enter: &mut dyn FnMut(&mut Command) -> Result<()>,
        patience: Option<Duration>,
    ) -> Result<Outcome> {
        let mut command = self.bare();
        enter(&mut command)?;
        outcome::run(command, patience)
    }
}

impl Side {
    fn title(&self) -> String {
        match self.kind {
            Kind::Bare => self.name.to_owned(),
            _ => format!("{}, {}", self.name, Size::from(self.ram_bytes)),
        }
    }
}
