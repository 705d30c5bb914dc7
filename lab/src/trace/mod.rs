//! `uzswap-lab trace`: a program's page references, and their cost under other policies.

mod file;
mod record;
mod replay;
mod simulate;

use anyhow::Result;

/// What to do with traces.
#[derive(Debug, clap::Subcommand)]
pub enum Trace {
    Record(record::RecordArguments),
    Replay(replay::ReplayArguments),
}

impl Trace {
    /// Records or replays; returns the exit status.
    pub fn run(&self) -> Result<i32> {
        match self {
            Trace::Record(arguments) => record::record(arguments),
            Trace::Replay(arguments) => replay::replay(arguments).map(|()| 0),
        }
    }
}
