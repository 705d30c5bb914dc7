//! The kernel features that pagers use, and those that the environment disables.
//!
//! `UZSWAP_WITHOUT=rwp` in the environment of `uzswap run` disables access tracking (Linux 7.3),
//! for comparisons. With `move`, `run` ends as on kernels without `UFFDIO_MOVE`, for tests.

use anyhow::{bail, Result};
use sys::userfaultfd::{feature, OpenError, Userfaultfd};

/// Returns whether this kernel's userfaultfd shows uses of present pages (RWP, Linux 7.3), and
/// `without` does not forbid it.
pub fn sees_uses(without: bool) -> bool {
    !without && Userfaultfd::features().unwrap_or(0) & feature::TRACKING == feature::TRACKING
}

/// Features that the environment disables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Without {
    pub moves: bool,
    pub tracking: bool,
}

impl Without {
    pub fn of_environment() -> Result<Self> {
        std::env::var("UZSWAP_WITHOUT").map_or(Ok(Without::default()), |words| Self::parse(&words))
    }

    fn parse(words: &str) -> Result<Self> {
        let mut without = Without::default();
        for word in words.split(',').filter(|word| !word.is_empty()) {
            match word {
                "move" => without.moves = true,
                "rwp" => without.tracking = true,
                other => bail!("UZSWAP_WITHOUT={words}: there is no part {other}; choose of move, rwp"),
            }
        }
        Ok(without)
    }
}

/// Returns why this kernel cannot page; `None` if it can. Fails without userfaultfd.
pub fn why_too_old(without: Without) -> Result<Option<String>, OpenError> {
    let features = Userfaultfd::features()?;
    let offered = if without.moves { features & !feature::MOVE } else { features };
    Ok(sys::kernel::why_too_old(offered, &sys::kernel::release()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parts() {
        assert_eq!(Without::parse("").unwrap(), Without::default());
        assert_eq!(Without::parse("rwp").unwrap(), Without { moves: false, tracking: true });
        assert_eq!(Without::parse("move,rwp").unwrap(), Without { moves: true, tracking: true });
        assert!(Without::parse("scan").unwrap_err().to_string().contains("choose of move, rwp"));
    }

    #[test]
    fn tracking_that_is_forbidden_is_not_used() {
        assert!(!sees_uses(true));
    }
}
