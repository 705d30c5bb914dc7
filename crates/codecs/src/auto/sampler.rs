//! Whether recent pages are shorter as page LZ than in T16's form.

/// Pages after which one is compared.
const EVERY: u32 = 48;

/// Compares one page in 48 with page LZ, and every page as long as page LZ is shorter.
///
/// No cheap test tells closely enough whether T16 or page LZ is shorter, and page LZ costs three
/// times as much. But pages resemble those before them. So the sum of all pages does not exceed
/// page LZ's, and if T16 is shorter, the cost is one comparison in 48 pages.
///
/// A page's form depends only on the pages before it.
pub(super) struct Sampler {
    since: u32,
    /// Bytes of the compared pages as stored without page LZ. Each weighs half as much as the next.
    own: u32,
    /// The same as page LZ.
    lz: u32,
}

impl Sampler {
    /// Compares the first page.
    pub(super) const NEW: Sampler = Sampler { since: EVERY, own: 0, lz: 0 };

    /// Advances to the next page. Returns whether to compare it.
    pub(super) fn is_due(&mut self) -> bool {
        self.since += 1;
        self.since > EVERY || self.own > self.lz
    }

    pub(super) fn compared(&mut self, own_len: usize, lz_len: usize) {
        self.since = 0;
        self.own = self.own / 2 + own_len as u32;
        self.lz = self.lz / 2 + lz_len as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // The change shows within 48 pages, and outweighs the past.
        assert!(due(&mut sampler, 1000, 400) > 50);
        assert_eq!(due(&mut sampler, 1000, 999), 100);
        assert!(due(&mut sampler, 1000, 1500) < 10);
    }
}
