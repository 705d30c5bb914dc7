//! Where each page of the device lies, as it is kept: objects of the log, of groups of their own.
//!
//! ```text
//!   root      a place for each 512 MiB of the device (header.rs)
//!   top page  512 places of index pages, 8 bytes each; 0 for none           group 2, key: its number
//!   index     0..32 present | 32..64 same | a word for each that is present  group 1, key: its number
//!             word: what is repeated, of a page that is `same`; else as the holder of pages keeps it (a place, and 11 bits)
//!             same and not present: the page's content was lost by a write that failed
//! ```
//!
//! An index page tells of 256 pages, 1 MiB of the device: small, since every flush writes the index
//! pages of all that changed, and a top page for each 512 MiB.

use crate::{Place, Record};

/// Pages that an index page tells of.
pub const INDEX_PAGES: usize = 256;
/// Index pages that a top page tells of.
pub(crate) const TOP_PAGES: usize = 512;
/// Bytes of a top page.
pub(crate) const TOP_BYTES: usize = TOP_PAGES * 8;
/// The group of index pages' objects.
pub const INDEX_GROUP: u16 = 1;
/// The group of top pages' objects.
pub const TOP_GROUP: u16 = 2;

const MASK_BYTES: usize = INDEX_PAGES / 8;

/// What is known of 256 pages.
#[derive(Clone, PartialEq, Eq)]
pub struct IndexPage {
    /// Which pages have content: a bit each.
    pub present: [u64; INDEX_PAGES / 64],
    /// Which of them repeat one word; of those that have no content, which lost it.
    pub same: [u64; INDEX_PAGES / 64],
    /// A word for each that is present.
    pub words: [u64; INDEX_PAGES],
}

impl Default for IndexPage {
    fn default() -> Self {
        IndexPage { present: [0; 4], same: [0; 4], words: [0; INDEX_PAGES] }
    }
}

/// Whether the bit of a page is set.
fn has(mask: &[u64; 4], page: usize) -> bool {
    mask[page / 64] >> (page % 64) & 1 == 1
}

