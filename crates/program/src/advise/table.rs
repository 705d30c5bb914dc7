//! The table of budgets, and the advice.

use std::ffi::OsString;
use std::fmt::Write;

use serde::Serialize;

use super::trial::{Report, Trial};
use crate::size::{self, Size};

/// A budget that was tried. Medians of its runs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Row {
    pub budget_bytes: u64,
    /// The program's want in this budget, by which it may choose its heap.
    pub wanted_bytes: u64,
    /// Null if the program was stopped.
    pub seconds: Option<f64>,
    pub faults: u64,
    pub pages_in: u64,
    pub compression_ratio: f64,
    /// Why the budget was exceeded by more than uzswap tolerates; null if it was not.
    pub exceeded: Option<String>,
    /// Whether the kernel alone ends the program in a cgroup of this size, without swap.
    pub kernel_kills: bool,
}

/// The measurements.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Table {
    pub wanted_bytes: u64,
    /// The budget that holds all pages.
    pub whole_bytes: u64,
    /// The time in all the memory there is.
    pub seconds: f64,
    /// Whether pages left even then, because the machine has too little memory.
    pub was_paged: bool,
    pub slowdown_max: f64,
    pub rows: Vec<Row>,
    /// Options and program, for the shell.
    pub command: String,
}

/// Returns the median, the lower one of an even number.
fn median<T: Copy + PartialOrd>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    values[(values.len() - 1) / 2]
}

impl Row {
    /// Summarises the runs in a budget, at least one. `wanted_bytes` is the program's want in all
    /// memory, 0 in the run that measures it.
    pub fn of(budget_bytes: u64, wanted_bytes: u64, trials: &[Trial]) -> Self {
        let reports = || trials.iter().map(|trial| &trial.report);
        let exceeded = |report: &&Report| report.over_limit_peak_bytes > size::tolerated_excess(budget_bytes);
        let why = |report: &Report| report.over_limit_reason.clone().unwrap_or_default();
        let is_stopped = trials.iter().any(|trial| trial.status.is_none());
        Row {
            budget_bytes,
            wanted_bytes: median(
                reports().map(|report| report.ram_wanted_peak_bytes.max(report.ram_peak_bytes)),
            ),
            seconds: (!is_stopped).then(|| median(reports().map(|report| report.elapsed_seconds))),
            faults: median(reports().map(|report| report.faults)),
            pages_in: median(reports().map(|report| report.zswpin)),
            compression_ratio: median(reports().map(|report| report.compression_ratio)),
            exceeded: reports().find(exceeded).map(why),
            kernel_kills: wanted_bytes > budget_bytes,
        }
    }
}

impl Table {
    /// Returns the smallest budget that was kept, is less than the program wants, and cost no more
    /// than accepted.
    pub fn best(&self) -> Option<&Row> {
        let is_good = |row: &&Row| {
            let is_fast = row.seconds.is_some_and(|seconds| self.slowdown(seconds) <= self.slowdown_max);
            is_fast && row.exceeded.is_none()
        };
        self.rows.iter().filter(is_good).min_by_key(|row| row.budget_bytes)
    }

    fn slowdown(&self, seconds: f64) -> f64 {
        seconds / self.seconds.max(1e-3) - 1.0
    }

