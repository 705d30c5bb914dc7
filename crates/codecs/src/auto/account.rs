//! What pages take, and what they would take in another form, from samples.

/// How often pages are looked at, and how far ahead the other form has to be.
pub(super) struct Terms {
    /// Pages from one sample to the next, at first.
    pub(super) gap_first: u32,
    /// So many samples, and the gap is twice as long.
    pub(super) doubled_after: u32,
    /// Pages from one sample to the next in the long run.
    pub(super) gap_max: u32,
    /// The other form has to be shorter by one part of 2 to the power of this.
    pub(super) margin: u32,
}

/// A sample weighs one part of 2 to the power of this less than the one after it: the last 32 are
/// what counts.
const DECAY: u32 = 5;

/// Compares pages with another form, a few at first and ever fewer, and as long as that form is
/// ahead in sum, every page.
///
/// How much a page takes in either form differs from page to page by more than what the forms
/// differ by, so that one comparison or two tell nothing. The samples are taken at distances that
/// do not depend on what they show, so that the sums stand for all pages. A context gets to know
/// its pages by some 120 samples among the first 3000.
///
/// What a page becomes depends on the pages before it, but on nothing else.
pub(super) struct Account {
    terms: &'static Terms,
    /// Pages since the last sample.
    since: u32,
    /// Samples so far.
    samples: u32,
    /// Bytes of the samples as they are stored without the other form.
    own: u32,
    /// Bytes of the samples in the other form.
    other: u32,
}

impl Account {
    /// The first page will be a sample.
    pub(super) const fn new(terms: &'static Terms) -> Account {
        Account { terms, since: terms.gap_first - 1, samples: 0, own: 0, other: 0 }
    }

    /// Whether the present page is to be compared.
    pub(super) fn is_due(&mut self) -> bool {
        self.since += 1;
        let gap = self.terms.gap_first << (self.samples / self.terms.doubled_after).min(16);
        self.since >= gap.min(self.terms.gap_max) || self.own - (self.own >> self.terms.margin) > self.other
    }

    /// Takes account of a page that was due.
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

    /// Pages of `count` that were compared, where lengths in both forms vary.
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
        // In the mean 1000 against 1050, although every third page is the longer one by far.
        let varied = |account: &mut Account, count| due(account, count, [900, 900, 1200], [1000, 1100]);
        assert!((50..60).contains(&varied(&mut account, 300)));
        assert!((45..60).contains(&varied(&mut account, 4000)));
        assert!((195..205).contains(&varied(&mut account, 100_000)));
        // A change is seen by and by, and then holds.
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
