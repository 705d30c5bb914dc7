//! Leaps of the hand: where all that it meets goes, it would never learn of the rest.
//!
//! Of a loop over more than memory holds the oldest pages lie just before the hand, all the time.
//! What was just brought in lies just behind it, and returns later than anything else: that is
//! found out only if the hand looks there. Where nothing returns there is nothing to be found, and
//! each leap costs a look at what is passed.

/// When the hand leaps, and how far.
#[derive(Debug, Default)]
pub struct Leaps {
    /// Pages passed since the start of the round, and in the round before.
    passed: u64,
    memory: u64,
    /// Pages that went since the last leap.
    gone: u64,
    /// All that had returned by then.
    returned: u64,
    /// Pages that are yet to be passed without a look.
    skipped: u64,
    has_skipped: bool,
    seed: u64,
}

/// Leaps while as many pages go as memory holds.
const EVERY: u64 = 8;
/// Of pages that go one in so many returns, or there is no leap.
const RETURNED_PART: u64 = 4;
/// Fewer pages are looked at in no time, and go by runs of as many as that.
const MEMORY_MIN: u64 = 1024;

impl Leaps {
    /// The hand comes to a block with so many pages; whether it passes it without a look.
    pub fn skips(&mut self, pages: u32) -> bool {
        self.passed += u64::from(pages);
        let skips = self.skipped > 0;
        self.skipped = self.skipped.saturating_sub(pages.into());
        self.has_skipped |= skips;
        skips
    }

    /// So many pages go; `returned`: all that have returned so far.
    pub fn went(&mut self, pages: u32, returned: u64) {
        self.gone += u64::from(pages);
        if self.gone * EVERY > self.memory && self.memory >= MEMORY_MIN {
            let gone = std::mem::take(&mut self.gone);
            let since = returned.saturating_sub(std::mem::replace(&mut self.returned, returned));
            if since * RETURNED_PART < gone {
                return;
            }
            // As good as any constants: full period, the upper bits are used.
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.skipped = (self.seed >> 33) % self.memory;
        }
    }

    /// The hand is at the start again; whether it has looked at all there is.
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
