//! The encoder's working memory: everything known of a page between its analysis and the writing of its object.

use super::format::{HEADER, LINES, OBJECT_MAX, WORDS};
use super::templates::Templates;

/// Buckets of the table that finds repeated raw words.
pub(crate) const RAW_BUCKETS: usize = 512;
/// Raw words from this one on are never referred to: a reference is one byte, and up to 13 raw words of exact
/// templates come first.
pub(crate) const RAW_REFERABLE: usize = 240;
/// Winner in the raw table: none.
pub(crate) const NO_WINNER: u8 = 255;

/// One page's analysis. About 14 KiB, reused for page after page.
#[repr(C, align(64))]
pub(crate) struct Work {
    /// The template table.
    pub(crate) templates: Templates,
    /// `hash8(word)`.
    pub(crate) word_hashes: [u8; WORDS],
    /// `hash8(word >> 16)`.
    pub(crate) prefix_hashes: [u8; WORDS],
    /// The tag of each word.
    pub(crate) tags: [u8; WORDS],
    /// The low half of each word, after undoing the rotation of its tag.
    pub(crate) lows: [u32; WORDS],
    /// Raw words; first all in order, then without repeats. Vector stores may overrun by seven.
    pub(crate) raws: [u64; WORDS + 8],
    /// The word number of each raw word.
    pub(crate) raw_places: [u16; WORDS + 32],
    /// Numbers of the raw words repeated.
    pub(crate) refs: [u8; WORDS + 64],
    /// Winner of each bucket of raw words.
    pub(crate) raw_winners: [u8; RAW_BUCKETS],
    /// Tag lines; first all, then the distinct ones. Vector stores may overrun by fifteen.
    pub(crate) lines: [u32; LINES + 16],
    /// Index bytes of the lines that repeat another. Vector stores may overrun.
    pub(crate) index: [u8; 2 * LINES],
    /// Winner of each bucket of lines.
    pub(crate) line_winners: [u8; 256],
    /// Bit `k` of word `g / 8`, byte `g % 8`: word `k` of line `g` has a literal in stream A.
    pub(crate) a_masks: [u64; LINES / 8],
    /// The same for stream B.
    pub(crate) b_masks: [u64; LINES / 8],
    /// Bit `g`: line `g` is the first of its kind.
    pub(crate) fresh: u64,
    /// Stream lengths, without the literals of the exact templates.
    pub(crate) a_len: usize,
    pub(crate) b_len: usize,
    pub(crate) raw_len: usize,
    pub(crate) ref_len: usize,
}

impl Work {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Work {
            templates: Templates::new(),
            word_hashes: [0; WORDS],
            prefix_hashes: [0; WORDS],
            tags: [0; WORDS],
            lows: [0; WORDS],
            raws: [0; WORDS + 8],
            raw_places: [0; WORDS + 32],
            refs: [0; WORDS + 64],
            raw_winners: [0; RAW_BUCKETS],
            lines: [0; LINES + 16],
            index: [0; 2 * LINES],
            line_winners: [0; 256],
            a_masks: [0; LINES / 8],
            b_masks: [0; LINES / 8],
            fresh: 0,
            a_len: 0,
            b_len: 0,
            raw_len: 0,
            ref_len: 0,
        })
    }

    /// Distinct tag lines.
    #[inline(always)]
    pub(crate) fn lines_len(&self) -> usize {
        self.fresh.count_ones() as usize
    }

    /// Bytes of the object that will be written.
    #[inline(always)]
    pub(crate) fn object_len(&self) -> usize {
        let t = &self.templates;
        let len = HEADER
            + 4 * t.highs_len
            + 2 * t.prefix
            + 2 * (t.a_len + self.a_len + t.b_len + self.b_len)
            + 8 * (t.raw_len + self.raw_len)
            + self.ref_len
            + LINES
            + 3 * self.lines_len();
        debug_assert!(len <= OBJECT_MAX);
        len
    }

    /// Header field `counts`.
    #[inline(always)]
    pub(crate) fn counts(&self) -> u32 {
        let t = &self.templates;
        (t.a_len + self.a_len) as u32
            | ((t.b_len + self.b_len) as u32) << 10
            | (self.ref_len as u32) << 20
            | (t.highs_len as u32) << 29
    }
}
