//! The encoder's working memory: all results of a page's analysis.

use super::format::{HEADER, LINES, OBJECT_MAX, WORDS};
use super::raws;
use super::templates::Templates;

/// A value aligned to a cache line.
#[repr(C, align(64))]
pub(crate) struct Aligned<T>(pub(crate) T);

/// Makes the compiler assume that the value changed. If vectors are written and bytes read, it
/// would otherwise shuffle every byte out of the vectors instead of loading it, or the reverse.
#[inline(always)]
pub(crate) fn through_memory<T>(value: &mut T) {
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) std::ptr::from_mut(value), options(nostack, preserves_flags))
    };
}

/// One page's analysis. About 14 KiB, reused for every page.
#[repr(C, align(64))]
pub(crate) struct Work {
    pub(crate) templates: Templates,
    /// Streams A and B without exact templates' literals. Vector stores may overrun by 31.
    pub(crate) a: [u16; WORDS + 32],
    pub(crate) b: [u16; WORDS + 32],
    /// All raw words in order. Vector stores may overrun by seven.
    pub(crate) all_raws: [u64; WORDS + 8],
    pub(crate) raw_buckets: [u16; WORDS + 32],
    /// Bit `number % 64` of word `number / 64`: the raw word is a repeat and is not stored.
    pub(crate) repeats: [u64; WORDS / 64],
    /// Number of the raw word that each reference repeats, and the word number of the repeat.
    pub(crate) sources: [u8; WORDS],
    pub(crate) ref_places: [u16; WORDS],
    /// The word number of each raw word. Vector stores may overrun by 64.
    pub(crate) raw_places: [u16; WORDS + 64],
    pub(crate) refs: [u8; WORDS + 64],
    #[cfg(target_arch = "x86_64")]
    pub(crate) winners: [u8; WORDS],
    /// Bit `number % 64` of word `number / 64`: the word is raw. For vectors.
    #[cfg(target_arch = "x86_64")]
    pub(crate) raw_masks: [u64; WORDS / 64],
    pub(crate) raw_winners: [u8; raws::BUCKETS],
    pub(crate) all_lines: [u32; LINES],
    /// The distinct ones. Vector stores may overrun by fifteen.
    pub(crate) lines: [u32; LINES + 16],
    /// Index bytes of the lines that repeat another. Vector stores may overrun.
    pub(crate) index: [u8; 2 * LINES],
    pub(crate) line_winners: [u8; 256],
    /// Bit `g`: line `g` is the first of its kind.
    pub(crate) fresh: u64,
    /// Stream lengths, without the literals of the exact templates.
    pub(crate) a_len: usize,
    pub(crate) b_len: usize,
    /// All raw words, repeats included.
    pub(crate) all_raws_len: usize,
    pub(crate) raw_len: usize,
    pub(crate) ref_len: usize,
}

impl Work {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Work {
            templates: Templates::new(),
            a: [0; WORDS + 32],
            b: [0; WORDS + 32],
            all_raws: [0; WORDS + 8],
            raw_buckets: [0; WORDS + 32],
            repeats: [0; WORDS / 64],
            sources: [0; WORDS],
            ref_places: [0; WORDS],
            raw_places: [0; WORDS + 64],
            refs: [0; WORDS + 64],
            #[cfg(target_arch = "x86_64")]
            winners: [0; WORDS],
            #[cfg(target_arch = "x86_64")]
            raw_masks: [0; WORDS / 64],
            raw_winners: [0; raws::BUCKETS],
            all_lines: [0; LINES],
            lines: [0; LINES + 16],
            index: [0; 2 * LINES],
            line_winners: [0; 256],
            fresh: 0,
            a_len: 0,
            b_len: 0,
            all_raws_len: 0,
            raw_len: 0,
            ref_len: 0,
        })
    }

    #[inline(always)]
    pub(crate) fn lines_len(&self) -> usize {
        self.fresh.count_ones() as usize
    }

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

    #[inline(always)]
    pub(crate) fn counts(&self) -> u32 {
        let t = &self.templates;
        (t.a_len + self.a_len) as u32
            | ((t.b_len + self.b_len) as u32) << 10
            | (self.ref_len as u32) << 20
            | (t.highs_len as u32) << 29
    }
}
