//! Which of the kernel's ways pagers take: to have pages leave, to find them, to see their uses.
//!
//! `UZSWAP_WITHOUT=move,scan,rwp` in the environment of `uzswap run` makes pagers do without what
//! kernels before 6.8, 6.7 and 7.3 lack. Each word can stand alone.

use std::fmt;

use anyhow::{bail, Result};
use ledger::{WITHOUT_MOVE, WITHOUT_SCAN, WITHOUT_TRACKING};
use serde::Serialize;
use sys::pagemap::Pagemap;
use sys::userfaultfd::{feature, Userfaultfd};

/// How pages leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Eviction {
    /// `UFFDIO_MOVE` (Linux 6.8).
    Move,
    /// mremap() with `MREMAP_DONTUNMAP` (Linux 5.7).
    Remap,
}

/// How present pages are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finding {
    /// `PAGEMAP_SCAN` (Linux 6.7).
    Scan,
    /// Reading /proc/self/pagemap.
    Pagemap,
}

/// How uses of present pages are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessTracking {
    /// userfaultfd's RWP (Linux 7.3).
    Rwp,
    /// They are not.
    None,
}

/// All of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ways {
    /// How pages leave.
    pub eviction: Eviction,
    /// How they are found.
    pub finding: Finding,
    /// How uses are seen.
    pub tracking: AccessTracking,
}

impl Ways {
    /// What pagers do here, when told to do `without` parts of the kernel.
    pub fn of_this_kernel(without: u32) -> Self {
        let features = Userfaultfd::features().unwrap_or(0);
        // All of each, as the pager wants it.
        let has_move = features & feature::MOVING == feature::MOVING;
        let has_tracking = features & feature::TRACKING == feature::TRACKING;
        let has_scan = Pagemap::open().is_ok_and(|map| {
            map.close();
            map.has_scan()
        });
        let (can_move, can_scan) =
            (has_move && without & WITHOUT_MOVE == 0, has_scan && without & WITHOUT_SCAN == 0);
        let can_track = has_tracking && can_move && can_scan && without & WITHOUT_TRACKING == 0;
        Ways {
            tracking: if can_track { AccessTracking::Rwp } else { AccessTracking::None },
            eviction: if can_move { Eviction::Move } else { Eviction::Remap },
            finding: if can_scan { Finding::Scan } else { Finding::Pagemap },
        }
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.eviction {
            Eviction::Move => "pages are moved",
            Eviction::Remap => "pages are remapped and copied",
        })?;
        out.write_str(match self.finding {
            Finding::Scan => ", found by PAGEMAP_SCAN",
            Finding::Pagemap => ", found in /proc/self/pagemap",
        })?;
        out.write_str(match self.tracking {
            AccessTracking::Rwp => ", their uses are seen by RWP",
            AccessTracking::None => "",
        })
    }
}

/// Returns what the environment forbids, as bits of the ledger.
pub fn without() -> Result<u32> {
    std::env::var("UZSWAP_WITHOUT").map_or(Ok(0), |words| parse(&words))
}

fn parse(words: &str) -> Result<u32> {
    words.split(',').filter(|word| !word.is_empty()).try_fold(0, |parts, word| match word {
        "move" => Ok(parts | WITHOUT_MOVE),
        "scan" => Ok(parts | WITHOUT_SCAN),
        "rwp" => Ok(parts | WITHOUT_TRACKING),
        other => bail!("UZSWAP_WITHOUT={words}: there is no part {other}; choose of move, scan, rwp"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parts() {
        assert_eq!(parse("").unwrap(), 0);
        assert_eq!(parse("scan").unwrap(), WITHOUT_SCAN);
        assert_eq!(parse("move,scan").unwrap(), WITHOUT_MOVE | WITHOUT_SCAN);
        assert_eq!(parse("rwp").unwrap(), WITHOUT_TRACKING);
        assert!(parse("moves").unwrap_err().to_string().contains("choose of move, scan, rwp"));
    }

    #[test]
    fn what_is_forbidden_is_not_used() {
        let ways = Ways::of_this_kernel(WITHOUT_MOVE | WITHOUT_SCAN);
        let tracking = AccessTracking::None;
        assert_eq!(ways, Ways { eviction: Eviction::Remap, finding: Finding::Pagemap, tracking });
        assert_eq!(ways.to_string(), "pages are remapped and copied, found in /proc/self/pagemap");
        let free = Ways::of_this_kernel(0);
        assert_eq!(Ways::of_this_kernel(WITHOUT_MOVE).finding, free.finding);
        let untracked = Ways::of_this_kernel(WITHOUT_TRACKING);
        assert_eq!(untracked, Ways { tracking: AccessTracking::None, ..free });
    }
}
