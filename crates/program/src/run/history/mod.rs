//! What a tree did over time, for its report: figures at intervals, and the processes. Both are bounded.

mod processes;
mod series;

use std::time::Instant;

use ledger::Ledger;
use serde::Serialize;

pub use processes::Process;
pub use series::Columns;

/// Taken down while a tree is served.
pub struct History {
    started: Instant,
    series: series::Series,
    processes: processes::Processes,
}

/// The end of a history.
#[derive(Debug, Serialize)]
pub struct Told {
    /// Figures over time.
    pub series: Columns,
    /// The processes, parents before their children.
    pub processes: Vec<Process>,
    /// Processes that are not among them, because there were too many.
    pub processes_left_out: u64,
}

impl History {
    /// An empty one, which begins now.
    pub fn new() -> Self {
        History {
            started: Instant::now(),
            series: series::Series::new(),
            processes: processes::Processes::default(),
        }
    }

    fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// A process, or a new program in an old one, has a slot.
    pub fn joined(&mut self, pid: u32, slot: usize) {
        self.processes.joined(pid, slot, self.now());
    }

    /// A slot is about to be released.
    pub fn left(&mut self, slot: usize, ledger: &Ledger) {
        self.processes.left(slot, ledger.slot(slot), self.now());
    }

    /// Looks at the figures; to be called every few milliseconds.
    pub fn sample(&mut self, ledger: &Ledger) {
        let mut levels = series::Levels::new(ledger.total_bytes());
        for (index, slot) in ledger.live() {
            levels.add(slot);
            self.processes.saw(index, slot);
        }
        self.series.sample(&levels, ledger, self.now());
    }

    /// The history of a tree whose program has ended.
    pub fn tell(mut self, ledger: &Ledger) -> Told {
        let now = self.now();
        self.series.finish(ledger, now);
        let (processes, processes_left_out) = self.processes.finish(ledger);
        Told { series: self.series.columns(), processes, processes_left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger that nobody has joined.
    pub fn ledger() -> Ledger {
        let settings = ledger::Settings {
            budget_bytes: 1 << 30,
            folio_bytes: 65536,
            compressor: "lz4".into(),
            forms: vec!["lz4".into()],
            verify: false,
            swap_bytes: 0,
        };
        Ledger::create(&settings).unwrap().0
    }
}
