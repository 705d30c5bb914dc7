//! Finds the tags of words.
//!
//! A byte made of the word's bytes (its *mark*) is compared with the marks of all templates, which
//! suggests one template. Then all bytes are compared with that template's. Templates that share a
//! mark are compared with the words one by one.

use std::mem::MaybeUninit;

use super::{all, Planes};
use crate::lanes::Lanes;
use crate::t16::format::TAG_RAW;
use crate::t16::templates::Templates;

pub(super) type Room<L> = [MaybeUninit<(L, L)>; 16];

struct Marks<'a, L> {
    /// Mark and tag, of which `len` are set.
    marks: &'a Room<L>,
    len: usize,
    /// Bit `t`: the template shares its mark with another.
    shared: u32,
}

pub(super) struct Classifier<'a, L> {
    pub(super) planes: &'a Planes<L>,
    exact: Marks<'a, L>,
    prefix: Marks<'a, L>,
    wide: [L; 4],
    wide_tag: L,
    raw_tag: L,
    zero: L,
    rotated_prefix: Option<L>,
    rotated_wide: Option<L>,
}

#[inline(always)]
fn prefix_mark<L: Lanes>(words: &[L; 8]) -> L {
    let odd = words[3].add(words[5]).add(words[7]);
    let even = words[2].add(words[4]).add(words[6]);
    even.add(odd).add(odd.add(odd))
}

/// The mark of all bytes. The lowest byte counts twice, because otherwise the addresses of objects,
/// which are multiples of 8 or 16, would share their marks.
#[inline(always)]
fn exact_mark<L: Lanes>(words: &[L; 8], prefix_mark: L) -> L {
    let low = words[0].xor(words[0].high_nibbles());
    let twice = words[1].add(words[1]);
    prefix_mark.add(low).add(words[1]).add(twice.add(twice))
}

impl<'a, L: Lanes> Marks<'a, L> {
    /// Computes the marks of the templates `tags` into `marks`. Includes template zero if
    /// `beside_zero`. The machine must have the instructions.
    #[inline(always)]
    unsafe fn new(
        room: &'a mut Room<L>,
        marks: L::Lane,
        tags: std::ops::Range<usize>,
        beside_zero: bool,
    ) -> Self {
        let mut bytes = [0u8; 16];
        // SAFETY: 16 bytes; the caller vouches for the machine.
        unsafe {
            marks.store(bytes.as_mut_ptr(), 0);
            let (mut len, mut shared) = (0, 0);
            let members = ((1u32 << tags.end) - (1 << tags.start)) | u32::from(beside_zero);
            for tag in tags {
                let same = marks.same(L::Lane::splat(bytes[tag % 16])).bits::<7>() & members;
                let alone = same.is_power_of_two();
                room[len % 16].write((L::splat(bytes[tag % 16]), L::splat(tag as u8)));
                len += usize::from(alone);
                shared |= u32::from(!alone) << tag;
            }
            Marks { marks: room, len, shared }
        }
    }

    /// Returns the tags that the marks of words suggest, or zero.
    #[inline(always)]
    fn suggest(&self, marks: L, zero: L) -> L {
        let mut tags = zero;
        for suggestion in self.marks.iter().take(self.len) {
            // SAFETY: `new` has set `len` of them.
            let (mark, tag) = unsafe { suggestion.assume_init() };
            tags = tags.or(marks.same(mark).and(tag));
        }
        tags
    }
}

impl<'a, L: Lanes> Classifier<'a, L> {
    /// Uses only the templates' numbers and `planes`. The machine must have the instructions.
    #[inline(always)]
    pub(super) unsafe fn new(
        templates: &Templates,
        planes: &'a Planes<L>,
        room: &'a mut [Room<L>; 2],
    ) -> Self {
        let [exact_room, prefix_room] = room;
        let lane = planes.first_lane();
        let prefix_marks = prefix_mark(&lane.0);
        let exact_marks = exact_mark(&lane.0, prefix_marks);
        let first = templates.prefix_first();
        let plain = templates.prefix - usize::from(templates.rotated_prefix.is_some());
        // SAFETY: the caller's promise.
        unsafe {
            let wide = std::array::from_fn(|byte| {
                L::splat((templates.values[Templates::WIDE] >> (32 + 8 * byte)) as u8)
            });
            Classifier {
                exact: Marks::new(exact_room, exact_marks, 1..templates.exact + 1, true),
                prefix: Marks::new(prefix_room, prefix_marks, first..first + plain, false),
                planes,
                wide,
                wide_tag: L::splat(Templates::WIDE as u8),
                raw_tag: L::splat(TAG_RAW as u8),
                zero: L::splat(0),
                rotated_prefix: templates.rotated_prefix.map(|tag| L::splat(tag)),
                rotated_wide: templates.rotated_wide.map(|tag| L::splat(tag)),
            }
        }
    }

    /// Returns the tags of words, with raw also for repeats of raw words. ROTATES: there are
    /// rotated templates. EXACT: exact templates count.
    #[inline(always)]
    pub(super) fn tags<const ROTATES: bool, const EXACT: bool>(&self, words: &Planes<L>) -> L {
        let words = &words.0;
        let zero = self.zero;
        // From the lowest priority to the highest, each overriding the one before.
        let wide: [L; 4] = std::array::from_fn(|byte| words[4 + byte].same(self.wide[byte]));
        let mut tags = self.wide_tag.choose(all(wide), self.raw_tag);
        if ROTATES {
            let low = words[0].or(words[1]).or(words[2].or(words[3]));
            if let Some(tag) = self.rotated_wide {
                tags = tag.choose(low.same(zero), tags);
            }
            if let Some(tag) = self.rotated_prefix {
                let rest = low.or(words[6].or(words[7]));
                tags = tag.choose(rest.same(zero), tags);
            }
        }
        let mark = prefix_mark(words);
        let suggested = self.prefix.suggest(mark, zero);
        let same: [L; 6] =
            std::array::from_fn(|byte| words[2 + byte].same(self.planes.0[2 + byte].shuffle(suggested)));
        let found = all(same).without(suggested.same(zero));
        tags = suggested.choose(found, tags);
        if self.prefix.shared != 0 {
            tags = self.one_by_one(words, self.prefix.shared, 2, tags);
        }
        if EXACT {
            let suggested = self.exact.suggest(exact_mark(words, mark), zero);
            let same: [L; 8] =
                std::array::from_fn(|byte| words[byte].same(self.planes.0[byte].shuffle(suggested)));
            tags = suggested.choose(all(same), tags);
            if self.exact.shared != 0 {
                tags = self.one_by_one(words, self.exact.shared, 0, tags);
            }
        }
        tags
    }

    /// Compares the bytes of the words from `byte_first` on with each of `templates`.
    #[inline(always)]
    fn one_by_one(&self, words: &[L; 8], templates: u32, byte_first: usize, mut tags: L) -> L {
        let mut left = templates;
        while left != 0 {
            // SAFETY: a value of this kind exists, so the machine has the instructions.
            let tag = unsafe { L::splat(left.trailing_zeros() as u8) };
            left &= left - 1;
            let mut differ = self.zero;
            for (word, plane) in words.iter().zip(&self.planes.0).skip(byte_first) {
                differ = differ.or(word.xor(plane.shuffle(tag)));
            }
            tags = tag.choose(differ.same(self.zero), tags);
        }
        tags
    }
}
