//! `uzswap trace replay`.
use std::path::PathBuf;
use anyhow::Result;

/// Play a trace under replacement policies
#[derive(Debug, clap::Args)]
pub struct ReplayArguments {
    /// The trace
    trace: PathBuf,
}

/// Plays.
pub fn replay(_arguments: &ReplayArguments) -> Result<()> {
    Ok(())
}
