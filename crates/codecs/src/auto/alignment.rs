//! Whether recent pages repeat at even distances, so that page LZ can skip odd positions.

use acomp::PAGE_SIZE;

/// Pages searched at even positions only before one is searched completely.
const EVERY: u32 = 32;
/// Search completely if more than one matched byte in this many is matched from an odd distance.
const ODD_ONE_IN: u32 = 3;

/// Longer objects may come from pages of another kind.
const LEN_MAX: usize = PAGE_SIZE / 4 * 3;

/// Tracks which part of the matched bytes page LZ matches at odd distances.
///
/// Strings and records that an allocator has aligned repeat at multiples of 8. In java's strings
/// and V8's heaps, 9 to 14 % of the matched bytes have odd distances, many in runs of a single
/// byte. There the search of even positions saves a quarter of the time for 2 to 6 % of length.
/// Texts have 50 %, and would lose up to 30 %. So a page that hardly shrinks this way is searched
/// completely after all.
///
/// A page's form depends only on the pages before it.
pub(super) struct Alignment {
    since: u32,
    /// Matched bytes in the pages searched completely. Each page weighs half as much as the next.
    matched: u32,
    /// Matched bytes at odd distances in these pages.
    odd: u32,
}

impl Alignment {
    /// Starts without knowledge: odd positions are searched.
    pub(super) const NEW: Alignment = Alignment { since: 0, matched: 0, odd: 0 };

    /// Whether to keep the present page's object of `len` bytes from an even search.
    pub(super) fn accepts(&self, len: usize) -> bool {
        len <= LEN_MAX
    }

    /// Advances to the next page. Returns whether to search it at even positions only.
    pub(super) fn is_even(&mut self) -> bool {
        self.since += 1;
        self.since < EVERY && self.odd * ODD_ONE_IN < self.matched
    }

    pub(super) fn planned(&mut self, matched: usize, odd: usize) {
        self.since = 0;
        self.matched = self.matched / 2 + matched as u32;
        self.odd = self.odd / 2 + odd as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of 100 pages are searched completely.
    fn whole(alignment: &mut Alignment, matched: usize, odd: usize) -> usize {
        (0..100)
            .filter(|_| {
                let even = alignment.is_even();
                if !even {
                    alignment.planned(matched, odd);
                }
                !even
            })
            .count()
    }

    #[test]
    fn odd_places_are_left_out_while_matches_are_even() {
        let mut alignment = Alignment::NEW;
        assert_eq!(whole(&mut alignment, 200, 20), 4);
        // The change shows within 32 pages, or 64 if the past weighs heavily.
        assert!(whole(&mut alignment, 200, 100) > 30);
        assert_eq!(whole(&mut alignment, 200, 70), 100);
        assert!(whole(&mut alignment, 200, 0) < 20);
        let mut empty = Alignment::NEW;
        assert_eq!(whole(&mut empty, 0, 0), 100);
    }
}
