//! What processes say they use, held against what the kernel says.

use std::collections::HashMap;

/// What a figure may be off by, as it is published now and then: half of the budget, between these.
const SLACK_BYTES: std::ops::RangeInclusive<u64> = 32 << 20..=256 << 20;
/// Looks in a row at which a figure was wrong, until it does not count any more.
const LOOKS: u32 = 4;

/// Looks in a row at which a place's figure was wrong.
#[derive(Default)]
pub struct Claims(HashMap<usize, u32>);

impl Claims {
    /// What the process in `place` uses, if that is known to be something else than it says. The
    /// kernel counts a page that processes share for each of them, and a process says its part, so
    /// with `processes` the two may differ that much.
    pub fn judge(
        &mut self,
        place: usize,
        said: u64,
        kernel: u64,
        processes: u64,
        budget: u64,
    ) -> Option<u64> {
        let slack = (budget / 2).clamp(*SLACK_BYTES.start(), *SLACK_BYTES.end());
        let most = kernel.saturating_mul(2).saturating_add(slack);
        let is_wrong = said > most || kernel > said.saturating_mul(processes).saturating_add(slack);
        if !is_wrong {
            self.forget(place);
            return None;
        }
        let looks = self.0.entry(place).or_default();
        *looks = looks.saturating_add(1);
        (*looks >= LOOKS).then_some(kernel)
    }

    /// The process has ended.
    pub fn forget(&mut self, place: usize) {
        self.0.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1 << 30;

    #[test]
    fn what_stays_wrong_does_not_count() {
        let mut claims = Claims::default();
        for (said, wrong) in [(0, true), (G, false), (G / 8, true), (u64::MAX, true), (3 * G / 2, false)] {
            for look in 1..6 {
                let known = (wrong && look >= LOOKS).then_some(G);
                assert_eq!(claims.judge(3, said, G, 1, G), known, "{said}, look {look}");
            }
            claims.forget(3);
        }
        for _ in 0..10 {
            assert_eq!(claims.judge(3, 0, G, 1, G), None);
            assert_eq!(claims.judge(3, G, G, 1, G), None, "right in between");
        }
        // A small budget is not exceeded by much before it is noticed.
        for look in 1..6 {
            assert_eq!(claims.judge(3, 0, G / 16, 1, G / 32), (look >= LOOKS).then_some(G / 16));
        }
    }

    #[test]
    fn pages_that_processes_share_are_counted_by_their_parts() {
        let mut claims = Claims::default();
        for _ in 0..8 {
            assert_eq!(claims.judge(0, G / 4, G, 4, G), None);
        }
    }
}
