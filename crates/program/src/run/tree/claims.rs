//! Compares the use that processes report with the kernel's figures.

use std::collections::HashMap;

/// Tolerance, since figures are published at intervals: half of the budget within these bounds.
const SLACK_BYTES: std::ops::RangeInclusive<u64> = 32 << 20..=256 << 20;
/// Consecutive wrong looks after which a figure is overridden.
const LOOKS: u32 = 4;

/// Consecutive wrong looks, by place.
#[derive(Default)]
pub struct Claims(HashMap<usize, u32>);

impl Claims {
    /// Returns the actual use of the process in `place` if its figure is known to be wrong. `own`
    /// is what the kernel counts, without what counts for relatives.
    pub fn judge(&mut self, place: usize, said: u64, own: u64, budget: u64) -> Option<u64> {
        let slack = (budget / 2).clamp(*SLACK_BYTES.start(), *SLACK_BYTES.end());
        let most = own.saturating_mul(2).saturating_add(slack);
        let is_wrong = said > most || own > said.saturating_add(slack);
        if !is_wrong {
            self.forget(place);
            return None;
        }
        let looks = self.0.entry(place).or_default();
        *looks = looks.saturating_add(1);
        (*looks >= LOOKS).then_some(own)
    }

    pub fn forget(&mut self, place: usize) {
        self.0.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1 << 30;

    #[test]
    fn claims_that_stay_wrong_do_not_count() {
        let mut claims = Claims::default();
        for (said, wrong) in [(0, true), (G, false), (G / 8, true), (u64::MAX, true), (3 * G / 2, false)] {
            for look in 1..6 {
                let known = (wrong && look >= LOOKS).then_some(G);
                assert_eq!(claims.judge(3, said, G, G), known, "{said}, look {look}");
            }
            claims.forget(3);
        }
        for _ in 0..10 {
            assert_eq!(claims.judge(3, 0, G, G), None);
            assert_eq!(claims.judge(3, G, G, G), None, "right in between");
        }
        // Even under a small budget the excess is noticed early.
        for look in 1..6 {
            assert_eq!(claims.judge(3, 0, G / 16, G / 32), (look >= LOOKS).then_some(G / 16));
        }
    }
}
