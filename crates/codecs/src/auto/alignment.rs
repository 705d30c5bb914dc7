//! Whether the pages that come by now repeat at even distances, so that page LZ need not look at
//! odd places.

use acomp::PAGE_SIZE;

/// Pages that are then looked at in even places only before one is looked at whole.
const EVERY: u32 = 32;
/// Of so many bytes that matches cover one may be covered from an odd distance.
const ODD_ONE_IN: u32 = 3;

/// Longer objects may come from pages of another kind.
const LEN_MAX: usize = PAGE_SIZE / 4 * 3;

/// Remembers how much of the pages page LZ's matches at odd distances cover.
///
/// Strings and records that an allocator has aligned repeat at distances that are multiples of 8:
/// objects of java's strings and of V8's heaps have 9 to 14 % of odd ones, many of them runs of a
/// single byte. There the encoder that looks at even places saves a quarter of its time for 2 to 6
/// % of the length. Texts have 50 %, and would lose up to 30 %. So a page that hardly shrinks that
/// way is looked at whole after all.
///
/// What a page becomes depends on the pages before it, but on nothing else.
pub(super) struct Alignment {
    /// Pages since the last that was looked at whole.
    since: u32,
    /// Bytes covered in the pages looked at whole, each page's weighing half of those of the one
    /// after it.
    matched: u32,
    /// Those of them covered from odd distances.
    odd: u32,
}

impl Alignment {
    /// Nothing is known, and odd places are looked at.
    pub(super) const NEW: Alignment = Alignment { since: 0, matched: 0, odd: 0 };

    /// Whether what even places made of the present page is to be kept.
    pub(super) fn accepts(&self, len: usize) -> bool {
        len <= LEN_MAX
    }

    /// Whether the present page is to be looked at in even places only.
    pub(super) fn is_even(&mut self) -> bool {
        self.since += 1;
        self.since < EVERY && self.odd * ODD_ONE_IN < self.matched
    }

    /// Takes account of a page that was looked at whole.
    pub(super) fn planned(&mut self, matched: usize, odd: usize) {
        self.since = 0;
        self.matched = self.matched / 2 + matched as u32;
        self.odd = self.odd / 2 + odd as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of 100 that were looked at whole.
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
        // The change is seen within 32 pages, or 64 where the past weighs heavily.
        assert!(whole(&mut alignment, 200, 100) > 30);
        assert_eq!(whole(&mut alignment, 200, 70), 100);
        assert!(whole(&mut alignment, 200, 0) < 20);
        let mut empty = Alignment::NEW;
        assert_eq!(whole(&mut empty, 0, 0), 100);
    }
}
