//! `uzswap-lab bench`: measurements.

mod program;
pub mod store;
pub mod store_report;
mod under;
mod usemem;

use ::program::size::{self, Amount};
use anyhow::{anyhow, Result};

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// Store and load a corpus of raw pages through the whole store, verifying every byte
    Store(store_report::StoreArgs),
    /// Run any program bare, under uzswap and under the kernel's zswap in the same memory
    Program(program::ProgramArgs),
    /// Fill more memory than there is, read it back in order and touch it at random, verifying
    /// every byte
    Usemem(usemem::UsememArgs),
    /// The tasks of `usemem`, led by lines
    #[command(hide = true)]
    UsememJob(usemem::job::JobArgs),
    /// One task of `usemem`
    #[command(hide = true)]
    UsememTask(usemem::task::TaskArgs),
    /// Restores the settings that `usemem --versus` has changed
    #[command(hide = true)]
    UsememUndo,
}

impl Bench {
    pub fn run(&self) -> Result<()> {
        match self {
            Bench::Store(args) => args.run(),
            Bench::Program(args) => args.run(),
            Bench::Usemem(args) => args.run(),
            Bench::UsememJob(args) => args.run(),
            Bench::UsememTask(args) => args.run(),
            Bench::UsememUndo => usemem::versus::undo::watch(),
        }
    }
}

/// The bytes of an option that is a size, or a percentage of `whole`.
pub fn size_or_share(option: &str, text: &str, whole: u64) -> Result<u64> {
    Ok(match size::parse(text).map_err(|error| anyhow!("{option}: {error}"))? {
        Amount::Percent(percent) => (whole as f64 * percent / 100.0) as u64,
        Amount::Bytes(bytes) => bytes,
    })
}
