//! The encoder and decoder in plain Rust: the reference for the others.

use super::format::{
    page_words, u16_at, u32_at, u64_at, word, Damaged, Layout, LINES, PAGE_SIZE, TAG_RAW, TAG_REF,
};
use super::raws;
use super::select::select;
use super::templates::hash8;
use super::work::Work;

/// Multiplier of the hash of tag lines.
pub(crate) const LINE_MULTIPLIER: u32 = 0x9E37_79B1;

/// Bucket of a tag line.
#[inline(always)]
pub(crate) fn line_bucket(line: u32) -> usize {
    (line.wrapping_mul(LINE_MULTIPLIER) >> 24) as usize
}

/// First half of the encoder: templates, tag lines, literals, raw words. Answers the number of raw words, repeats
/// included.
pub(crate) fn analyse(work: &mut Work, page: &[u8; PAGE_SIZE]) -> usize {
    let page = page_words(page);
    select(&mut work.templates, page);
    let templates = &work.templates;
    let (prefix_first, wide_first) = (templates.prefix_first(), templates.wide_first());
    let (mut a_len, mut b_len, mut raw_len) = (0, 0, 0);
    for line in 0..LINES {
        let mut tags = 0;
        for k in 0..8 {
            let at = 8 * line + k;
            let word = word(page, at);
            let mut tag = usize::from(templates.exact_tags[hash8(word)]);
            if templates.values[tag & 15] != word {
                tag = templates.code(word, hash8(word >> 16));
            }
            tags |= (tag as u32) << (4 * k);
            let low = if templates.is_rotated(tag) { (word >> 32) as u32 } else { word as u32 };
            work.a[a_len] = low as u16;
            work.b[b_len] = (low >> 16) as u16;
            work.raw_places[raw_len] = at as u16;
            let raw = tag == TAG_RAW as usize;
            a_len += usize::from(tag >= prefix_first && !raw);
            b_len += usize::from(tag >= wide_first && !raw);
            raw_len += usize::from(raw);
        }
        work.all_lines[line] = tags;
    }
    (work.a_len, work.b_len, work.all_raws_len) = (a_len, b_len, raw_len);
    raw_len
}

/// Second half of the encoder: references among raw words, distinct tag lines.
pub(crate) fn reduce(work: &mut Work, page: &[u8; PAGE_SIZE]) {
    raws::refer(work, page_words(page));
    share_lines(work);
}

/// Keeps each distinct tag line once.
pub(crate) fn share_lines(work: &mut Work) {
    for line in (0..LINES).rev() {
        work.line_winners[line_bucket(work.all_lines[line])] = line as u8;
    }
    let mut ranks = [0u8; LINES];
    let (mut distinct, mut fresh) = (0, 0u64);
    for at in 0..LINES {
        let line = work.all_lines[at];
        let winner = work.line_winners[line_bucket(line)] as usize % LINES;
        let repeats = winner != at && work.all_lines[winner] == line;
        work.index[at - distinct] = ranks[winner];
        work.lines[distinct] = line;
        ranks[at] = distinct as u8;
        distinct += usize::from(!repeats);
        fresh |= u64::from(!repeats) << at;
    }
    work.fresh = fresh;
}

/// Writes the object into `out`, whose length is exactly [`Work::object_len`].
pub(crate) fn write(work: &Work, out: &mut [u8]) {
    let templates = &work.templates;
    let mut rest = out;
    let mut put = |bytes: &[u8]| {
        let (now, later) = std::mem::take(&mut rest).split_at_mut(bytes.len());
        now.copy_from_slice(bytes);
        rest = later;
    };
    put(&templates.kinds.to_le_bytes());
    put(&work.counts().to_le_bytes());
    put(&work.fresh.to_le_bytes());
    for high in &templates.highs[..templates.highs_len] {
        put(&high.to_le_bytes());
    }
    let first = templates.prefix_first();
    for value in &templates.values[first..first + templates.prefix] {
        put(&((value >> 16) as u16).to_le_bytes());
    }
    for literal in &templates.a[..templates.a_len] {
        put(&literal.to_le_bytes());
    }
    for literal in &work.a[..work.a_len] {
        put(&literal.to_le_bytes());
    }
    for literal in &templates.b[..templates.b_len] {
        put(&literal.to_le_bytes());
    }
    for literal in &work.b[..work.b_len] {
        put(&literal.to_le_bytes());
    }
    for raw in &templates.raw[..templates.raw_len] {
        put(&raw.to_le_bytes());
    }
    for (number, raw) in work.all_raws[..work.all_raws_len].iter().enumerate() {
        if work.repeats[number / 64] >> (number % 64) & 1 == 0 {
            put(&raw.to_le_bytes());
        }
    }
    put(&work.refs[..work.ref_len]);
    put(&work.index[..LINES - work.lines_len()]);
    for line in &work.lines[..work.lines_len()] {
        put(&line.to_le_bytes());
    }
    assert!(rest.is_empty());
}

