//! Whether the pages that come by now are better off as page LZ than in the form that T16 leads to.

/// A page is compared at least after so many that were not.
const EVERY: u32 = 48;

/// Compares now and then what a page takes with what page LZ would take, and as long as page LZ is
/// ahead, every page.
///
/// T16 or page LZ: nothing that is cheap to look at tells closely enough which of them is shorter,
/// and page LZ costs three times as much. What can be relied on is that pages resemble those before
/// them. So the sum of all pages does not become longer than page LZ would make it, and where T16
/// is ahead it costs one comparison in 48 pages.
///
/// What a page becomes depends on the pages before it, but on nothing else.
pub(super) struct Sampler {
    /// Pages since the last comparison.
    since: u32,
    /// Bytes of the pages compared, each weighing half of the one after it: as they were stored,
    /// without page LZ.
    own: u32,
    /// The same as page LZ.
    lz: u32,
}

impl Sampler {
    /// The first page will be compared.
    pub(super) const NEW: Sampler = Sampler { since: EVERY, own: 0, lz: 0 };

    /// Whether the present page is to be compared.
    pub(super) fn is_due(&mut self) -> bool {
        self.since += 1;
        self.since > EVERY || self.own > self.lz
    }

    /// Takes account of a page that was due.
    pub(super) fn compared(&mut self, own_len: usize, lz_len: usize) {
        self.since = 0;
        self.own = self.own / 2 + own_len as u32;
        self.lz = self.lz / 2 + lz_len as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of 100 that were compared.
    fn due(sampler: &mut Sampler, own_len: usize, lz_len: usize) -> usize {
        (0..100)
            .filter(|_| {
                let due = sampler.is_due();
                if due {
                    sampler.compared(own_len, lz_len);
                }
                due
            })
            .count()
    }

    #[test]
    fn pages_are_compared_as_long_as_it_pays() {
        let mut sampler = Sampler::NEW;
        assert_eq!(due(&mut sampler, 1000, 1500), 3);
        // The change is seen within 48 pages, and outweighs the past.
        assert!(due(&mut sampler, 1000, 400) > 50);
        assert_eq!(due(&mut sampler, 1000, 999), 100);
        assert!(due(&mut sampler, 1000, 1500) < 10);
    }
}
