//! Decodes tag lines, then the literals' places, words from byte planes, and raw words singly.

use std::mem::MaybeUninit;

use super::{shuffle, Planes, EXPAND, PLACES};
use crate::lanes::Lanes;
use crate::t16::format::{Damaged, Layout, LINES, PAGE_SIZE, TAG_RAW, TAG_REF, WORDS};
use crate::t16::lanes::encode::append;
use crate::t16::portable::{rules, Cursor};
use crate::t16::work::Aligned;

const CLASS_A: i32 = 7;
const CLASS_B: i32 = 6;
const CLASS_RAW: i32 = 5;
const CLASS_REF: i32 = 4;

/// For each set of eight: byte `k` is the rank of `k` in the set, 0x80 for non-members.
static RANKS: Aligned<[[u8; 8]; 256]> = {
    let mut table = [[0x80; 8]; 256];
    let mut set = 0;
    while set < 256 {
        let (mut k, mut rank) = (0, 0);
        while k < 8 {
            if set >> k & 1 == 1 {
                table[set][k] = rank;
                rank += 1;
            }
            k += 1;
        }
        set += 1;
    }
    Aligned(table)
};

/// Returns each line's tag line. Needs the instructions of `L`; `layout` must be `object`'s.
#[inline(always)]
pub(crate) unsafe fn tag_lines<L: Lanes>(
    object: &[u8],
    layout: &Layout,
) -> Result<Aligned<[u32; LINES]>, Damaged> {
    let base = object.as_ptr();
    // Rank of each line among the distinct ones, eight at a time: the next number for fresh lines,
    // the next index byte for others.
    let mut ranks = Aligned([0u8; LINES + 8]);
    let (mut distinct, mut repeats) = (0u8, 0);
    for at in 0..LINES / 8 {
        let fresh = (layout.fresh >> (8 * at)) as usize & 0xff;
        let (counted, indexed) = (&RANKS.0[fresh], &RANKS.0[!fresh & 0xff]);
        // SAFETY: the index and the lines behind it are at least 67 bytes, of which at most 56
        // precede these eight. A row of the table may be read with the next one, as the last row is
        // never the one for both. Eight of the 16 bytes written are overwritten, or padding.
        unsafe {
            let index = load8::<L::Lane>(base.add(layout.index_at + repeats));
            let indexed = load8::<L::Lane>(indexed.as_ptr());
            let counted = load8::<L::Lane>(counted.as_ptr());
            // Non-ranks have bit 7 set, also after the sum, which stays below 128 + 64.
            let counted = counted.add(L::Lane::splat(distinct));
            let fresh = indexed.and(L::Lane::splat(0x80)).same(L::Lane::splat(0x80));
            let both = counted.choose(fresh, index.shuffle(indexed));
            both.store(ranks.0.as_mut_ptr().add(8 * at), 0);
        }
        let count = fresh.count_ones() as u8;
        distinct += count;
        repeats += 8 - usize::from(count);
    }
    // SAFETY: all parts lie within the 64 bytes; the caller vouches for the machine.
    let beyond = unsafe {
        let limit = L::splat(layout.lines_len as u8);
        let mut beyond = L::splat(0);
        for at in (0..LINES).step_by(L::BYTES) {
            let ranks = L::load(ranks.0.as_ptr().add(at), 16);
            beyond = beyond.or(ranks.max(limit).same(ranks));
        }
        beyond.bits::<7>()
    };
    if beyond != 0 {
        return Err(Damaged);
    }
    let mut lines = Aligned([0u32; LINES]);
    for (line, &rank) in lines.0.iter_mut().zip(&ranks.0) {
        // SAFETY: the rank is less than the number of lines.
        *line = unsafe { base.add(layout.lines_at + 4 * usize::from(rank)).cast::<u32>().read_unaligned() };
    }
    Ok(lines)
}

/// Loads eight readable bytes, followed by garbage. The machine must have the instructions.
#[inline(always)]
unsafe fn load8<L: Lanes>(at: *const u8) -> L {
    let mut bytes = [0u64; 2];
    // SAFETY: the caller's promise; 16 bytes.
    unsafe {
        bytes[0] = at.cast::<u64>().read_unaligned();
        L::load(bytes.as_ptr().cast(), 0)
    }
}

