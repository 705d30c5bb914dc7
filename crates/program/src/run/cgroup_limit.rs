//! The memory limit that programs read in their control group.

use anyhow::{anyhow, bail, Result};

use crate::size;

/// How many times the budget is shown where nothing else is asked for. HotSpot's heap begins with a
/// 64th of what it reads and ends at a quarter, V8's ends at a half: with 16 the first is a quarter
/// of the budget, and heaps may still grow to several times the budget, which is what uzswap is
/// for.
const BUDGETS: u64 = 16;

/// What the program is to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownLimit {
    /// The limit.
    pub bytes: u64,
    /// The user asked for it. It is shown where the actual one is lower, too, as in a container.
    pub is_asked: bool,
}

impl ShownLimit {
    /// As the preload object reads it.
    pub fn word(self) -> String {
        format!("{}{}", self.bytes, if self.is_asked { "!" } else { "" })
    }
}

/// What the program is to read: `None` for what is there. `asked` is a size, "real", or nothing.
///
/// # Errors
/// What is wrong with the size.
pub fn shown(asked: Option<&str>, budget_bytes: u64) -> Result<Option<ShownLimit>> {
    match asked {
        Some("real") => Ok(None),
        Some(text) => {
            let amount = size::parse(text)
                .map_err(|error| anyhow!("--cgroup-limit: {error}; or write real, for the actual limit"))?;
            match amount.bytes()? {
                0 => {
                    bail!("--cgroup-limit {text}: no program works with no memory; real is the actual limit")
                }
                bytes => Ok(Some(ShownLimit { bytes, is_asked: true })),
            }
        }
        None => {
            let bytes = budget_bytes.saturating_mul(BUDGETS);
            let is_less = size::machine_bytes().is_ok_and(|machine| bytes < machine);
            Ok(is_less.then_some(ShownLimit { bytes, is_asked: false }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_shown_where_it_is_one() {
        let word = |asked, budget| shown(asked, budget).unwrap().map(ShownLimit::word);
        assert_eq!(word(Some("real"), 1 << 20), None);
        assert_eq!(word(Some("3G"), 1 << 20).as_deref(), Some("3221225472!"));
        assert_eq!(word(None, 1 << 20).as_deref(), Some("16777216"));
        assert_eq!(word(None, 1 << 60), None);
        for wrong in ["much", "0"] {
            assert!(shown(Some(wrong), 1).unwrap_err().to_string().contains("--cgroup-limit"));
        }
    }
}
