//! The decoder in plain Rust, the reference for the others.

use crate::sets::MEMBERS;
use crate::t16::format::{u16_at, u32_at, Damaged, Layout, LINES, PAGE_SIZE, TAG_RAW, TAG_REF, WORDS};

#[derive(Clone, Copy, Default)]
pub(crate) struct Rule {
    /// The template, already rotated.
    pub(crate) value: u64,
    /// All ones in the halves that literals fill: A in bits 0-15, B in 16-31.
    pub(crate) literals: u32,
    /// Left shift of the literals: 0 or 32.
    pub(crate) shift: u32,
    /// Counts per word: A in bits 0-15, B in 16-31, references in 32-47, raw words in 48-63.
    pub(crate) takes: u64,
}

/// Returns the rules of all tags but the exact ones, which stay zero.
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

pub(crate) struct Cursor {
    pub(crate) a: *const u8,
    pub(crate) b: *const u8,
    pub(crate) raw: *const u8,
}

impl Cursor {
    /// Returns the next word of a tag with this rule, which is meaningless for raw words and
    /// references. Two bytes must be readable at `a` and `b`.
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

/// Places of words, in order, with room for a whole line behind them. Loops over a line's words
/// would end unpredictably, so a whole line is appended without a branch.
struct Places {
    places: [u16; WORDS + 8],
    count: usize,
}

impl Places {
    const NEW: Places = Places { places: [0; WORDS + 8], count: 0 };

    /// Appends the `count` words of line `line` that are in `set`.
    #[inline(always)]
    fn append(&mut self, line: usize, set: u8, count: usize) {
        let room = self.places[self.count..].first_chunk_mut::<8>().expect("a line's room");
        for (place, member) in room.iter_mut().zip(&MEMBERS[usize::from(set)]) {
            *place = 8 * line as u16 + member;
        }
        self.count += count;
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.places[..self.count].iter().map(|&place| usize::from(place) % WORDS)
    }
}

#[derive(Clone, Copy, Default)]
struct TagLine {
    tags: u32,
    /// Words that are raw or references, and words that take a half of B.
    special: u8,
    wide: u8,
    takes: u64,
}

/// How a word consists of its template and the next half of A, for any kind of word.
#[derive(Clone, Copy, Default)]
struct Form {
    value: u64,
    /// All ones where the half goes.
    mask: u64,
    /// Bytes of A.
    takes: usize,
    /// Pads the size to a power of two.
    _unused: usize,
}

/// Copies a half into both halves of a word.
const TWICE: u64 = 1 << 32 | 1;

pub(crate) fn decode(object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
    let layout = Layout::parse(object)?;
    let mut rules = rules(object, &layout);

    // The streams must hold exactly what the tags take.
    let mut sum = 0u64;
    for tag in 1..=layout.exact {
        // Tag 14 takes nothing here, because an exact template cannot be a reference.
        let code = layout.kind(tag);
        sum += if code == TAG_REF as usize { 0 } else { rules[code].takes };
    }
    // The upper half tells whether a tag is special, the lower one whether it takes from B.
    let kinds: [u16; 16] = std::array::from_fn(|tag| {
        let takes = rules[tag].takes;
        u16::from(takes >> 32 != 0) << 8 | (takes >> 16 & 1) as u16
    });
    let mut distinct_lines = [TagLine::default(); LINES];
    for (at, line) in distinct_lines.iter_mut().enumerate().take(layout.lines_len) {
        line.tags = u32_at(object, layout.lines_at + 4 * at);
        let mut sets = 0;
        for k in 0..8 {
            let tag = (line.tags >> (4 * k)) as usize & 15;
            line.takes += rules[tag].takes;
            sets |= kinds[tag] << k;
        }
        [line.wide, line.special] = sets.to_le_bytes();
    }
    let mut lines = [0u32; LINES];
    let (mut specials, mut wides) = (Places::NEW, Places::NEW);
    let (mut distinct, mut repeats, mut rank_max) = (0, 0, 0);
    for (at, line) in lines.iter_mut().enumerate() {
        let fresh = layout.fresh >> at & 1 == 1;
        // In bounds also behind the last index byte: at least four bytes of lines follow.
        let index = usize::from(object[layout.index_at + repeats]);
        let rank = if fresh { distinct } else { index };
        distinct += usize::from(fresh);
        repeats += usize::from(!fresh);
        rank_max = rank_max.max(rank);
        let TagLine { tags, special, wide, takes } = distinct_lines[rank % LINES];
        *line = tags;
        sum += takes;
        specials.append(at, special, (takes >> 32 & 15) as usize + (takes >> 48) as usize);
        wides.append(at, wide, (takes >> 16 & 15) as usize);
    }
    let holds = layout.a_len as u64
        | (layout.b_len as u64) << 16
        | (layout.ref_len as u64) << 32
        | (layout.raw_len as u64) << 48;
    if rank_max >= layout.lines_len || sum != holds {
        return Err(Damaged);
    }

    // From here on the streams hold exactly what the tags take, and at least 67 bytes of index and
    // lines follow each of them. So a read of two or eight bytes within a stream or at its end is
    // in bounds.
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

    // Templates and stream A for all words; other words are corrected below.
    let forms = rules.map(|rule| Form {
        value: rule.value,
        mask: u64::from(rule.literals & 0xffff) << rule.shift,
        takes: 2 * (rule.takes as usize & 1),
        _unused: 0,
    });
    let mut a = cursor.a;
    let (words, _) = page.as_chunks_mut::<8>();
    for (words, &line) in words.as_chunks_mut::<8>().0.iter_mut().zip(&lines) {
        for (k, word) in words.iter_mut().enumerate() {
            let form = &forms[(line >> (4 * k)) as usize & 15];
            // SAFETY: see above.
            let half = u64::from(u16::from_le(unsafe { a.cast::<u16>().read_unaligned() }));
            *word = ((half * TWICE) & form.mask | form.value).to_le_bytes();
            a = a.wrapping_add(form.takes);
        }
    }
    let tag = |place: usize| (lines[place / 8] >> (4 * (place % 8))) as usize & 15;
    for place in wides.iter() {
        // SAFETY: see above.
        let half = u64::from(u16::from_le(unsafe { cursor.b.cast::<u16>().read_unaligned() }));
        cursor.b = cursor.b.wrapping_add(2);
        let word = u64::from_le_bytes(words[place]) | half << 16 << rules[tag(place)].shift;
        words[place] = word.to_le_bytes();
    }
    // A reference is first read as a raw word, so that no branch depends on the kind.
    let (mut refs, mut ref_places) = (0, [0u16; WORDS]);
    for place in specials.iter() {
        // SAFETY: see above.
        words[place] = unsafe { cursor.raw.cast::<[u8; 8]>().read_unaligned() };
        let is_raw = tag(place) & 1;
        cursor.raw = cursor.raw.wrapping_add(8 * is_raw);
        ref_places[refs % WORDS] = place as u16;
        refs += 1 - is_raw;
    }
    let numbers = &object[layout.refs_at..layout.index_at];
    for (&place, &number) in ref_places[..refs].iter().zip(numbers) {
        let number = usize::from(number);
        if number >= layout.raw_len {
            return Err(Damaged);
        }
        // SAFETY: the number is a raw word's.
        let word = unsafe { at(layout.raw_at + 8 * number).cast::<[u8; 8]>().read_unaligned() };
        words[usize::from(place) % WORDS] = word;
    }
    Ok(())
}
