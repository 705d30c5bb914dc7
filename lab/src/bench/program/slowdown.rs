//! The least memory in which a program's slowdown relative to bare stays within a bound.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::outcome::Outcome;
use super::statistics::median;
use super::{say, search, Kind, ProgramArgs, Run, Side, RAM_BYTES_MIN};
use program::size::Size;

/// The search ends within this part of the program's demand.
const PARTS: u64 = 32;

#[derive(Debug, Serialize)]
pub(super) struct Slowdown {
    command: String,
    wanted_bytes: u64,
    /// As a share: 0.05 for 5 %.
    slowdown: f64,
    sides: Vec<Least>,
}

#[derive(Debug, Serialize)]
struct Least {
    kind: Kind,
    name: &'static str,
    /// `None` if the program is slower in any memory.
    least: Option<Attempt>,
    attempts: Vec<Attempt>,
}

/// The runs in one memory.
#[derive(Debug, Clone, Serialize)]
struct Attempt {
    /// uzswap's budget, or the limit of the kernel's cgroup.
    limit_bytes: u64,
    /// Peak of anonymous memory and pool together, in any run.
    peak_bytes: u64,
    /// Median of runs that alternate with the side's.
    bare_seconds: f64,
    seconds: f64,
    /// Of the run with the median time.
    pages_in: u64,
    is_same: bool,
    is_within: bool,
}

/// Parses a percentage to a share.
///
/// # Errors
/// Names the accepted forms.
pub fn parse(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let percent = number.filter(|percent| (0.0..=1000.0).contains(percent));
    percent.map(|percent| percent / 100.0).ok_or_else(|| "write a percentage, such as 5%".to_owned())
}

impl ProgramArgs {
    /// Searches for the least memory under uzswap and by the kernel.
    pub(super) fn search(&self, slowdown: f64, wanted_bytes: u64, first: &Outcome) -> Result<Slowdown> {
        let mut sides = vec![(Kind::Uzswap, "uzswap")];
        sides.extend(self.versus.as_ref().map(|versus| (Kind::Kernel, versus.title())));
        let mut found = Vec::new();
        for (kind, name) in sides {
            let mut attempts: Vec<Attempt> = Vec::new();
            // A little more than the demand, so that measuring does not make it tight.
            let most = wanted_bytes.max(RAM_BYTES_MIN) / 16 * 17;
            let low = RAM_BYTES_MIN.min(most);
            search::least(low, most, wanted_bytes / PARTS, |limit_bytes| {
                let side = Side { kind, name, ram_bytes: limit_bytes, limit_bytes };
                let attempt = self.attempt(side, slowdown, wanted_bytes, first)?;
                attempts.push(attempt.clone());
                Ok(attempt.is_within.then_some(()))
            })?;
            // By memory used: the kernel's pool is not within its limit.
            let within = attempts.iter().filter(|attempt| attempt.is_within);
            let least = within.min_by_key(|attempt| attempt.peak_bytes).cloned();
            found.push(Least { kind, name, least, attempts });
        }
        Ok(Slowdown { command: self.words(), wanted_bytes, slowdown, sides: found })
    }

    /// Runs bare and a side in turns.
    fn attempt(&self, side: Side, slowdown: f64, wanted_bytes: u64, first: &Outcome) -> Result<Attempt> {
        say(&side.title());
        let bare = Side { kind: Kind::Bare, name: "bare", ram_bytes: 0, limit_bytes: 0 };
        // A run that is far too slow is not worth waiting for.
        let patience = Duration::from_secs_f64(first.elapsed_seconds * (1.0 + slowdown) * 3.0 + 2.0);
        let (mut bare_seconds, mut seconds, mut runs) = (Vec::new(), Vec::new(), Vec::<Run>::new());
        for round in 0..self.warmup + self.runs {
            let bare = self.one(bare, wanted_bytes, first, None)?;
            let run = self.one(side, wanted_bytes, first, Some(patience))?;
            if round < self.warmup && !run.outcome.is_overdue {
                continue;
            }
            bare_seconds.push(bare.outcome.elapsed_seconds);
            seconds.push(run.outcome.elapsed_seconds);
            let is_hopeless = !run.is_same;
            runs.push(run);
            if is_hopeless {
                break;
            }
        }
        let is_same = runs.iter().all(|run| run.is_same);
        let (bare_seconds, seconds) = (median(&bare_seconds), median(&seconds));
        runs.sort_by(|a, b| a.outcome.elapsed_seconds.total_cmp(&b.outcome.elapsed_seconds));
        Ok(Attempt {
            limit_bytes: side.limit_bytes,
            peak_bytes: runs.iter().map(|run| run.figures.peak_bytes).max().unwrap_or(0),
            bare_seconds,
            seconds,
            pages_in: runs[runs.len() / 2].figures.pages_in,
            is_same,
            is_within: is_same && seconds <= bare_seconds * (1.0 + slowdown),
        })
    }
}

impl Slowdown {
    fn share(&self, attempt: &Attempt) -> f64 {
        attempt.peak_bytes as f64 / self.wanted_bytes as f64
    }
}

pub(super) fn table(found: &Slowdown) -> String {
    let mut text = format!(
        "{}\nwants {}; least memory (pool included) within {:.0} % of bare:\n",
        found.command,
        Size::from(found.wanted_bytes),
        found.slowdown * 100.0
    );
    let _ = writeln!(
        text,
        "{:16} {:>10} {:>7} {:>10} {:>9} {:>7} {:>10} {:>6}",
        "", "MEMORY", "SHARE", "LIMIT", "SECONDS", "BARE", "PAGES IN", "TRIED"
    );
    for side in &found.sides {
        let tried = side.attempts.len();
        let _ = match &side.least {
            None => writeln!(text, "{:16} slower than that in any memory; {tried} tried", side.name),
            Some(least) => writeln!(
                text,
                "{:16} {:>10} {:>6.0}% {:>10} {:>9.2} {:>6.2}x {:>10} {tried:>6}",
                side.name,
                Size::from(least.peak_bytes).to_string(),
                found.share(least) * 100.0,
                Size::from(least.limit_bytes).to_string(),
                least.seconds,
                least.seconds / least.bare_seconds,
                least.pages_in,
            ),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_is_a_percentage() {
        assert_eq!((parse("5%"), parse("12.5"), parse("0%")), (Ok(0.05), Ok(0.125), Ok(0.0)));
        for bad in ["", "%", "fast", "-5%", "NaN", "1e9%"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
