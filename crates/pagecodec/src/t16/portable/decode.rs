//! Decoding in plain Rust: the reference for the others.

use crate::t16::format::{u16_at, u32_at, Damaged, Layout, LINES, PAGE_SIZE, TAG_RAW, TAG_REF};

/// How the words of a tag are rebuilt.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rule {
    /// The template; already rotated.
    pub(crate) value: u64,
    /// All ones in the halves that literals fill: A in bits 0-15, B in 16-31.
    pub(crate) literals: u32,
    /// By how much the literals are shifted: 0 or 32.
    pub(crate) shift: u32,
    /// How many literals a word takes: A in bits 0-15, B in 16-31, references in 32-47, raw words in 48-63.
    pub(crate) takes: u64,
}

/// Rules of all tags but the exact ones, which are left zero.
#[inline(always)]
pub(crate) fn rules(object: &[u8], layout: &Layout) -> [Rule; 16] {
    let mut rules = [Rule::default(); 16];
    for tag in layout.prefix_first()..14 {
        let kind = layout.kind(tag);
        let index = kind & 7;
        let mut value = 0;
        if index != 0 && index <= layout.highs {
            value = u64::from(u32_at(object, layout.highs_at + 4 * (index - 1))) << 32;
        }
        let rule = &mut rules[tag & 15];
        if tag < layout.wide_first() {
            value |= u64::from(u16_at(object, layout.mids_at + 2 * (tag - layout.prefix_first()))) << 16;
            (rule.literals, rule.takes) = (0xffff, 1);
        } else {
            (rule.literals, rule.takes) = (u32::MAX, 1 << 16 | 1);
        }
        rule.shift = (kind as u32 >> 3) * 32;
        rule.value = value.rotate_left(rule.shift);
    }
    rules[TAG_REF as usize].takes = 1 << 32;
    rules[TAG_RAW as usize].takes = 1 << 48;
    rules
}

/// Read positions in an object.
pub(crate) struct Cursor {
    pub(crate) a: *const u8,
    pub(crate) b: *const u8,
    pub(crate) raw: *const u8,
}

impl Cursor {
    /// The next word of a tag with this rule; nothing is known of words that are raw or references.
    ///
    /// # Safety
    /// Two bytes can be read at `a` and `b`.
    #[inline(always)]
    pub(crate) unsafe fn word(&mut self, rule: &Rule) -> u64 {
        // SAFETY: the caller's promise.
        let (a, b) =
            unsafe { (self.a.cast::<u16>().read_unaligned(), self.b.cast::<u16>().read_unaligned()) };
        let literal = (u32::from(u16::from_le(a)) | u32::from(u16::from_le(b)) << 16) & rule.literals;
        self.a = self.a.wrapping_add(2 * (rule.takes as usize & 1));
        self.b = self.b.wrapping_add(2 * (rule.takes as usize >> 16 & 1));
        rule.value | u64::from(literal) << rule.shift
    }
}

/// Decodes `object` into `page`.
pub(crate) fn decode(object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
    let layout = Layout::parse(object)?;
    let mut rules = rules(object, &layout);

    // What the tags take must be what the streams hold.
    let mut sum = 0u64;
    for tag in 1..=layout.exact {
        // An exact template cannot be a reference: tag 14 takes nothing here.
        let code = layout.kind(tag);
        sum += if code == TAG_REF as usize { 0 } else { rules[code].takes };
    }
    let mut sums = [0u64; LINES];
    for (at, sum) in sums.iter_mut().enumerate().take(layout.lines_len) {
        let line = u32_at(object, layout.lines_at + 4 * at);
        *sum = (0..8).map(|k| rules[(line >> (4 * k)) as usize & 15].takes).sum();
    }
    let mut lines = [0u32; LINES];
    let (mut distinct, mut repeats, mut rank_max) = (0, 0, 0);
    for (at, line) in lines.iter_mut().enumerate() {
        let fresh = layout.fresh >> at & 1 == 1;
        // In bounds also behind the last index byte: the lines follow, at least four bytes.
        let index = usize::from(object[layout.index_at + repeats]);
        let rank = if fresh { distinct } else { index };
        distinct += usize::from(fresh);
        repeats += usize::from(!fresh);
        rank_max = rank_max.max(rank);
        let rank = rank.min(layout.lines_len - 1);
        *line = u32_at(object, layout.lines_at + 4 * rank);
        sum += sums[rank % LINES];
    }
    let holds = layout.a_len as u64
        | (layout.b_len as u64) << 16
        | (layout.ref_len as u64) << 32
        | (layout.raw_len as u64) << 48;
    if rank_max >= layout.lines_len || sum != holds {
        return Err(Damaged);
    }

    // From here on the streams are known to hold exactly what the tags take, and behind each of them come at least
    // 67 bytes of index and lines: a read of two or eight bytes within a stream or at its end is in bounds.
    let at = |offset: usize| object.as_ptr().wrapping_add(offset);
    let mut cursor = Cursor { a: at(layout.a_at), b: at(layout.b_at), raw: at(layout.raw_at) };
    let mut exact = [0u64; 16];
    for (tag, value) in exact.iter_mut().enumerate().take(layout.exact + 1).skip(1) {
        let code = layout.kind(tag);
        // SAFETY: see above.
        *value = unsafe { cursor.word(&rules[code]) };
        if code == TAG_RAW as usize {
            // SAFETY: see above.
            *value = u64::from_le(unsafe { cursor.raw.cast::<u64>().read_unaligned() });
            cursor.raw = cursor.raw.wrapping_add(8);
        }
    }
    for (rule, value) in rules.iter_mut().zip(exact).take(layout.exact + 1).skip(1) {
        rule.value = value;
    }

    let mut refs = object[layout.refs_at..layout.index_at].iter();
    for (words, &line) in page.as_chunks_mut::<64>().0.iter_mut().zip(&lines) {
        let words = words.as_chunks_mut::<8>().0;
        for (k, slot) in words.iter_mut().enumerate() {
            let rule = &rules[(line >> (4 * k)) as usize & 15];
            // SAFETY: see above.
            *slot = unsafe { cursor.word(rule) }.to_le_bytes();
        }
        // Bit 4k: word k is raw or a reference, whose tags are 15 and 14.
        let mut special = line >> 1 & line >> 2 & line >> 3 & 0x1111_1111;
        while special != 0 {
            let bit = special.trailing_zeros();
            special &= special - 1;
            let source = if line >> bit & 1 == 1 {
                let source = cursor.raw;
                cursor.raw = source.wrapping_add(8);
                source
            } else {
                let number = refs.next().map_or(0, |&number| usize::from(number));
                if number >= layout.raw_len {
                    return Err(Damaged);
                }
                at(layout.raw_at + 8 * number)
            };
            // SAFETY: see above; a reference is to one of the raw words.
            words[bit as usize / 4 % 8] = unsafe { source.cast::<[u8; 8]>().read_unaligned() };
        }
    }
    Ok(())
}
