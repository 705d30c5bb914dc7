//! Which of the kernel's ways pagers take: to have pages leave, and to find them.
//!
//! For tests, `UZSWAP_WITHOUT=move,scan` in the environment of `uzswap run` has pagers do without
//! what kernels before 6.8 and 6.7 do not have; either word alone will do.

use std::fmt;

use anyhow::{bail, Result};
use ledger::{WITHOUT_MOVE, WITHOUT_SCAN};
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

/// Both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ways {
    /// How pages leave.
    pub eviction: Eviction,
    /// How they are found.
    pub finding: Finding,
}

impl Ways {
    /// What pagers do here, when told to do `without` parts of the kernel.
    pub fn of_this_kernel(without: u32) -> Self {
        let has_move = Userfaultfd::features().is_ok_and(|features| {
            // Both, as the pager wants it.
            features & feature::MOVING == feature::MOVING
        });
        let has_scan = Pagemap::open().is_ok_and(|map| {
            map.close();
            map.has_scan()
        });
        let (can_move, can_scan) =
            (has_move && without & WITHOUT_MOVE == 0, has_scan && without & WITHOUT_SCAN == 0);
        Ways {
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
        })
    }
}

/// What the environment forbids, as bits of the ledger.
pub fn without() -> Result<u32> {
    match std::env::var("UZSWAP_WITHOUT") {
        Ok(words) => parse(&words),
        Err(_) => Ok(0),
    }
}

fn parse(words: &str) -> Result<u32> {
    words.split(',').filter(|word| !word.is_empty()).try_fold(0, |parts, word| match word {
        "move" => Ok(parts | WITHOUT_MOVE),
        "scan" => Ok(parts | WITHOUT_SCAN),
        other => bail!("UZSWAP_WITHOUT={words}: there is no part {other}; choose of move, scan"),
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
        assert!(parse("moves").unwrap_err().to_string().contains("choose of move, scan"));
    }

    #[test]
    fn what_is_forbidden_is_not_used() {
        let ways = Ways::of_this_kernel(WITHOUT_MOVE | WITHOUT_SCAN);
        assert_eq!(ways, Ways { eviction: Eviction::Remap, finding: Finding::Pagemap });
        assert_eq!(ways.to_string(), "pages are remapped and copied, found in /proc/self/pagemap");
        let free = Ways::of_this_kernel(0);
        assert_eq!(Ways::of_this_kernel(WITHOUT_MOVE).finding, free.finding);
    }
}
