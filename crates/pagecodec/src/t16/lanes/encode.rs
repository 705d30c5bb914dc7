//! Encodes tags and literals of 16 words a lane at a time, then finds repeats among lines and raw
//! words, then writes the object.

use std::mem::MaybeUninit;

use super::classify::Classifier;
use super::select::{describe, select};
use super::{shuffle, Planes, COMPRESS, PLACES};
use crate::lanes::Lanes;
use crate::t16::format::{page_words, HEADER, LINES, PAGE_SIZE, TAG_RAW};
use crate::t16::work::Work;
use crate::t16::{portable, prefetch, raws};

/// First half of the encoder, like the portable one. Prefetches `next` in small portions, because
/// 64 lines at once would hold up everything else. The machine must have the instructions of `L`.
#[inline(always)]
pub(crate) unsafe fn analyse<L: Lanes>(
    work: &mut Work,
    page: &[u8; PAGE_SIZE],
    next: &[u8; PAGE_SIZE],
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        let templates = &mut work.templates;
        select::<L>(templates, page);
        let planes = Planes::<L>::of_values(&templates.values);
        let mut room = [[const { MaybeUninit::uninit() }; 16]; 2];
        let classifier = Classifier::new(templates, &planes, &mut room);
        let rotates = templates.rotated_prefix.is_some() || templates.rotated_wide.is_some();
        describe(templates, &classifier, rotates);
        if rotates {
            assign::<L, true>(work, page, next, &classifier)
        } else {
            assign::<L, false>(work, page, next, &classifier)
        }
    }
}

/// Appends the 16-bit words of `set` at `to`, and returns their number. The machine must have the
/// instructions, and 16 bytes must be writable.
#[inline(always)]
pub(super) unsafe fn append<L: Lanes>(words: L, set: u32, to: *mut u16) -> usize {
    // SAFETY: the caller's promise.
    unsafe { words.shuffle(shuffle(&COMPRESS, set)).store(to.cast(), 0) };
    (set & 0xff).count_ones() as usize
}

/// Codes all words. The machine must have the instructions of `L`.
#[inline(always)]
unsafe fn assign<L: Lanes, const ROTATES: bool>(
    work: &mut Work,
    page: &[u8; PAGE_SIZE],
    next: &[u8; PAGE_SIZE],
    classifier: &Classifier<'_, L>,
) -> usize {
    let templates = &work.templates;
    let mut rotated = [0u8; 16];
    for (tag, rotated) in rotated.iter_mut().enumerate() {
        *rotated = if templates.is_rotated(tag) { 0xff } else { 0 };
    }
    // SAFETY: the caller vouches for the machine; 16 bytes.
    let (rotated, prefix_first, wide_first, raw_tag) = unsafe {
        (
            L::load(rotated.as_ptr(), 0),
            L::splat(templates.prefix_first() as u8),
            L::splat(templates.wide_first() as u8),
            L::splat(TAG_RAW as u8),
        )
    };
    let (mut a_len, mut b_len, mut raw_len) = (0, 0, 0);
    let block_bytes = 8 * L::BYTES;
    for block in 0..PAGE_SIZE / block_bytes {
        prefetch(&next[block_bytes * block..block_bytes * (block + 1)]);
        // SAFETY: a part of the page.
        let words = unsafe { Planes::<L>::load(page.as_ptr().add(block_bytes * block)) };
        let tags = classifier.tags::<ROTATES, true>(&words);
        // SAFETY: each block has as many lines as it has bytes here.
        unsafe { tags.store_nibbles(work.all_lines.as_mut_ptr().cast::<u8>().add(L::BYTES / 2 * block)) };
        let is_raw = tags.same(raw_tag);
        let raw = is_raw.bits::<7>();
        let a = tags.max(prefix_first).same(tags).without(is_raw).bits::<7>();
        let b = tags.max(wide_first).same(tags).without(is_raw).bits::<7>();

        let mut halves = [words.0[0], words.0[1], words.0[2], words.0[3]];
        if ROTATES {
            let rotated = rotated.shuffle(tags);
            for (byte, half) in halves.iter_mut().enumerate() {
                *half = words.0[4 + byte].choose(rotated, *half);
            }
        }
        let a_halves = halves[0].zip8(halves[1]);
        let b_halves = halves[2].zip8(halves[3]);
        for line in 0..2 * L::COUNT {
            let lane =
                |(low, high): (L, L)| if line % 2 == 0 { low.lane(line / 2) } else { high.lane(line / 2) };
            let at = 8 * line;
            // SAFETY: there are at most 512 of each, and the buffers have room for 32 more.
            unsafe {
                a_len += append(lane(a_halves), a >> at, work.a.as_mut_ptr().add(a_len));
                b_len += append(lane(b_halves), b >> at, work.b.as_mut_ptr().add(b_len));
                let places = L::Lane::load(PLACES.0[2 * L::COUNT * block + line].as_ptr().cast(), 0);
                raw_len += append(places, raw >> at, work.raw_places.as_mut_ptr().add(raw_len));
            }
        }
    }
    (work.a_len, work.b_len, work.all_raws_len) = (a_len, b_len, raw_len);
    raw_len
}

