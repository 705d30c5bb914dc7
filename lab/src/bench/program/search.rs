//! Search for the least sufficient memory.

use anyhow::Result;

/// Searches for the least sufficient size in `low..=high`, to within `step` bytes. `attempt`
/// returns a value if a size suffices. Sizes above a sufficient one count as sufficient, too;
/// `high` itself is tried first. Returns the least size found, with its attempt's value.
///
/// # Errors
/// An attempt's own.
pub fn least<T>(
    low: u64,
    high: u64,
    step: u64,
    mut attempt: impl FnMut(u64) -> Result<Option<T>>,
) -> Result<Option<(u64, T)>> {
    let Some(first) = attempt(high)? else { return Ok(None) };
    let mut best = (high, first);
    // The least untried size that may suffice.
    let mut from = low.min(high);
    while best.0 - from >= step.max(1) {
        let size = from + (best.0 - from) / 2;
        match attempt(size)? {
            Some(result) => best = (size, result),
            None => from = size + 1,
        }
    }
    Ok(Some(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose working set is `knee`: below, each missing share costs five times its time.
    fn seconds(memory: u64, knee: u64) -> f64 {
        let missing = knee.saturating_sub(memory) as f64 / knee as f64;
        1.0 + 5.0 * missing
    }

    #[test]
    fn the_knee_of_a_program_is_found_in_a_few_runs() {
        for knee in [32, 100, 333, 640, 999, 1000] {
            let mut tried = Vec::new();
            let found = least(16, 1000, 10, |memory| {
                tried.push(memory);
                let seconds = seconds(memory, knee);
                Ok((seconds <= 1.05).then_some(seconds))
            });
            let (memory, time) = found.unwrap().unwrap();
            let exact = (knee as f64 * 0.99).ceil() as u64;
            assert!((exact..exact + 10).contains(&memory), "{memory} instead of {exact}");
            assert_eq!(time, seconds(memory, knee));
            assert!(tried.len() <= 9 && tried.iter().all(|memory| (16..=1000).contains(memory)), "{tried:?}");
        }
    }

    #[test]
    fn a_program_that_is_slow_in_any_memory_has_no_least() {
        let mut tried = 0;
        let found = least(16, 1000, 10, |_| {
            tried += 1;
            Ok(None::<()>)
        });
        assert!(found.unwrap().is_none() && tried == 1);
    }

    #[test]
    fn one_that_needs_nothing_gets_the_least_there_is() {
        assert_eq!(least(16, 1000, 1, |memory| Ok(Some(memory))).unwrap(), Some((16, 16)));
        assert_eq!(least(16, 16, 1, |memory| Ok(Some(memory))).unwrap(), Some((16, 16)));
        // The lower bound exceeds the upper.
        assert_eq!(least(16, 8, 1, |memory| Ok(Some(memory))).unwrap(), Some((8, 8)));
        assert!(least(1, 9, 1, |_| -> Result<Option<()>> { anyhow::bail!("cannot run") }).is_err());
    }
}
