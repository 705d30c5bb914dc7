//! Encoding in plain Rust: the reference for the others.

use crate::t16::format::{page_words, word, LINES, PAGE_SIZE, TAG_RAW};
use crate::t16::raws;
use crate::t16::select::select;
use crate::t16::templates::hash8;
use crate::t16::work::Work;

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
#[inline(always)]
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
#[inline(always)]
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