/// Second half of the encoder, like the portable one, compiled for the caller's instructions.
#[inline(always)]
pub(crate) fn reduce(work: &mut Work, page: &[u8; PAGE_SIZE]) {
    raws::refer(work, page_words(page));
    portable::share_lines(work);
}

/// Copies `len` bytes in steps of a register. The machine must have the instructions, and `len +
/// 31` bytes must be accessible at `from` and `to`, which must not overlap.
#[inline(always)]
unsafe fn copy<L: Lanes>(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: the caller's promise.
        unsafe { L::load(from.add(at), 16).store(to.add(at), 16) };
        at += L::BYTES;
    }
}

/// Writes the object, like the portable one. The machine must have the instructions of `L`.
#[inline(always)]
pub(crate) unsafe fn write<L: Lanes>(work: &Work, out: &mut [u8]) {
    assert_eq!(out.len(), work.object_len());
    let templates = &work.templates;
    let first = templates.prefix_first();
    let distinct = work.lines_len();
    let lines_len = 4 * distinct;
    // Writes the parts in the order of their places. Every part but the last two may write up to 63
    // bytes of garbage behind itself; the last two have at least 67 bytes and overwrite it.
    // SAFETY: the length was checked above; the sources are buffers of `work` with room behind
    // their content. Integers are little-endian on all machines with lanes.
    unsafe {
        let base = out.as_mut_ptr();
        base.cast::<u64>().write_unaligned(templates.kinds);
        base.add(8).cast::<u32>().write_unaligned(work.counts());
        base.add(12).cast::<u64>().write_unaligned(work.fresh);
        let mut at = base.add(HEADER);
        copy::<L>(templates.highs.as_ptr().cast(), at, 32);
        at = at.add(4 * templates.highs_len);
        // The middle quarters of tags that have none may follow: at most 26 bytes in all.
        let mids = at.cast::<u16>();
        for (place, value) in templates.values[first..14].iter().enumerate() {
            mids.add(place).write_unaligned((value >> 16) as u16);
        }
        at = at.add(2 * templates.prefix);
        copy::<L>(templates.a.as_ptr().cast(), at, 32);
        at = at.add(2 * templates.a_len);
        copy::<L>(work.a.as_ptr().cast(), at, 2 * work.a_len);
        at = at.add(2 * work.a_len);
        copy::<L>(templates.b.as_ptr().cast(), at, 32);
        at = at.add(2 * templates.b_len);
        copy::<L>(work.b.as_ptr().cast(), at, 2 * work.b_len);
        at = at.add(2 * work.b_len);
        let words = at.cast::<u64>();
        for (place, word) in templates.raw[..templates.raw_len].iter().enumerate() {
            words.add(place).write_unaligned(*word);
        }
        at = at.add(8 * templates.raw_len);
        for (chunk, &repeats) in work.repeats.iter().enumerate() {
            let start = 64 * chunk;
            let Some(len) = work.all_raws_len.checked_sub(start).filter(|len| *len != 0) else { break };
            let len = len.min(64);
            let words = &work.all_raws[start..start + len];
            if repeats == 0 {
                copy::<L>(words.as_ptr().cast(), at, 8 * len);
                at = at.add(8 * len);
            } else {
                for (k, word) in words.iter().enumerate() {
                    at.cast::<u64>().write_unaligned(*word);
                    at = at.add(8 * (!repeats >> k & 1) as usize);
                }
            }
        }
        copy::<L>(work.refs.as_ptr(), at, work.ref_len);
        at = at.add(work.ref_len);
        let index_len = LINES - distinct;
        let lines = at.add(index_len);
        debug_assert_eq!(lines.add(lines_len), base.add(out.len()));
        // Index and garbage lie within the object unless there are few lines. The last lines end
        // it.
        if lines_len < L::BYTES {
            work.index.as_ptr().copy_to_nonoverlapping(at, index_len);
            work.lines.as_ptr().cast::<u8>().copy_to_nonoverlapping(lines, lines_len);
        } else {
            copy::<L>(work.index.as_ptr(), at, index_len);
            let (from, step) = (work.lines.as_ptr().cast::<u8>(), L::BYTES);
            copy::<L>(from, lines, lines_len - step + 1);
            let last = lines_len - step;
            L::load(from.add(last), 16).store(lines.add(last), 16);
        }
    }
}
