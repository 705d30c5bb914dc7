//! The memory limit that programs read in their control group.

use anyhow::{anyhow, bail, Result};

use crate::size;

/// How many times the budget is shown where nothing else is asked for. HotSpot's heap begins with a
/// 64th of what it reads and ends at a quarter, V8's ends at a half: with 16 the first is a quarter
/// of the budget, and heaps may still grow to several times the budget, which is what uzswap is
/// for.
const BUDGETS: u64 = 16;

/// What the program is to read: `None` for what is there. `asked` is a size, "real", or nothing.
///
/// # Errors
/// What is wrong with the size.
pub fn shown_bytes(asked: Option<&str>, budget_bytes: u64) -> Result<Option<u64>> {
    match asked {
        Some("real") => Ok(None),
        Some(text) => {
            let amount =
                size::parse(text).map_err(|error| anyhow!("--cgroup-limit: {error}, and no \"real\""))?;
            match amount.bytes()? {
                0 => bail!("--cgroup-limit {text}: no program works with that; real is what is there"),
                bytes => Ok(Some(bytes)),
            }
        }
        None => {
            let bytes = budget_bytes.saturating_mul(BUDGETS);
            Ok(size::machine_bytes().is_ok_and(|machine| bytes < machine).then_some(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_shown_where_it_is_one() {
        assert_eq!(shown_bytes(Some("real"), 1 << 20).unwrap(), None);
        assert_eq!(shown_bytes(Some("3G"), 1 << 20).unwrap(), Some(3 << 30));
        assert_eq!(shown_bytes(None, 1 << 20).unwrap(), Some(16 << 20));
        assert_eq!(shown_bytes(None, 1 << 60).unwrap(), None);
        for wrong in ["much", "0"] {
            assert!(shown_bytes(Some(wrong), 1).unwrap_err().to_string().contains("--cgroup-limit"));
        }
    }
}
