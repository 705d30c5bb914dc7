//! Whether recent pages became page LZ, so that other forms need no look.

use acomp::PAGE_SIZE;

/// Pages tried as page LZ at once before one is examined fully.
const EVERY: u32 = 16;
/// Longer objects come from pages that may be noise or numbers.
const LEN_MAX: usize = PAGE_SIZE / 4 * 3;

/// Pages of one kind have about as many distinct prefixes among their words. Pages with 32 or more
/// are hardly ever T16, those with fewer than 24 hardly ever page LZ; between, it depends on the
/// program. Each band is its least number of prefixes, and the streak of page LZ pages that it
/// requires.
const BANDS: [(u32, u32); 2] = [(24, 16), (32, 4)];

/// Tracks, by the number of distinct prefixes, how many of the last pages became page LZ. T16's
/// plan, the sample of repeats, and the estimate for numbers cost 0.6 to 1.3 us a page. Text comes
/// in long sequences of pages: after a few, most skip these checks as long as they shrink as much.
///
/// A page's form depends only on the pages before it.
pub(crate) struct Predictor([Band; BANDS.len()]);

#[derive(Clone, Copy)]
struct Band {
    streak: u32,
    since: u32,
    /// Mean length of their objects. The newest weighs a quarter.
    len: usize,
}

impl Predictor {
    pub(crate) const NEW: Predictor = Predictor([Band { streak: 0, since: 0, len: 0 }; BANDS.len()]);

    fn band(&mut self, prefixes: u32) -> Option<(&mut Band, u32)> {
        let above = BANDS.iter().filter(|&&(least, _)| prefixes >= least).count();
        let number = above.checked_sub(1)?;
        Some((&mut self.0[number], BANDS[number].1))
    }

    /// Advances to the next page. Returns whether to try it as page LZ at once.
    pub(crate) fn applies(&mut self, prefixes: u32) -> bool {
        let Some((band, needed)) = self.band(prefixes) else { return false };
        if band.streak < needed {
            return false;
        }
        band.since += 1;
        band.since < EVERY
    }

    /// Whether a page tried at once shrank as expected.
    pub(crate) fn accepts(&mut self, prefixes: u32, len: usize) -> bool {
        self.band(prefixes).is_some_and(|(band, _)| len <= LEN_MAX && len <= 2 * band.len)
    }

    /// Notes a fully examined page: its length as page LZ, or `None` for another form.
    pub(crate) fn looked(&mut self, prefixes: u32, lz_len: Option<usize>) {
        let Some((band, _)) = self.band(prefixes) else { return };
        match lz_len.filter(|&len| len <= LEN_MAX) {
            Some(len) => {
                band.len = if band.streak == 0 { len } else { (3 * band.len + len) / 4 };
                band.streak += 1;
                band.since = 0;
            }
            None => band.streak = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streak_is_taken_for_granted_until_something_else_comes() {
        let mut predictor = Predictor::NEW;
        for _ in 0..4 {
            assert!(!predictor.applies(50));
            predictor.looked(50, Some(1500));
        }
        // Most pages are tried at once, except those that T16 may fit.
        for _ in 1..EVERY {
            assert!(predictor.applies(50) && predictor.accepts(50, 1600));
            assert!(!predictor.applies(30) && !predictor.applies(5));
        }
        assert!(!predictor.applies(50), "one is looked at now and then");
        predictor.looked(50, Some(1500));
        assert!(predictor.applies(40));
        assert!(!predictor.accepts(50, 3001), "twice as long as the others");
        predictor.looked(40, Some(3001));
        predictor.looked(30, None);
        assert!(predictor.applies(50));
        assert!(!predictor.accepts(50, LEN_MAX + 1));
        predictor.looked(50, None);
        assert!(!predictor.applies(50));
    }
}