/// Decodes `object` into `page`. The machine must have the instructions of `L`.
#[inline(always)]
pub(crate) unsafe fn decode<L: Lanes>(object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
    let layout = Layout::parse(object)?;
    let base = object.as_ptr();
    let mut rules = rules(object, &layout);
    // SAFETY: the caller's promise.
    let lines = unsafe { tag_lines::<L>(object, &layout)? };

    // Places of the literals.
    let mut classes = [0u8; 16];
    let mut rotated = [0u8; 16];
    for (tag, rule) in rules.iter().enumerate() {
        let a = u8::from(rule.takes & 0xffff != 0) << CLASS_A;
        let b = u8::from(rule.takes >> 16 & 0xffff != 0) << CLASS_B;
        classes[tag] = a | b;
        rotated[tag] = if rule.shift == 0 { 0 } else { 0xff };
    }
    classes[TAG_RAW as usize] = 1 << CLASS_RAW;
    classes[TAG_REF as usize] = 1 << CLASS_REF;
    let mut tags = Aligned([0u8; WORDS]);
    let mut a_masks = Aligned([0u8; LINES + 4]);
    let mut b_masks = Aligned([0u8; LINES + 4]);
    let mut places = [const { MaybeUninit::<u16>::uninit() }; WORDS + 8];
    let mut special = 0;
    let (mut a_sum, mut b_sum, mut raw_sum, mut ref_sum) = (0, 0, 0, 0);
    let blocks = WORDS / L::BYTES;
    let lines_of = 2 * L::COUNT;
    for block in 0..blocks {
        // SAFETY: each part lies within its array, to which the masks may write two bytes more; the
        // caller vouches for the machine. There are at most 512 special words, with room for eight
        // more.
        unsafe {
            let line = lines_of * block;
            let line_tags = L::load_nibbles(lines.0.as_ptr().add(line).cast());
            line_tags.store(tags.0.as_mut_ptr().add(8 * line), 16);
            let classes = L::load(classes.as_ptr(), 0).shuffle(line_tags);
            let (a, b) = (classes.bits::<CLASS_A>(), classes.bits::<CLASS_B>());
            let (raw, reference) = (classes.bits::<CLASS_RAW>(), classes.bits::<CLASS_REF>());
            a_masks.0.as_mut_ptr().add(line).cast::<u32>().write_unaligned(a);
            b_masks.0.as_mut_ptr().add(line).cast::<u32>().write_unaligned(b);
            a_sum += a.count_ones();
            b_sum += b.count_ones();
            raw_sum += raw.count_ones();
            ref_sum += reference.count_ones();
            let set = raw | reference;
            for k in 0..lines_of {
                let numbers = L::Lane::load(PLACES.0[line + k].as_ptr().cast(), 0);
                special += append(numbers, set >> (8 * k), places.as_mut_ptr().cast::<u16>().add(special));
            }
        }
    }
    let mut sum =
        u64::from(a_sum) | u64::from(b_sum) << 16 | u64::from(ref_sum) << 32 | u64::from(raw_sum) << 48;
    for tag in 1..=layout.exact {
        // Tag 14 takes nothing here, because an exact template cannot be a reference.
        let code = layout.kind(tag);
        sum += if code == TAG_REF as usize { 0 } else { rules[code].takes };
    }
    let holds = layout.a_len as u64
        | (layout.b_len as u64) << 16
        | (layout.ref_len as u64) << 32
        | (layout.raw_len as u64) << 48;
    if sum != holds {
        return Err(Damaged);
    }

    // From here on the streams hold exactly what the tags take, and at least 67 bytes of index and
    // lines follow each of them. So a load of up to 64 bytes that starts within a stream or at its
    // end is in bounds.
    let at = |offset: usize| base.wrapping_add(offset);
    let mut cursor = Cursor { a: at(layout.a_at), b: at(layout.b_at), raw: at(layout.raw_at) };
    let mut values = [0u64; 16];
    for tag in 1..=layout.exact {
        let code = layout.kind(tag);
        // SAFETY: see above.
        values[tag & 15] = unsafe { cursor.word(&rules[code]) };
        if code == TAG_RAW as usize {
            // SAFETY: see above.
            values[tag & 15] = unsafe { cursor.raw.cast::<u64>().read_unaligned() };
            cursor.raw = cursor.raw.wrapping_add(8);
        }
    }
    for (rule, value) in rules.iter_mut().zip(values).take(layout.exact + 1).skip(1) {
        rule.value = value;
    }
    // SAFETY: the caller vouches for the machine; 16 bytes.
    let (planes, rotated, rotates) = unsafe {
        let planes = Planes::<L>::of_values(&rules.map(|rule| rule.value));
        (planes, L::load(rotated.as_ptr(), 0), rotated != [0; 16])
    };

    let out = page.as_mut_ptr();
    for block in 0..blocks {
        let line = lines_of * block;
        // SAFETY: a part of the tags.
        let line_tags = unsafe { L::load(tags.0.as_ptr().add(8 * line), 16) };
        let bytes = planes.look_up(line_tags);
        // Literals by line: those of the first half of a lane, then those of the second.
        // SAFETY: the caller vouches for the machine.
        let (mut a_halves, mut b_halves) = unsafe { ([L::Lane::splat(0); 4], [L::Lane::splat(0); 4]) };
        for k in 0..lines_of {
            let (a_mask, b_mask) = (u32::from(a_masks.0[line + k]), u32::from(b_masks.0[line + k]));
            // SAFETY: see above.
            unsafe {
                a_halves[k] = L::Lane::load(cursor.a, 0).shuffle(shuffle(&EXPAND, a_mask));
                b_halves[k] = L::Lane::load(cursor.b, 0).shuffle(shuffle(&EXPAND, b_mask));
            }
            cursor.a = cursor.a.wrapping_add(2 * a_mask.count_ones() as usize);
            cursor.b = cursor.b.wrapping_add(2 * b_mask.count_ones() as usize);
        }
        let both = |first: L, second: L| -> [L; 2] { first.zip8(second).into() };
        // 16-bit quarters of words: those of the first lines of lanes, then those of the second.
        let mut quarters = [
            both(bytes[0], bytes[1]),
            both(bytes[2], bytes[3]),
            both(bytes[4], bytes[5]),
            both(bytes[6], bytes[7]),
        ];
        let rotated = rotated.shuffle(line_tags);
        let rotated = both(rotated, rotated);
        for half in 0..2 {
            let a = L::join(|lane| a_halves[2 * lane + half]);
            let b = L::join(|lane| b_halves[2 * lane + half]);
            if rotates {
                quarters[0][half] = quarters[0][half].or(a.without(rotated[half]));
                quarters[1][half] = quarters[1][half].or(b.without(rotated[half]));
                quarters[2][half] = quarters[2][half].or(a.and(rotated[half]));
                quarters[3][half] = quarters[3][half].or(b.and(rotated[half]));
            } else {
                quarters[0][half] = quarters[0][half].or(a);
                quarters[1][half] = quarters[1][half].or(b);
            }
            let (low0, low1) = quarters[0][half].zip16(quarters[1][half]);
            let (high0, high1) = quarters[2][half].zip16(quarters[3][half]);
            let ((w0, w1), (w2, w3)) = (low0.zip32(high0), low1.zip32(high1));
            for (pair, words) in [w0, w1, w2, w3].into_iter().enumerate() {
                // SAFETY: lines of 64 bytes; each lane has two.
                unsafe { words.store(out.add(64 * (line + half) + 16 * pair), 128) };
            }
        }
    }

    let mut refs = 0;
    let mut ref_places = [const { MaybeUninit::<u16>::uninit() }; WORDS];
    for place in &places[..special] {
        // SAFETY: `special` places were listed.
        let place = usize::from(unsafe { place.assume_init() }) % WORDS;
        // SAFETY: see above; the place is a word of the page.
        unsafe {
            out.cast::<u64>().add(place).write_unaligned(cursor.raw.cast::<u64>().read_unaligned());
        }
        let is_raw = usize::from(tags.0[place] & 1);
        cursor.raw = cursor.raw.wrapping_add(8 * is_raw);
        ref_places[refs % WORDS].write(place as u16);
        refs += 1 - is_raw;
    }
    let numbers = &object[layout.refs_at..layout.index_at];
    for (place, &number) in ref_places[..refs].iter().zip(numbers) {
        if usize::from(number) >= layout.raw_len {
            return Err(Damaged);
        }
        let source = at(layout.raw_at + 8 * usize::from(number));
        // SAFETY: as many references were listed, each of a raw word; the place is a page's word.
        unsafe {
            let place = place.assume_init();
            let word = source.cast::<u64>().read_unaligned();
            out.cast::<u64>().add(usize::from(place) % WORDS).write_unaligned(word);
        }
    }
    Ok(())
}
