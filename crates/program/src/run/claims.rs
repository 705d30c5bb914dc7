//! What processes say they use, held against what the kernel says.

use std::collections::HashMap;

/// What a figure may be off by: it is published now and then.
const SLACK_BYTES: u64 = 256 << 20;
/// Looks in a row at which a figure was wrong, until it does not count any more.
const LOOKS: u32 = 2;

/// Looks in a row at which a place's figure was wrong.
#[derive(Default)]
pub struct Claims(HashMap<usize, u32>);

impl Claims {
    /// What the process in `place` uses, if that is known to be something else than it says. The kernel counts a page that
    /// processes share for each of them, and a process says its part, so with `processes` the two may differ that much.
    pub fn judge(&mut self, place: usize, said: u64, kernel: u64, processes: u64) -> Option<u64> {
        let most = kernel.saturating_mul(2).saturating_add(SLACK_BYTES);
        let is_wrong = said > most || kernel > said.saturating_mul(processes).saturating_add(SLACK_BYTES);
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
    fn what_is_wrong_twice_does_not_count() {
        let mut claims = Claims::default();
        for (said, wrong) in [(0, true), (G, false), (G / 8, true), (u64::MAX, true), (3 * G / 2, false)] {
            assert_eq!(claims.judge(3, said, G, 1), None, "{said}: once may be chance");
            assert_eq!(claims.judge(3, said, G, 1), wrong.then_some(G), "{said}");
            claims.forget(3);
        }
        assert_eq!(claims.judge(3, 0, G, 1), None);
        assert_eq!(claims.judge(3, G, G, 1), None);
        assert_eq!(claims.judge(3, 0, G, 1), None, "right in between");
    }

    #[test]
    fn pages_that_processes_share_are_counted_by_their_parts() {
        let mut claims = Claims::default();
        for _ in 0..4 {
            assert_eq!(claims.judge(0, G / 4, G, 4), None);
        }
    }
}
