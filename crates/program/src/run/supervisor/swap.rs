//! The swap files of a run: options and the supervisor's side. Each user of the tree has an
//! unlinked file with its own key. Its processes get the file and its table, with a row for each.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use swapfile::{Config, Shared};

use crate::size;

/// Rows for a tree's processes, and for children that are about to take over.
const ROWS: usize = ledger::SLOTS + 128;

/// Minimum size: every process writes to two segments at a time.
const SWAP_BYTES_MIN: u64 = 16 << 20;
/// The maximum of a swap file's table.
const SWAP_BYTES_MAX: u64 = swapfile::SEGMENTS_MAX as u64 * swapfile::SEGMENT_BYTES as u64;

/// The options of the command line.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SwapArguments {
    /// Write pages that do not fit into memory compressed to a file on disk of at most SIZE, for
    /// the whole process tree (or for each of its users); 5 % of the disk stay free
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    swap: Option<String>,
    /// Directory of that file, which has no name there
    #[arg(long, value_name = "DIR", default_value = "/var/tmp", requires = "swap")]
    swap_dir: PathBuf,
    /// Do not encrypt that file, for disks that are encrypted already; checksums remain
    #[arg(long, requires = "swap")]
    swap_plain: bool,
}

pub struct Swap {
    pub shared: Shared,
    table: OwnedFd,
}

impl SwapArguments {
    /// Returns these options as words for another `uzswap run`.
    pub fn words(&self) -> Vec<OsString> {
        let Some(size) = &self.swap else { return Vec::new() };
        let mut words: Vec<OsString> = vec!["--swap".into(), size.into(), "--swap-dir".into()];
        words.push(self.swap_dir.clone().into());
        if self.swap_plain {
            words.push("--swap-plain".into());
        }
        words
    }

    /// Returns the features that pagers omit, as ledger flags.
    pub fn without(&self) -> u32 {
        u32::from(self.swap_plain) * ledger::WITHOUT_ENCRYPTION
    }

    /// Returns the directory, if a file was asked for.
    pub fn directory(&self) -> Option<&Path> {
        self.swap.as_ref().map(|_| &*self.swap_dir)
    }

    /// Opens the file, if one was asked for.
    pub fn open(&self) -> Result<Option<Swap>> {
        let Some(text) = &self.swap else { return Ok(None) };
        let size_bytes = size::of_option("--swap", text)?;
        if size_bytes < SWAP_BYTES_MIN {
            anyhow::bail!("--swap {text}: the minimum is {}", size::Size::from(SWAP_BYTES_MIN));
        }
        if size_bytes > SWAP_BYTES_MAX {
            anyhow::bail!("--swap {text}: the maximum is {}", size::Size::from(SWAP_BYTES_MAX));
        }
        let directory = self.swap_dir.clone();
        let config = Config { directory, size_bytes, ..Config::default() };
        let (shared, table) = Shared::create(&config, ROWS).context("--swap, --swap-dir")?;
        Ok(Some(Swap { shared, table }))
    }
}

impl Swap {
    /// Returns the descriptor of a part, numbered as in `ledger::wire`.
    pub fn part(&self, number: u32) -> Option<RawFd> {
        match number {
            0 => Some(self.shared.as_fd().as_raw_fd()),
            1 => Some(self.table.as_raw_fd()),
            _ => None,
        }
    }

    /// Frees the segments that only the ended process in this place held.
    pub fn reap(&self, place: usize) {
        self.shared.reap(owner_of(place));
    }
}

/// Returns the owner number in every table of the process in this place.
pub fn owner_of(place: usize) -> u32 {
    place as u32 + 1
}
