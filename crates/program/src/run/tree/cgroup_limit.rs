//! The cgroup memory limit that programs read.

use anyhow::{anyhow, ensure, Result};

use crate::size;

/// Default multiple of the budget. HotSpot's heap starts at 1/64 of the limit and ends at 1/4; V8's
/// ends at 1/2. With 16, HotSpot starts at a quarter of the budget, and heaps may grow to several
/// times the budget, which is uzswap's purpose.
const BUDGETS: u64 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownLimit {
    /// Set by the user: shown even where the actual limit is lower, as in a container.
    Asked(u64),
    /// `None` shows the actual limit. Databases that spill to disk by the limit read the budget.
    Default { bytes: Option<u64>, budget_bytes: u64 },
}

impl ShownLimit {
    /// Encodes the limit for the preload object.
    pub fn word(self) -> String {
        match self {
            ShownLimit::Asked(bytes) => format!("{bytes}!"),
            ShownLimit::Default { bytes, budget_bytes } => format!("{} {budget_bytes}", bytes.unwrap_or(0)),
        }
    }

    /// The limit that programs other than such databases read; `None` for the actual one.
    pub fn bytes(self) -> Option<u64> {
        match self {
            ShownLimit::Asked(bytes) => Some(bytes),
            ShownLimit::Default { bytes, .. } => bytes,
        }
    }
}

/// Returns the limit to show; `None` for the actual one. `asked` is a size or "real".
pub fn shown(asked: Option<&str>, budget_bytes: u64) -> Result<Option<ShownLimit>> {
    match asked {
        Some("real") => Ok(None),
        Some(text) => {
            let amount = size::parse(text)
                .map_err(|error| anyhow!("--cgroup-limit: {error}; or write real, for the actual limit"))?;
            let bytes = amount.bytes()?;
            let why = "no program works with no memory; real is the actual limit";
            ensure!(bytes > 0, "--cgroup-limit {text}: {why}");
            Ok(Some(ShownLimit::Asked(bytes)))
        }
        None => {
            let bytes = budget_bytes.saturating_mul(BUDGETS);
            let is_less = |bytes| size::machine_bytes().is_ok_and(|machine| bytes < machine);
            let bytes = Some(bytes).filter(|bytes| is_less(*bytes));
            Ok(is_less(budget_bytes).then_some(ShownLimit::Default { bytes, budget_bytes }))
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
        assert_eq!(word(None, 1 << 20).as_deref(), Some("16777216 1048576"));
        let most = size::machine_bytes().unwrap() - 1;
        assert_eq!(word(None, most), Some(format!("0 {most}")));
        assert_eq!(word(None, 1 << 60), None);
        for wrong in ["much", "0"] {
            assert!(shown(Some(wrong), 1).unwrap_err().to_string().contains("--cgroup-limit"));
        }
    }
}