impl IndexPage {
    /// Bytes of one at most.
    pub const BYTES_MAX: usize = 2 * MASK_BYTES + 8 * INDEX_PAGES;

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.present == [0; 4] && self.same == [0; 4]
    }

    /// Notes what a page that has content has.
    pub fn set(&mut self, page: usize, word: u64, is_same: bool) {
        self.present[page / 64] |= 1 << (page % 64);
        self.same[page / 64] |= u64::from(is_same) << (page % 64);
        self.words[page] = word;
    }

    /// Notes that a page's content is lost.
    pub fn set_lost(&mut self, page: usize) {
        self.same[page / 64] |= 1 << (page % 64);
    }

    /// The word of a page, and whether it is repeated; `None` when the page has no content.
    pub fn get(&self, page: usize) -> Option<(u64, bool)> {
        has(&self.present, page).then(|| (self.words[page], has(&self.same, page)))
    }

    /// Whether a page's content is lost.
    pub fn is_lost(&self, page: usize) -> bool {
        !has(&self.present, page) && has(&self.same, page)
    }

    /// Bytes that it takes.
    pub fn encoded_len(&self) -> usize {
        2 * MASK_BYTES + 8 * self.present.iter().map(|mask| mask.count_ones() as usize).sum::<usize>()
    }

    /// Writes it to a slice of that length.
    pub fn encode(&self, into: &mut [u8]) {
        let present = (0..INDEX_PAGES).filter(|&page| has(&self.present, page)).map(|page| self.words[page]);
        let words = self.present.iter().chain(&self.same).copied().chain(present);
        for (room, word) in into.chunks_exact_mut(8).zip(words) {
            room.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// What was written.
    pub fn decode(bytes: &[u8]) -> Option<IndexPage> {
        let (words, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() || words.len() < 8 {
            return None;
        }
        let mut page = IndexPage::default();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        page.present.fill_with(|| words.next().unwrap_or(0));
        page.same.fill_with(|| words.next().unwrap_or(0));
        if page.encoded_len() != bytes.len() {
            return None;
        }
        for number in 0..INDEX_PAGES {
            if has(&page.present, number) {
                page.words[number] = words.next()?;
            }
        }
        Some(page)
    }
}

/// Where the index's own pages lie: places as numbers, 0 for none, since nothing lies in the first
/// segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub(crate) pages: Vec<u64>,
    pub(crate) tops: Vec<u64>,
    /// Top pages that changed since they were written.
    changed: Vec<bool>,
}

impl Index {
    /// Of a device of so many pages, all of them without content.
    pub(crate) fn new(pages: u64) -> Index {
        let pages = usize::try_from(pages).expect("a device's pages").div_ceil(INDEX_PAGES);
        let tops = pages.div_ceil(TOP_PAGES);
        Index { pages: vec![0; pages], tops: vec![0; tops], changed: vec![false; tops] }
    }

    /// Index pages.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Where an index page lies.
    pub fn place(&self, page: usize) -> Option<Place> {
        of_bits(self.pages[page])
    }

    /// An index page lies elsewhere now, or there is none; returns where it was, which is the
    /// caller's to free.
    pub fn set(&mut self, page: usize, place: Option<Place>) -> Option<Place> {
        self.changed[page / TOP_PAGES] = true;
        of_bits(std::mem::replace(&mut self.pages[page], place.map_or(0, Place::to_bits)))
    }

    /// The top pages that changed.
    pub fn changed_tops(&self) -> Vec<usize> {
        (0..self.tops.len()).filter(|&top| self.changed[top]).collect()
    }

    /// A top page as it is kept; `None` when it tells of nothing.
    pub fn top_page(&self, top: usize) -> Option<[u8; TOP_BYTES]> {
        let pages = &self.pages[top * TOP_PAGES..((top + 1) * TOP_PAGES).min(self.pages.len())];
        let mut bytes = [0; TOP_BYTES];
        for (room, place) in bytes.chunks_exact_mut(8).zip(pages) {
            room.copy_from_slice(&place.to_le_bytes());
        }
        pages.iter().any(|place| *place != 0).then_some(bytes)
    }

    /// A top page was written, or there is none; returns where the last one is, which is the
    /// caller's to free.
    pub fn set_top(&mut self, top: usize, place: Option<Place>) -> Option<Place> {
        self.changed[top] = false;
        of_bits(std::mem::replace(&mut self.tops[top], place.map_or(0, Place::to_bits)))
    }

    /// Has a page of the index that lies in a segment which is to be free be rewritten by the next
    /// commit: an index page's number is answered, a top page is noted.
    pub fn leave(&mut self, record: &Record, place: Place) -> Option<usize> {
        let number = usize::try_from(record.key).ok()?;
        match record.group {
            INDEX_GROUP if self.pages.get(number) == Some(&place.to_bits()) => Some(number),
            TOP_GROUP if self.tops.get(number) == Some(&place.to_bits()) => {
                self.changed[number] = true;
                None
            }
            _ => None,
        }
    }
}

fn of_bits(bits: u64) -> Option<Place> {
    (bits != 0).then(|| Place::from_bits(bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(pages in prop::collection::btree_map(0usize..256, (any::<u64>(), 0u8..3), 0..256)) {
            let mut page = IndexPage::default();
            for (&number, &(word, kind)) in &pages {
                match kind {
                    2 => page.set_lost(number),
                    kind => page.set(number, word, kind == 1),
                }
            }
            let mut bytes = vec![0; page.encoded_len()];
            page.encode(&mut bytes);
            let back = IndexPage::decode(&bytes).unwrap();
            prop_assert!(back == page);
            for number in 0..256 {
                let expected = pages.get(&number).filter(|(_, kind)| *kind != 2).map(|(word, kind)| (*word, *kind == 1));
                prop_assert_eq!(back.get(number), expected);
                prop_assert_eq!(back.is_lost(number), pages.get(&number).is_some_and(|(_, kind)| *kind == 2));
            }
        }

        #[test]
        fn any_bytes_are_an_index_page_or_none(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            if let Some(page) = IndexPage::decode(&bytes) {
                let mut again = vec![0; page.encoded_len()];
                page.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
