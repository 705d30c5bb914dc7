//! `uzswap top`: the programs that run under `uzswap run`.

mod figures;
pub mod find;
mod minute;
pub mod named;
mod prometheus;
mod table;

use std::io::{ErrorKind, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

use figures::Before;
use find::Found;
use minute::Minute;

/// Show the programs that run under `uzswap run`: budget, use, ratio, rates, fault latency, and the
/// last minute
#[derive(Debug, clap::Args)]
#[command(
    after_help = "USED is what the budget bounds: anonymous resident memory of all processes, with what is compressed. WANTED is \
what they would use without uzswap. Rates (pages and faults a second) and latencies are of the last interval.

With --json each look is one line, an array of trees; [] when none runs. With --prometheus the output is in Prometheus' text \
format, for a textfile collector: `uzswap top --prometheus > FILE`. Other users' trees are seen by root only."
)]
pub struct Arguments {
    /// A process of the run to show, or its `uzswap run`
    #[arg(value_parser = crate::stat::pid)]
    pid: Option<u32>,
    /// Look once, after one interval
    #[arg(long)]
    once: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print Prometheus' text format: one look, at once
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Seconds between looks
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err("write seconds, from 0.05 to 86400".to_owned()),
    }
}

pub fn run(arguments: &Arguments) -> Result<i32> {
    let tree = match arguments.pid {
        None => None,
        Some(pid) => match named::run_of(pid) {
            Some(named) => Some(named.found.tree),
            None => bail!(
                "{pid} is in no run: `uzswap top` shows those there are (other users' are seen by root only)"
            ),
        },
    };
    match show(arguments, tree) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(0),
    }
}

fn show(arguments: &Arguments, tree: Option<u64>) -> std::io::Result<()> {
    let trees = || -> Vec<Found> {
        let is_meant = |found: &Found| tree.is_none_or(|tree| found.tree == tree);
        find::trees().into_iter().filter(is_meant).collect()
    };
    let mut out = std::io::stdout();
    let is_screen = out.is_terminal() && !arguments.once && !arguments.json;
    let interval = Duration::from_secs_f64(arguments.interval);
    let started = Instant::now();
    let mut looked = started;
    let mut found = trees();
    if arguments.prometheus {
        // Prometheus computes rates itself.
        let text = prometheus::text(&found, &figures::trees(&found, &[], 1.0));
        out.write_all(text.as_bytes())?;
        return out.flush();
    }
    let mut minute = Minute::default();
    loop {
        // Rates need two samples; without a running tree, one is enough.
        let before: Vec<Before> = found.iter().map(Before::of).collect();
        if !(arguments.once && found.is_empty()) {
            std::thread::sleep(interval);
        }
        let since = looked.elapsed();
        looked = Instant::now();
        found = trees();
        let shown = figures::trees(&found, &before, since.as_secs_f64());
        minute.add(&shown, started.elapsed().as_secs_f64(), since.as_secs_f64());
        let text = match (arguments.json, arguments.once) {
            (true, _) => serde_json::to_string(&shown)? + "\n",
            (false, true) => table::table(&shown),
            (false, false) => table::table(&shown) + &minute.lines(&shown),
        };
        if is_screen {
            write!(out, "\x1b[H\x1b[2J")?;
        }
        out.write_all(text.as_bytes())?;
        out.flush()?;
        if arguments.once {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "NaN", "1e9", "soon"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
