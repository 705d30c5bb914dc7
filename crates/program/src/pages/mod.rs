//! `uzswap pages`: files of pages, for trying compressors on one's own memory.

mod capture;
mod files;

use anyhow::Result;

pub use capture::sample;

use crate::size::{self, Amount};

/// What to do with pages.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:
  sudo uzswap pages capture --pid 1234 -o heap.pages          the memory of a live process
  sudo uzswap pause 1234 -- uzswap pages capture --pid {} -o heap.pages   all of a run's program
  uzswap pages compress heap.pages heap.records               how small it gets, and in what forms
  uzswap pages compress --compressor t16h heap.pages /dev/null
  uzswap pages decompress heap.records heap.again             heap.again is heap.pages")]
pub enum Pages {
    /// Write the non-zero anonymous pages of a live process to a file, neighbours together.
    Capture(capture::CaptureArgs),
    /// Compress a file of raw pages to records: a little-endian u32 length and that many bytes, one
    /// record a unit, the unit as it is when the length is the unit's.
    Compress(files::FilesArgs),
    /// Decompress what `compress` wrote.
    Decompress(files::FilesArgs),
}

impl Pages {
    /// Runs the subcommand.
    pub fn run(&self) -> Result<()> {
        match self {
            Pages::Capture(args) => args.run(),
            Pages::Compress(args) => args.run(uzswap::pages::compress),
            Pages::Decompress(args) => args.run(uzswap::pages::decompress),
        }
    }
}

/// Parses a unit's size. An error names the allowed sizes.
pub fn unit_size(text: &str) -> Result<usize, String> {
    match size::parse(text) {
        Ok(Amount::Bytes(bytes @ (0x1000 | 0x2000 | 0x4000 | 0x8000 | 0x10000))) => Ok(bytes as usize),
        _ => Err("a unit is 4K, 8K, 16K, 32K or 64K".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_two_up_to_64k() {
        for (text, bytes) in [("4K", 4096), ("4096", 4096), ("16k", 16384), ("64KiB", 65536), ("8kb", 8192)] {
            assert_eq!(unit_size(text), Ok(bytes));
        }
        for text in ["", "K", "5K", "128K", "4M", "-4K", "99999999999999999999K"] {
            assert!(unit_size(text).is_err(), "{text}");
        }
    }
}
