//! The history of a tree for its report: figures at intervals, and the processes. Both are bounded.

mod processes;
mod series;

use std::time::Instant;

use ledger::Tree;
use serde::Serialize;

pub use processes::Process;
pub use series::Columns;

pub struct History {
    started: Instant,
    series: series::Series,
    processes: processes::Processes,
}

#[derive(Debug, Serialize)]
pub struct Told {
    pub series: Columns,
    /// The processes, parents before their children.
    pub processes: Vec<Process>,
    /// Processes left out because there were too many.
    pub processes_left_out: u64,
}

impl History {
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

    /// Notes that a process has a slot: a new process, or an old one with a new program.
    pub fn joined(&mut self, pid: u32, slot: usize) {
        self.processes.joined(pid, slot, self.now());
    }

    /// Notes that a slot is about to be released.
    pub fn left(&mut self, place: usize, tree: &Tree) {
        self.processes.left(place, tree.slot(place), self.now());
    }

    /// Samples the figures; to be called every few milliseconds.
    pub fn sample(&mut self, tree: &Tree, total_bytes: u64) {
        let mut levels = series::Levels::new(total_bytes);
        for live in tree.live() {
            levels.add(live.slot);
            self.processes.saw(live.place, live.slot);
        }
        self.series.sample(&levels, tree, self.now());
        self.processes.take_commands();
    }

    /// Finishes the history of a tree whose program has ended.
    pub fn tell(mut self, tree: &Tree) -> Told {
        let now = self.now();
        self.series.finish(tree, now);
        let (processes, processes_left_out) = self.processes.finish(tree, now);
        Told { series: self.series.columns(), processes, processes_left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with a single ledger.
    pub fn ledger() -> (ledger::Keeper, Tree) {
        let settings = ledger::Settings {
            budget_bytes: 1 << 30,
            compressor: "lz4".into(),
            forms: vec!["lz4".into()],
            ..ledger::Settings::default()
        };
        let keeper = ledger::Keeper::create(&settings, 1).unwrap();
        let mut tree = Tree::default();
        tree.add(keeper.ledger());
        (keeper, tree)
    }
}