/// How a tag's words are rebuilt.
struct Decode {
    values: [u64; 16],
    /// How many literals a word of the tag takes: A in bits 0-15, B in 16-31, references in 32-47, raw in 48-63.
    takes: [u64; 16],
    rotated: u32,
}

/// Read positions in the streams: numbers of literals, words and bytes.
#[derive(Default)]
struct Cursor {
    a: usize,
    b: usize,
    raw: usize,
    reference: usize,
}

impl Decode {
    fn new(object: &[u8], layout: &Layout) -> Decode {
        let mut decode = Decode { values: [0; 16], takes: [0; 16], rotated: 0 };
        for tag in layout.prefix_first()..14 {
            let kind = layout.kind(tag);
            decode.rotated |= (kind as u32 >> 3) << tag;
            let index = kind & 7;
            if index != 0 && index <= layout.highs {
                let high = u32_at(object, layout.highs_at + 4 * (index - 1));
                decode.values[tag] = u64::from(high) << 32;
            }
            decode.takes[tag] = 1;
            if tag < layout.wide_first() {
                let mid = u16_at(object, layout.mids_at + 2 * (tag - layout.prefix_first()));
                decode.values[tag] |= u64::from(mid) << 16;
            } else {
                decode.takes[tag] |= 1 << 16;
            }
        }
        decode.takes[TAG_REF as usize] = 1 << 32;
        decode.takes[TAG_RAW as usize] = 1 << 48;
        decode
    }

    /// Whether the tags take what the streams hold.
    fn takes_all(&self, object: &[u8], layout: &Layout) -> bool {
        let mut sum = 0u64;
        for tag in 1..=layout.exact {
            // An exact template cannot be a reference: tag 14 takes nothing here.
            let code = layout.kind(tag);
            sum += if code == TAG_REF as usize { 0 } else { self.takes[code] };
        }
        let (mut distinct, mut repeats) = (0, 0);
        for at in 0..LINES {
            let rank = if layout.fresh >> at & 1 == 1 {
                distinct += 1;
                distinct - 1
            } else {
                repeats += 1;
                object[layout.index_at + repeats - 1] as usize
            };
            if rank >= layout.lines_len {
                return false;
            }
            let line = u32_at(object, layout.lines_at + 4 * rank);
            sum += (0..8).map(|k| self.takes[(line >> (4 * k)) as usize & 15]).sum::<u64>();
        }
        let holds = layout.a_len as u64
            | (layout.b_len as u64) << 16
            | (layout.ref_len as u64) << 32
            | (layout.raw_len as u64) << 48;
        sum == holds
    }

    /// Rebuilds one word.
    #[inline(always)]
    fn word(&self, object: &[u8], layout: &Layout, cursor: &mut Cursor, tag: usize) -> u64 {
        let mut value = self.values[tag];
        if self.takes[tag] & 0xffff != 0 {
            value |= u64::from(u16_at(object, layout.a_at + 2 * cursor.a));
            cursor.a += 1;
        }
        if self.takes[tag] >> 16 & 0xffff != 0 {
            value |= u64::from(u16_at(object, layout.b_at + 2 * cursor.b)) << 16;
            cursor.b += 1;
        }
        if self.rotated >> tag & 1 == 1 {
            value = value.rotate_left(32);
        }
        if tag == TAG_RAW as usize {
            value = u64_at(object, layout.raw_at + 8 * cursor.raw);
            cursor.raw += 1;
        }
        value
    }
}

/// Decodes `object` into `page`.
pub(crate) fn decode(object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
    let layout = Layout::parse(object)?;
    let mut decode = Decode::new(object, &layout);
    if !decode.takes_all(object, &layout) {
        return Err(Damaged);
    }
    let mut cursor = Cursor::default();
    let mut exact = [0u64; 16];
    for (tag, value) in exact.iter_mut().enumerate().take(layout.exact + 1).skip(1) {
        *value = decode.word(object, &layout, &mut cursor, layout.kind(tag));
    }
    decode.values[1..=layout.exact].copy_from_slice(&exact[1..=layout.exact]);

    let (mut distinct, mut repeats) = (0, 0);
    for (at, words) in page.chunks_exact_mut(64).enumerate() {
        let rank = if layout.fresh >> at & 1 == 1 {
            distinct += 1;
            distinct - 1
        } else {
            repeats += 1;
            object[layout.index_at + repeats - 1] as usize
        };
        let line = u32_at(object, layout.lines_at + 4 * rank);
        for (k, slot) in words.chunks_exact_mut(8).enumerate() {
            let tag = (line >> (4 * k)) as usize & 15;
            let value = if tag == TAG_REF as usize {
                let number = object[layout.refs_at + cursor.reference] as usize;
                cursor.reference += 1;
                if number >= layout.raw_len {
                    return Err(Damaged);
                }
                u64_at(object, layout.raw_at + 8 * number)
            } else {
                decode.word(object, &layout, &mut cursor, tag)
            };
            slot.copy_from_slice(&value.to_le_bytes());
        }
    }
    Ok(())
}
