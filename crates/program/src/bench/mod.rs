//! `uzswap bench`: measurements.

pub mod store;
pub mod store_report;

use anyhow::Result;

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// Store and load a corpus of raw pages through the whole store, verifying every byte
    Store(store_report::StoreArgs),
}

impl Bench {
    /// Measures and prints.
    ///
    /// # Errors
    /// When a corpus cannot be read, a name is unknown or a page comes back changed.
    pub fn run(&self) -> Result<()> {
        match self {
            Bench::Store(args) => args.run(),
        }
    }
}
