//! The byte layout of T16, described in `docs/formats/t16.md`: constants, and the parts' places.

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;
pub(crate) const WORDS: usize = 512;
pub(crate) const LINES: usize = 64;
/// The version of the format that this crate writes and reads.
pub const VERSION: u64 = 1;
pub(crate) const HEADER: usize = 20;
/// Bytes of the shortest object: header, one distinct line, 63 index bytes.
pub const OBJECT_MIN: usize = HEADER + 63 + 4;
/// Bytes of the longest possible object: every word and all 13 exact templates raw, 64 distinct
/// lines, 7 high halves, 13 middle quarters.
pub const OBJECT_MAX: usize = HEADER + 7 * 4 + 13 * 2 + 13 * 8 + LINES * 4 + WORDS * 8;

/// Tag of a word that repeats an earlier raw word.
pub(crate) const TAG_REF: u32 = 14;
/// Tag of a word stored whole.
pub(crate) const TAG_RAW: u32 = 15;

/// A T16 object that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged T16 object")]
pub struct Damaged;

/// The places of an object's parts. All offsets are within the object and ascend as the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The nibbles of header field `kinds`: nibble `t` describes tag `t`.
    pub kinds: u64,
    /// Bit `g`: line `g` has a tag line of its own.
    pub fresh: u64,
    /// Exact templates: tags `1..=exact`.
    pub exact: usize,
    /// Prefix templates: tags `14 - wide - prefix..14 - wide`.
    pub prefix: usize,
    /// Wide templates: tags `14 - wide..14`.
    pub wide: usize,
    /// Entries of the list of high halves.
    pub highs: usize,
    /// 16-bit halves in stream A.
    pub a_len: usize,
    /// 16-bit halves in stream B.
    pub b_len: usize,
    /// 64-bit words in the raw stream.
    pub raw_len: usize,
    /// Bytes in the reference stream.
    pub ref_len: usize,
    /// Distinct tag lines.
    pub lines_len: usize,
    /// Offset of the high halves, four bytes each.
    pub highs_at: usize,
    /// Offset of the middle quarters of the prefix templates, two bytes each.
    pub mids_at: usize,
    /// Offset of stream A.
    pub a_at: usize,
    /// Offset of stream B.
    pub b_at: usize,
    /// Offset of the raw stream.
    pub raw_at: usize,
    /// Offset of the reference stream.
    pub refs_at: usize,
    /// Offset of the line index bytes.
    pub index_at: usize,
    /// Offset of the distinct tag lines, four bytes each, which end the object.
    pub lines_at: usize,
}

/// Lengths in bytes of the parts that the fixed header determines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedLen {
    /// Header, high halves and middle quarters: everything before stream A.
    pub before_a: usize,
    /// Streams A and B.
    pub halves: usize,
    /// Reference and index bytes.
    pub between: usize,
    /// Distinct tag lines.
    pub lines: usize,
}

impl FixedLen {
    /// Length of an object with `raw_len` raw words.
    pub fn total(&self, raw_len: usize) -> usize {
        self.before_a + self.halves + 8 * raw_len + self.between + self.lines
    }
}

/// A page as 512 words of unknown alignment.
pub(crate) type PageWords = [[u8; 8]; WORDS];

#[inline(always)]
pub(crate) fn page_words(page: &[u8; PAGE_SIZE]) -> &PageWords {
    // SAFETY: both types are 4096 bytes without alignment or invalid values.
    unsafe { &*std::ptr::from_ref(page).cast() }
}

#[inline(always)]
pub(crate) fn word(page: &PageWords, at: usize) -> u64 {
    u64::from_le_bytes(page[at])
}

#[inline(always)]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline(always)]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Layout {
    /// Reads the header and checks that all parts lie within the object. Does not check how much
    /// the tags consume.
    ///
    /// # Errors
    /// [`Damaged`] if the header contradicts itself, the version or the length.
    #[inline(always)]
    pub fn parse(object: &[u8]) -> Result<Layout, Damaged> {
        let len = object.len();
        if len < OBJECT_MIN {
            return Err(Damaged);
        }
        let kinds = u64_at(object, 0);
        let counts = u32_at(object, 8) as usize;
        let fresh = u64_at(object, 12);
        let (exact, prefix) = (kinds as usize & 15, (kinds >> 56) as usize & 15);
        let (wide, version) = ((kinds >> 60) as usize & 3, kinds >> 62);
        let (a_len, b_len) = (counts & 1023, counts >> 10 & 1023);
        let (ref_len, highs) = (counts >> 20 & 511, counts >> 29);
        let lines_len = fresh.count_ones() as usize;

        let highs_at = HEADER;
        let mids_at = highs_at + 4 * highs;
        let a_at = mids_at + 2 * prefix;
        let b_at = a_at + 2 * a_len;
        let raw_at = b_at + 2 * b_len;
        let behind_raw = ref_len + (LINES - lines_len) + 4 * lines_len;
        let raw_bytes = len.wrapping_sub(raw_at + behind_raw);
        if version != VERSION
            || exact + prefix + wide > 13
            || lines_len == 0
            || raw_at + behind_raw > len
            || !raw_bytes.is_multiple_of(8)
        {
            return Err(Damaged);
        }
        let lines_at = len - 4 * lines_len;
        let index_at = lines_at - (LINES - lines_len);
        Ok(Layout {
            kinds,
            fresh,
            exact,
            prefix,
            wide,
            highs,
            a_len,
            b_len,
            raw_len: raw_bytes / 8,
            ref_len,
            lines_len,
            highs_at,
            mids_at,
            a_at,
            b_at,
            raw_at,
            refs_at: index_at - ref_len,
            index_at,
            lines_at,
        })
    }

    /// Returns the lengths that follow from the fixed header alone, without the raw stream's.
    ///
    /// # Errors
    /// [`Damaged`] if the header is incomplete.
    pub fn fixed_len(header: &[u8]) -> Result<FixedLen, Damaged> {
        if header.len() < HEADER {
            return Err(Damaged);
        }
        let prefix = (u64_at(header, 0) >> 56) as usize & 15;
        let counts = u32_at(header, 8) as usize;
        let lines_len = u64_at(header, 12).count_ones() as usize;
        let (a_len, b_len) = (counts & 1023, counts >> 10 & 1023);
        Ok(FixedLen {
            before_a: HEADER + 4 * (counts >> 29) + 2 * prefix,
            halves: 2 * (a_len + b_len),
            between: (counts >> 20 & 511) + (LINES - lines_len),
            lines: 4 * lines_len,
        })
    }

    /// Returns the lowest tag of the prefix templates.
    #[inline(always)]
    pub fn prefix_first(&self) -> usize {
        14 - self.wide - self.prefix
    }

    /// Returns the lowest tag of the wide templates, 14 if there are none.
    #[inline(always)]
    pub fn wide_first(&self) -> usize {
        14 - self.wide
    }

    /// Returns nibble `tag` of [`Layout::kinds`].
    #[inline(always)]
    pub fn kind(&self, tag: usize) -> usize {
        (self.kinds >> (4 * tag)) as usize & 15
    }
}
