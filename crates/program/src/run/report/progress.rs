//! The line of `run --progress`: memory, stored memory and faults while the program runs.

use std::time::{Duration, Instant};

use ledger::{Counter, Slot};

use crate::run::supervisor::books::Books;
use crate::size::Size;

const INTERVAL: Duration = Duration::from_secs(1);

/// Decides when a line is due, and computes rates since the previous one.
pub struct Progress {
    looked: Instant,
    faults: u64,
}

impl Progress {
    pub fn new() -> Self {
        Progress { looked: Instant::now(), faults: 0 }
    }

    /// Returns the line if one is due.
    pub fn look(&mut self, books: &Books) -> Option<String> {
        let seconds = self.looked.elapsed();
        if seconds < INTERVAL {
            return None;
        }
        let faults = books.tree.sum(Counter::Faults);
        let more = faults.saturating_sub(self.faults);
        *self = Progress { looked: Instant::now(), faults };
        let stored =
            books.tree.live().fold(0, |sum: u64, live| sum.saturating_add(Slot::stored_pages(live.slot)));
        let rate = more as f64 / seconds.as_secs_f64();
        Some(line(books.total_bytes, books.settings.budget_bytes, stored.saturating_mul(4096), rate))
    }
}

/// Fits 80 columns.
fn line(used: u64, budget: u64, stored: u64, faults_per_second: f64) -> String {
    format!(
        "uzswap: {} of {}, {} stored, {faults_per_second:.0} faults/s",
        Size::from(used),
        Size::from(budget),
        Size::from(stored)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_memory_stored_memory_and_faults() {
        let shown = line(180 << 20, 190 << 20, 96 << 20, 1234.4);
        assert_eq!(shown, "uzswap: 180 MiB of 190 MiB, 96 MiB stored, 1234 faults/s");
        assert!(line(1023 << 30, 1023 << 30, 1023 << 30, 1e9).len() < 80);
    }
}
