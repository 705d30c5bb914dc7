//! Compares the sizes of pages in two forms, by samples.

/// How often pages are compared, and by how much the other form must be shorter.
pub(super) struct Terms {
    pub(super) gap_first: u32,
    /// Samples after which the gap doubles.
    pub(super) doubled_after: u32,
    pub(super) gap_max: u32,
    /// The other form must be shorter by 1/2^`margin`.
    pub(super) margin: u32,
}

/// A sample loses 1/2^`DECAY` of its weight with each new one, so the last 32 count.
const DECAY: u32 = 5;

/// Compares pages with another form: ever fewer, or all while that form is shorter in sum.
///
/// Sizes differ more from page to page than from form to form, so that one or two comparisons tell
/// nothing. The distances between samples do not depend on the results, so that the sums represent
/// all pages. A context learns from some 120 samples among the first 3000 pages.
///
/// A page's form depends only on the pages before it.
pub(super) struct Account {
    terms: &'static Terms,
    since: u32,
    samples: u32,
    /// Bytes of the samples as stored without the other form.
    own: u32,
    /// Bytes of the samples in the other form.
    other: u32,
}

impl Account {
    /// Compares the first page.
    pub(super) const fn new(terms: &'static Terms) -> Account {
        Account { terms, since: terms.gap_first - 1, samples: 0, own: 0, other: 0 }
    }

    /// Advances to the next page. Returns whether to compare it.
    pub(super) fn is_due(&mut self) -> bool {
        self.since += 1;
        let gap = self.terms.gap_first << (self.samples / self.terms.doubled_after).min(16);
        self.since >= gap.min(self.terms.gap_max) || self.own - (self.own >> self.terms.margin) > self.other
    }

    pub(super) fn compared(&mut self, own_len: usize, other_len: usize) {
        self.since = 0;
        self.samples = self.samples.saturating_add(1);
        self.own = self.own - (self.own >> DECAY) + own_len as u32;
        self.other = self.other - (self.other >> DECAY) + other_len as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TERMS: Terms = Terms { gap_first: 1, doubled_after: 12, gap_max: 512, margin: 6 };

    /// Returns how many of `count` pages are compared, for varying lengths in both forms.
    fn due(account: &mut Account, count: usize, own: [usize; 3], other: [usize; 2]) -> usize {
        (0..count)
            .filter(|number| {
                let due = account.is_due();
                if due {
                    account.compared(own[number % 3], other[number % 2]);
                }
                due
            })
            .count()
    }

    #[test]
    fn samples_become_rare_and_their_sum_decides() {
        let mut account = Account::new(&TERMS);
        // Means of 1000 and 1050, although every third page is far longer in its own form.
        let varied = |account: &mut Account, count| due(account, count, [900, 900, 1200], [1000, 1100]);
        assert!((50..60).contains(&varied(&mut account, 300)));
        assert!((45..60).contains(&varied(&mut account, 4000)));
        assert!((195..205).contains(&varied(&mut account, 100_000)));
        // A change is noticed gradually, and then persists.
        let change = due(&mut account, 10_000, [1100; 3], [900; 2]);
        assert!((1_000..8_000).contains(&change), "{change}");
        assert_eq!(due(&mut account, 100, [1100; 3], [900, 1100]), 100);
        assert!(due(&mut account, 10_000, [1000; 3], [1000; 2]) < 300);
    }

    #[test]
    fn a_form_that_is_ahead_by_less_than_the_margin_does_not_count() {
        let mut account = Account::new(&TERMS);
        assert!(due(&mut account, 1000, [1000; 3], [990; 2]) < 100);
        let mut account = Account::new(&TERMS);
        assert_eq!(due(&mut account, 1000, [1000; 3], [980; 2]), 1000);
    }
}
