//! `uzswap advise`: measures the cost of smaller budgets for a program.
//!
//! It predicts nothing: the budgets in its table were tried. A curve from sampled uses was wrong by
//! factors (docs/decisions/22-advice.md).

mod table;
mod trial;
mod used;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use crate::run::{whole_bytes, RAM_BYTES_MIN};
use crate::size::{self, Amount, Size};
use table::{Row, Table};
use trial::{Settings, Trial};

/// A run that takes this many times as long as the first, and some seconds, is stopped.
const STOPPED_AT: f64 = 4.0;
const STOPPED_LATER_SECONDS: f64 = 5.0;

/// Shorter programs run once more near their want: far from the budget, their memory is looked at
/// every 100 ms.
const SHORT_SECONDS: f64 = 2.0;

/// Measure the cost of less memory: run a program in several budgets, or watch a process
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap advise -- make -j8                        in all it wants, then in 90 to 50 % of that
  uzswap advise --budget 2G,1.5G --runs 3 -- ./job medians of three runs each
  uzswap advise --pid 1234 --seconds 60            how much of its memory a process uses in a minute

The program runs once for each budget and once or twice before, with its side effects. Its input is empty and its output is discarded; \
messages remain. It is stopped when it takes more than four times as long. The memory limit that it reads follows \
the budget, as under `run`: a JVM chooses other heaps.

The last line is the command for the smallest budget that costs at most --slowdown.

Exit status: 0; 1 if no budget that was tried does that.")]
pub struct Arguments {
    /// Budgets to try: sizes, or shares of the memory that the program wants
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values = ["90%", "80%", "67%", "50%"])]
    budget: Vec<String>,
    /// Slowdown to accept
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = percent)]
    slowdown: f64,
    /// Runs for each budget; the median counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    #[command(flatten)]
    settings: Settings,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Watch a running process and its descendants instead: how much of their memory they use
    #[arg(long, value_name = "PID", value_parser = crate::stat::pid, conflicts_with_all = ["budget", "slowdown", "runs"])]
    pid: Option<u32>,
    /// Seconds to watch a process
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86400))]
    seconds: u64,
    /// The program and its arguments; `--` before it is optional
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "pid",
        conflicts_with = "pid",
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.0..=10_000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("write a percentage, such as 10%".to_owned()),
    }
}

/// Measures and prints; returns the exit status.
pub fn advise(arguments: &Arguments) -> Result<i32> {
    if let Some(pid) = arguments.pid {
        let watched = used::watch(pid, Duration::from_secs(arguments.seconds), &arguments.settings)?;
        print(&watched, arguments.json, used::Watched::text)?;
        return Ok(0);
    }
    let table = measure(arguments)?;
    print(&table, arguments.json, Table::text)?;
    Ok(if table.best().is_some() { 0 } else { 1 })
}

fn print<T: serde::Serialize>(what: &T, as_json: bool, text: fn(&T) -> String) -> Result<()> {
    match as_json {
        true => println!("{}", serde_json::to_string_pretty(what)?),
        false => print!("{}", text(what)),
    }
    Ok(())
}

fn measure(arguments: &Arguments) -> Result<Table> {
    let amounts = arguments.budget.iter().map(|text| size::parse(text));
    let amounts = amounts.collect::<Result<Vec<Amount>, _>>().context("--budget")?;
    let of = |budget_bytes, seconds_max| trials(arguments, budget_bytes, seconds_max);
    let all_bytes = size::automatic_ram_bytes()?;
    let first = Row::of(all_bytes, 0, &of(all_bytes, None)?);
    let mut wanted_bytes = first.wanted_bytes;
    let seconds = first.seconds.expect("it was not stopped");
    if seconds < SHORT_SECONDS && wanted_bytes >= RAM_BYTES_MIN {
        let near_bytes = whole_bytes(wanted_bytes);
        wanted_bytes = wanted_bytes.max(Row::of(near_bytes, 0, &of(near_bytes, None)?).wanted_bytes);
    }
    let mut budgets: Vec<u64> = amounts.iter().map(|amount| bytes_of(*amount, wanted_bytes)).collect();
    budgets.sort_unstable_by(|a, b| b.cmp(a));
    budgets.dedup();
    budgets.retain(|bytes| *bytes >= RAM_BYTES_MIN);
    ensure!(
        !budgets.is_empty(),
        "the program wants {}, and no budget is smaller than {}",
        Size::from(wanted_bytes),
        Size::from(RAM_BYTES_MIN)
    );
    let seconds_max = seconds * STOPPED_AT + STOPPED_LATER_SECONDS;
    let mut rows = Vec::new();
    for budget_bytes in budgets {
        rows.push(Row::of(budget_bytes, wanted_bytes, &of(budget_bytes, Some(seconds_max))?));
        // Less memory takes even longer.
        if rows.last().is_some_and(|row| row.seconds.is_none()) {
            break;
        }
    }
    Ok(Table {
        wanted_bytes,
        whole_bytes: whole_bytes(wanted_bytes),
        seconds,
        was_paged: first.faults > 0,
        slowdown_max: arguments.slowdown,
        rows,
        command: table::quoted(arguments.settings.words().iter().chain(&arguments.program)),
    })
}

fn bytes_of(amount: Amount, wanted_bytes: u64) -> u64 {
    match amount {
        Amount::Bytes(bytes) => bytes,
        Amount::Percent(percent) => (wanted_bytes as f64 * percent / 100.0) as u64,
    }
}

/// Runs the program in a budget as often as asked for, or until it is stopped.
fn trials(arguments: &Arguments, budget_bytes: u64, seconds_max: Option<f64>) -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for _ in 0..arguments.runs {
        let trial = trial::run(&arguments.program, &arguments.settings, budget_bytes, seconds_max)?;
        if let Some(status) = trial.status.filter(|status| *status != 0) {
            bail!("the program ended with status {status} in {}", Size::from(budget_bytes));
        }
        let is_stopped = trial.status.is_none();
        trials.push(trial);
        if is_stopped {
            break;
        }
    }
    Ok(trials)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_sizes_or_shares() {
        assert_eq!(bytes_of(Amount::Percent(67.0), 100 << 20), 67 << 20);
        assert_eq!(bytes_of(Amount::Bytes(5), 100 << 20), 5);
        assert_eq!(percent("10%"), Ok(0.1));
        assert_eq!(percent("25"), Ok(0.25));
        assert!(percent("much").is_err() && percent("-1").is_err());
    }
}
