//! The template table of a page, which the encoder chooses before it writes.

use super::format::VERSION;
use super::select::Counters;

/// The most prefix templates that the encoder uses (the format allows 13).
pub(crate) const PREFIX_MAX: usize = 6;
/// Marks prefix buckets without a template. (The table of exact tags has zero there, which is right
/// for the word zero and, as all exact values are compared, harmless for others.)
pub(crate) const NO_TAG: u8 = 15;

/// Multiplier of the word hash: 52 bits, so that one AVX-512 IFMA instruction hashes eight words.
pub(crate) const HASH_MULTIPLIER: u64 = 0x9_E377_9B97_F4A7;

/// The 8-bit hash of a word: bits 44..51 of the product. (With the high half of the 104-bit
/// product, small integers, which are the most common exact templates, would collide with zero.)
#[inline(always)]
pub(crate) fn hash8(word: u64) -> usize {
    (word.wrapping_mul(HASH_MULTIPLIER) >> 44) as usize & 255
}

#[repr(C, align(64))]
pub(crate) struct Templates {
    /// Value of each tag: the exact value, or the base that literals are added to.
    pub(crate) values: [u64; 16],
    /// From bucket of `hash8(word)` to exact tag, or to tag 0.
    pub(crate) exact_tags: [u8; 256],
    /// From bucket of `hash8(word >> 16)` to prefix tag or [`NO_TAG`].
    pub(crate) prefix_tags: [u8; 256],
    pub(crate) counters: Counters,
    pub(crate) exact: usize,
    /// Numbers of prefix and of wide templates, including rotated ones.
    pub(crate) prefix: usize,
    pub(crate) wide: usize,
    pub(crate) rotated_prefix: Option<u8>,
    pub(crate) rotated_wide: Option<u8>,
    pub(crate) kinds: u64,
    pub(crate) highs: [u32; 8],
    pub(crate) highs_len: usize,
    /// The literals of the exact templates, which open the streams.
    pub(crate) a: [u16; 16],
    pub(crate) a_len: usize,
    pub(crate) b: [u16; 16],
    pub(crate) b_len: usize,
    pub(crate) raw: [u64; 16],
    pub(crate) raw_len: usize,
}

impl Templates {
    pub(crate) fn new() -> Self {
        Templates {
            values: [0; 16],
            exact_tags: [0; 256],
            prefix_tags: [NO_TAG; 256],
            counters: Counters::new(),
            exact: 0,
            prefix: 0,
            wide: 0,
            rotated_prefix: None,
            rotated_wide: None,
            kinds: 0,
            highs: [0; 8],
            highs_len: 0,
            a: [0; 16],
            a_len: 0,
            b: [0; 16],
            b_len: 0,
            raw: [0; 16],
            raw_len: 0,
        }
    }

    /// Tag of the one wide template with its own base.
    pub(crate) const WIDE: usize = 13;

    #[inline(always)]
    pub(crate) fn prefix_first(&self) -> usize {
        14 - self.wide - self.prefix
    }

    #[inline(always)]
    pub(crate) fn wide_first(&self) -> usize {
        14 - self.wide
    }

    #[inline(always)]
    pub(crate) fn is_rotated(&self, tag: usize) -> bool {
        self.rotated_prefix == Some(tag as u8) || self.rotated_wide == Some(tag as u8)
    }

    /// Returns the non-exact tag that codes `word`, or raw.
    #[inline(always)]
    pub(crate) fn code(&self, word: u64, prefix_bucket: usize) -> usize {
        // No branches: from the lowest priority to the highest, each overriding the one before.
        let mut tag = 15;
        let wide = (self.values[Self::WIDE] ^ word) >> 32 == 0;
        tag = if wide { Self::WIDE as u8 } else { tag };
        let low_clear = word as u32 == 0;
        tag = if low_clear { self.rotated_wide.unwrap_or(tag) } else { tag };
        tag = if low_clear && word >> 48 == 0 { self.rotated_prefix.unwrap_or(tag) } else { tag };
        let prefix = self.prefix_tags[prefix_bucket & 255];
        let same = (self.values[usize::from(prefix) % 16] ^ word) >> 16 == 0 && prefix != NO_TAG;
        usize::from(if same { prefix } else { tag })
    }

    /// Computes the fields that follow from the chosen values: `kinds`, the list of high halves,
    /// the exact templates' literals.
    #[inline(always)]
    pub(crate) fn finish(&mut self) {
        let first = self.prefix_first();
        let mut kinds =
            self.exact as u64 | (self.prefix as u64) << 56 | (self.wide as u64) << 60 | VERSION << 62;
        self.highs_len = 0;
        for tag in first..14 {
            let rotated = self.is_rotated(tag);
            let high = (self.values[tag] >> 32) as u32;
            let mut index = 0;
            if high != 0 {
                let known = self.highs[..self.highs_len].iter().position(|&known| known == high);
                index = 1 + known.unwrap_or_else(|| {
                    self.highs[self.highs_len] = high;
                    self.highs_len += 1;
                    self.highs_len - 1
                });
            }
            kinds |= (index as u64 | u64::from(rotated) << 3) << (4 * tag);
        }
        (self.a_len, self.b_len, self.raw_len) = (0, 0, 0);
        for tag in 1..=self.exact {
            let word = self.values[tag];
            let code = self.code(word, hash8(word >> 16));
            kinds |= (code as u64) << (4 * tag);
            if code == 15 {
                self.raw[self.raw_len] = word;
                self.raw_len += 1;
                continue;
            }
            let rotated = self.is_rotated(code);
            let low = if rotated { word.rotate_right(32) } else { word } as u32;
            self.a[self.a_len] = low as u16;
            self.a_len += 1;
            if code >= self.wide_first() {
                self.b[self.b_len] = (low >> 16) as u16;
                self.b_len += 1;
            }
        }
        self.kinds = kinds;
    }
}
