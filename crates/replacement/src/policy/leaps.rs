//! Leaps of the clock's hand. If every page that the hand meets is evicted, the hand never learns
//! about the rest.
//!
//! In a loop over more pages than memory holds, the oldest pages always lie just before the hand.
//! The pages just brought in lie just behind it and return later than any others, which the policy
//! learns only if the hand looks there. If no pages return, there is nothing to learn. Each leap
//! costs a scan of the pages passed.

/// Decides when the hand leaps, and how far.
#[derive(Debug, Default)]
pub struct Leaps {
    /// Pages passed since the start of the round, and in the round before.
    passed: u64,
    memory: u64,
    gone: u64,
    /// Total returns at the last leap.
    returned: u64,
    /// Pages still to pass without a look.
    skipped: u64,
    has_skipped: bool,
    seed: u64,
}

/// Leaps in the time in which as many pages are evicted as memory holds.
const EVERY: u64 = 8;
/// A leap requires that 1/4 of the evicted pages return.
const RETURNED_PART: u64 = 4;
/// Smaller memories are scanned quickly, and runs of this length are evicted from them.
const MEMORY_MIN: u64 = 1024;

impl Leaps {
    /// Moves the hand to a block of `pages` pages. Returns whether it passes without a look.
    pub fn skips(&mut self, pages: u32) -> bool {
        self.passed += u64::from(pages);
        let skips = self.skipped > 0;
        self.skipped = self.skipped.saturating_sub(pages.into());
        self.has_skipped |= skips;
        skips
    }

    /// Notes `pages` evictions. `returned` is the total of returns so far.
    pub fn went(&mut self, pages: u32, returned: u64) {
        self.gone += u64::from(pages);
        if self.gone * EVERY > self.memory && self.memory >= MEMORY_MIN {
            let gone = std::mem::take(&mut self.gone);
            let since = returned.saturating_sub(std::mem::replace(&mut self.returned, returned));
            if since * RETURNED_PART < gone {
                return;
            }
            // Any full-period constants do, because only the upper bits are used.
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.skipped = (self.seed >> 33) % self.memory;
        }
    }

    /// Starts a new round. Returns whether the last one looked at every block.
    pub fn round(&mut self) -> bool {
        self.memory = std::mem::take(&mut self.passed);
        !std::mem::take(&mut self.has_skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_leaps_by_less_than_a_round() {
        let mut leaps = Leaps::default();
        (0..100).for_each(|_| assert!(!leaps.skips(16)));
        leaps.went(1000, 1000);
        assert!(!leaps.skips(16), "not before it was round");
        assert!(leaps.round());
        let mut distances = Vec::new();
        for turn in 1..=20 {
            leaps.went(1617 / 8 + 1, turn * 100);
            distances.push((0..).take_while(|_| leaps.skips(16)).count());
            assert!(!leaps.skips(16));
        }
        assert!(distances.iter().all(|blocks| *blocks <= 102), "{distances:?}");
        assert!(distances.iter().max().unwrap() - distances.iter().min().unwrap() > 40, "{distances:?}");
        assert!(!leaps.round());
        leaps.went(1000, 2000);
        assert!(!leaps.skips(16), "nothing has returned");
    }
}
