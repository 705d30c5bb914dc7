//! `uzswap-lab trace replay`: a trace under every policy, in memories of several sizes.

use std::path::PathBuf;

use anyhow::{ensure, Result};
use serde::Serialize;
use sys::PAGE_SIZE;

use super::file;
use super::simulate::{self, References, POLICIES};
use crate::bench::size_or_share;
use program::size::Size;

/// Play a trace under replacement policies: how many pages each brings in
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap-lab trace replay perl.trace
  uzswap-lab trace replay perl.trace --policy pager,lru,min --memory 30%,50%,70%

Memory is what the program's pages may take: a size, or a share of the most that the trace wants at one time. Of a budget of \
two thirds, with pages that compress to a third, half of them stay; of a budget of a half, a quarter.

`pager` is the code that `uzswap run` has; it sees faults alone, and `tracking` uses, too, as on Linux 7.3. lru and kernel (its \
two lists) see every use, and min the future.")]
pub struct ReplayArguments {
    /// The trace, from `uzswap-lab trace record`
    trace: PathBuf,
    /// Policies, of: pager, tracking, lru, kernel, min
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values = POLICIES)]
    policy: Vec<String>,
    /// Memory: sizes or shares of the most that is wanted
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values = ["25%", "50%"])]
    memory: Vec<String>,
    /// Microseconds that bringing a page in takes, for the predicted time
    #[arg(long, value_name = "US", default_value_t = 12.0)]
    fault_us: f64,
    /// Microseconds that moving a page out and compressing it takes
    #[arg(long, value_name = "US", default_value_t = 3.0)]
    evict_us: f64,
    /// Microseconds that a look at a page takes
    #[arg(long, value_name = "US", default_value_t = 0.05)]
    look_us: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Replay {
    command: String,
    /// References to this many most recently used pages are missing from the trace.
    filter_pages: u64,
    uses: u64,
    /// Most pages in use at one time.
    peak_pages: u64,
    first_touches: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    memory_pages: u64,
    policy: String,
    pages_in: u64,
    /// As a multiple of MIN's, if MIN was played and brought any in.
    of_min: Option<f64>,
    looks: u64,
    predicted_seconds: f64,
    note: String,
}

/// Plays and prints.
///
/// # Errors
/// If the file is no trace, or a policy or a size is invalid.
pub fn replay(arguments: &ReplayArguments) -> Result<()> {
    for name in &arguments.policy {
        ensure!(POLICIES.contains(&name.as_str()), "--policy {name}: choose of {}", POLICIES.join(", "));
    }
    let (meta, references) = file::read(&arguments.trace)?;
    let references = References::new(&references);
    let peak = references.peak_pages();
    ensure!(peak > 0, "{} has no references", arguments.trace.display());
    let mut replay = Replay {
        command: meta.command,
        filter_pages: meta.filter_pages,
        uses: 0,
        peak_pages: peak as u64,
        first_touches: 0,
        rows: Vec::new(),
    };
    for text in &arguments.memory {
        let pages = memory_pages(text, peak)?;
        if (pages as u64) < 4 * meta.filter_pages {
            let filter = Size::from(meta.filter_pages * PAGE_SIZE as u64);
            eprintln!(
                "uzswap: --memory {text}: little more than the {filter} whose use the trace does not show"
            );
        }
        let mut rows = Vec::new();
        for name in &arguments.policy {
            let mut policy = simulate::policy(name, &references, pages).expect("looked for above");
            let outcome = simulate::play(&references, &mut *policy);
            (replay.uses, replay.first_touches) = (outcome.uses, outcome.first_touches);
            let out = (outcome.first_touches + outcome.pages_in).saturating_sub(pages as u64);
            let us = outcome.pages_in as f64 * arguments.fault_us
                + out as f64 * arguments.evict_us
                + outcome.looks as f64 * arguments.look_us;
            rows.push(Row {
                memory_pages: pages as u64,
                policy: name.clone(),
                pages_in: outcome.pages_in,
                of_min: None,
                looks: outcome.looks,
                predicted_seconds: us / 1e6,
                note: outcome.note,
            });
        }
        let least = rows.iter().find(|row| row.policy == "min" && row.pages_in > 0).map(|row| row.pages_in);
        for row in &mut rows {
            row.of_min = least.map(|least| row.pages_in as f64 / least as f64);
        }
        replay.rows.extend(rows);
    }
    match arguments.json {
        true => println!("{}", serde_json::to_string_pretty(&replay)?),
        false => print(&replay),
    }
    Ok(())
}

/// Pages of a size, or of a share of `peak` pages.
fn memory_pages(text: &str, peak: usize) -> Result<usize> {
    let pages = size_or_share("--memory", text, (peak * PAGE_SIZE) as u64)? as usize / PAGE_SIZE;
    ensure!(pages >= 64, "--memory {text}: fewer than 64 pages");
    Ok(pages)
}

fn print(replay: &Replay) {
    let size = |pages: u64| Size::from(pages * PAGE_SIZE as u64);
    println!("{}", replay.command);
    println!(
        "{} uses, {} wanted at most, {} first touches; unseen: uses of the {} used last",
        replay.uses,
        size(replay.peak_pages),
        replay.first_touches,
        size(replay.filter_pages)
    );
    println!(
        "{:>10} {:12} {:>10} {:>7} {:>11} {:>9}",
        "MEMORY", "POLICY", "PAGES IN", "OF MIN", "LOOKS", "SECONDS"
    );
    for row in &replay.rows {
        println!(
            "{:>10} {:12} {:>10} {:>7} {:>11} {:>9.2}  {}",
            size(row.memory_pages).to_string(),
            row.policy,
            row.pages_in,
            row.of_min.map_or(String::new(), |times| format!("{times:.2}")),
            row.looks,
            row.predicted_seconds,
            row.note,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size_or_a_share() {
        assert_eq!(memory_pages("50%", 1000).unwrap(), 500);
        assert_eq!(memory_pages("1M", 1000).unwrap(), 256);
        assert!(memory_pages("1%", 1000).is_err() && memory_pages("much", 1000).is_err());
    }
}