    /// Formats the table and the advice.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let wanted = Size::from(self.wanted_bytes);
        let _ =
            writeln!(text, "wants {wanted}, and takes {:.1} s in all the memory there is\n", self.seconds);
        if self.was_paged {
            let _ = writeln!(text, "That was too little memory: pages had to come back even then.\n");
        }
        let _ = writeln!(
            text,
            "{:>9} {:>9} {:>9} {:>8} {:>10} {:>6}  WITHOUT UZSWAP",
            "BUDGET", "OF WANTED", "SECONDS", "SLOWER", "PAGES IN", "RATIO"
        );
        for row in &self.rows {
            let share = row.budget_bytes as f64 * 100.0 / self.wanted_bytes.max(1) as f64;
            let (seconds, slower) = match row.seconds {
                Some(seconds) => {
                    (format!("{seconds:.1}"), format!("{:+.0} %", self.slowdown(seconds) * 100.0))
                }
                None => ("stopped".to_owned(), String::new()),
            };
            let exceeded = row.exceeded.as_ref().map(|why| format!("; the budget was exceeded: {why}"));
            let _ = writeln!(
                text,
                "{:>9} {:>9} {seconds:>9} {slower:>8} {:>10} {:>6.2}  {}{}",
                Size::from(row.budget_bytes).to_string(),
                format!("{share:.0} %"),
                row.pages_in,
                row.compression_ratio,
                if row.kernel_kills { "killed" } else { "fits" },
                exceeded.unwrap_or_default(),
            );
        }
        let most = self.slowdown_max * 100.0;
        let ram = |bytes| size::as_option(bytes);
        let _ = match self.best() {
            Some(row) => writeln!(text, "\nuzswap run --ram {} {}", ram(row.budget_bytes), self.command),
            None => writeln!(
                text,
                "\nNone of these costs at most {most:.0} %. This holds all pages:\nuzswap run --ram {} {}\n\
                 If the program has a collector, try another heap (user/sizing.md).",
                ram(self.whole_bytes),
                self.command,
            ),
        };
        text
    }
}

/// Joins words for a shell.
pub fn quoted<'a>(words: impl Iterator<Item = &'a OsString>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quote = |word: &OsString| match word.to_string_lossy() {
        word if !word.is_empty() && word.chars().all(is_plain) => word.into_owned(),
        word => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn trial(seconds: f64, over: u64) -> Trial {
        let report = Report {
            elapsed_seconds: seconds,
            ram_wanted_peak_bytes: 100 * MIB,
            over_limit_peak_bytes: over,
            over_limit_reason: (over > 0).then(|| "it grew".to_owned()),
            ..Report::default()
        };
        Trial { status: Some(0), report }
    }

    fn table(rows: Vec<Row>) -> Table {
        let (wanted_bytes, whole_bytes, slowdown_max) = (100 * MIB, 124 * MIB, 0.1);
        Table {
            wanted_bytes,
            whole_bytes,
            seconds: 10.0,
            slowdown_max,
            rows,
            command: "./job".into(),
            ..Table::default()
        }
    }

    #[test]
    fn the_smallest_budget_that_costs_little_is_advised() {
        let row = |mib: u64, seconds| Row::of(mib * MIB, 100 * MIB, &[trial(seconds, 0)]);
        let some = table(vec![row(80, 10.2), row(67, 10.9), row(50, 11.1)]);
        assert_eq!(some.best().map(|row| row.budget_bytes), Some(67 * MIB));
        let text = some.text();
        assert!(text.ends_with("\nuzswap run --ram 67M ./job\n"), "{text}");
        assert!(text.contains("+11 %") && text.contains("killed") && !text.contains("fits"), "{text}");
        let none = table(vec![row(80, 15.0)]);
        assert!(none.best().is_none() && none.text().contains("--ram 124M ./job"), "{}", none.text());
    }

    #[test]
    fn a_budget_that_is_exceeded_or_stopped_is_not_advised() {
        let exceeded = Row::of(80 * MIB, 100 * MIB, &[trial(10.0, 0), trial(10.0, 30 * MIB)]);
        let stopped =
            Row::of(67 * MIB, 100 * MIB, &[trial(10.0, 0), Trial { status: None, ..trial(99.0, 0) }]);
        assert_eq!(stopped.seconds, None);
        let table = table(vec![exceeded, stopped]);
        assert!(table.best().is_none());
        let text = table.text();
        assert!(text.contains("stopped") && text.contains("exceeded: it grew\n"), "{text}");
    }

    #[test]
    fn medians_count_and_a_budget_above_the_want_fits() {
        let row = Row::of(120 * MIB, 100 * MIB, &[trial(30.0, 0), trial(10.0, 0), trial(11.0, 0)]);
        assert_eq!((row.seconds, row.kernel_kills), (Some(11.0), false));
        assert_eq!(median([4, 1].into_iter()), 1);
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        let words = ["sh", "-c", "echo 'a b'", ""].map(OsString::from);
        assert_eq!(quoted(words.iter()), r"sh -c 'echo '\''a b'\''' ''");
    }
}
