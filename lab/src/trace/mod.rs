//! `uzswap-lab trace`: what a program refers to, and what would become of it under other policies.

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
    ///
    /// # Errors
    /// When a file cannot be read or written, or an argument is wrong.
    pub fn run(&self) -> Result<i32> {
        match self {
            Trace::Record(arguments) => record::record(arguments),
            Trace::Replay(arguments) => replay::replay(arguments).map(|()| 0),
        }
    }
}
