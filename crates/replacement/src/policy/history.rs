//! The history of each page: sixteen bits a page, 32 bytes for a block of sixteen pages.
//!
//! ```text
//! in memory  0 | score, 3 bits | armed | came in at, 11 bits     out  1 | class, 6 bits | went at, 9 bits
//! ```
//!
//! Times are ticks of [`super::Policy`]. An all-zero word has no history: the page is in memory, or
//! was never there.

use std::sync::atomic::{AtomicU16, Ordering};

/// Pages of a block.
pub const BLOCK_PAGES: usize = 16;

const OUT: u16 = 1 << 15;
const CAME_BITS: u32 = 11;
const SCORE_SHIFT: u32 = 12;
const ARMED: u16 = 1 << CAME_BITS;
const WENT_BITS: u32 = 9;

/// How soon a page returned in the past, 0 to 7.
pub type Score = u8;
/// Score and age of a page, 0 to 63.
pub type Class = u8;

/// A page's decoded history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// In memory.
    In {
        /// See [`Score`].
        score: Score,
        /// The tick of its arrival or last seen use, modulo 2048.
        came: u16,
    },
    /// Out.
    Out {
        /// The page's class when it was evicted.
        class: Class,
        /// The tick of its eviction, modulo 512.
        went: u16,
    },
}

/// The history of a block's pages. Data races are harmless: a wrong word only makes a guess worse.
#[derive(Debug, Default)]
pub struct History {
    pages: [AtomicU16; BLOCK_PAGES],
}
const _: () = assert!(std::mem::size_of::<History>() == 32);

impl History {
    /// Returns the history of page `index`.
    pub fn page(&self, index: usize) -> Page {
        let word = self.pages[index].load(Ordering::Relaxed);
        match word & OUT {
            0 => Page::In { score: (word >> SCORE_SHIFT) as u8 & 7, came: word & ((1 << CAME_BITS) - 1) },
            _ => Page::Out { class: (word >> WENT_BITS) as u8 & 63, went: word & ((1 << WENT_BITS) - 1) },
        }
    }

    /// Whether the page has no history, or arrived at a multiple of 2048 ticks and is noted again.
    pub(super) fn is_blank(&self, index: usize) -> bool {
        self.pages[index].load(Ordering::Relaxed) == 0
    }

    pub(super) fn set_in(&self, index: usize, score: Score, tick: u64) {
        let word = u16::from(score & 7) << SCORE_SHIFT | tick as u16 & ((1 << CAME_BITS) - 1);
        self.pages[index].store(word, Ordering::Relaxed);
    }

    /// Whether the page is in memory and was armed on arrival or at the last look. It may have been
    /// used since.
    pub fn is_armed(&self, index: usize) -> bool {
        self.pages[index].load(Ordering::Relaxed) & (OUT | ARMED) == ARMED
    }

    pub(super) fn set_armed(&self, index: usize) {
        let word = self.pages[index].load(Ordering::Relaxed);
        if word & OUT == 0 {
            self.pages[index].store(word | ARMED, Ordering::Relaxed);
        }
    }

    pub(super) fn set_out(&self, index: usize, class: Class, tick: u64) {
        let word = OUT | u16::from(class & 63) << WENT_BITS | tick as u16 & ((1 << WENT_BITS) - 1);
        self.pages[index].store(word, Ordering::Relaxed);
    }
}

pub(super) fn age(came: u16, tick: u64) -> u16 {
    (tick as u16).wrapping_sub(came) & ((1 << CAME_BITS) - 1)
}

pub(super) fn distance(went: u16, tick: u64) -> u16 {
    (tick as u16).wrapping_sub(went) & ((1 << WENT_BITS) - 1)
}

/// Iterates over the indices of the bits set in a mask.
pub fn each(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask & 0xffff;
    std::iter::from_fn(move || {
        let index = rest.trailing_zeros() as usize;
        (rest != 0).then(|| rest &= rest - 1)?;
        Some(index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_or_out_and_times_go_round() {
        let history = History::default();
        assert_eq!(history.page(3), Page::In { score: 0, came: 0 });
        history.set_in(3, 7, 2048 + 5);
        assert_eq!(history.page(3), Page::In { score: 7, came: 5 });
        history.set_out(4, 63, 1023);
        assert_eq!(history.page(3), Page::In { score: 7, came: 5 });
        assert_eq!(history.page(4), Page::Out { class: 63, went: 511 });
        assert_eq!((age(2047, 2048 + 2), distance(1023, 2048 + 1)), (3, 2));
        history.set_armed(3);
        history.set_armed(4);
        assert_eq!(history.page(3), Page::In { score: 7, came: 5 });
        assert!(history.is_armed(3) && !history.is_armed(4));
        history.set_in(3, 1, 2047);
        assert!(!history.is_armed(3));
        assert_eq!(each(0b1000_0000_0000_0101).collect::<Vec<_>>(), [0, 2, 15]);
        assert_eq!(each(0).count(), 0);
    }
}
