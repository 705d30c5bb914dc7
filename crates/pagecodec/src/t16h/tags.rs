//! The halves of stream A by tag, with vectors.

use super::symbols::{Symbols, A_MAX, A_ROOM};
use super::Damaged;
use crate::lanes::Lanes;
use crate::t16::Layout;
use crate::t16::{shuffle, tag_lines, COMPRESS};

/// For each set of eight: its members, one a byte from the lowest on, followed by 0x80.
static MEMBERS: [[u8; 8]; 256] = {
    let mut table = [[0x80; 8]; 256];
    let mut set = 0;
    while set < 256 {
        let (mut k, mut rank) = (0, 0);
        while k < 8 {
            if set >> k & 1 == 1 {
                table[set][rank] = k;
                rank += 1;
            }
            k += 1;
        }
        set += 1;
    }
    table
};

/// Follows the tags.
const NO_TAG: u8 = 0xff;

impl Symbols {
    /// [`Symbols::list_tags`] with vectors. Returns the result of [`Symbols::starts`]. The machine
    /// must have the instructions of `L`.
    #[inline(always)]
    pub(super) unsafe fn list_tags_lanes<L: Lanes>(
        &mut self,
        object: &[u8],
        layout: &Layout,
    ) -> Result<[u16; 16], Damaged> {
        let first = layout.prefix_first();
        let mut count = self.list_exact_tags(layout);
        // SAFETY: the caller vouches for the machine, and has the layout from the object.
        let lines = unsafe { tag_lines::<L>(object, layout).map_err(|_| Damaged)? };
        // SAFETY: the caller vouches for the machine; two lines are eight bytes. 512 words and 13
        // templates yield at most 525 tags, behind which there is room for 64.
        unsafe {
            let least = L::Lane::splat(first as u8);
            let below = L::Lane::splat(14);
            for pair in lines.0.as_chunks::<2>().0 {
                let tags = L::Lane::load_nibbles(pair.as_ptr().cast());
                let set = tags.max(least).same(tags).without(tags.max(below).same(tags)).bits::<7>();
                let mut bytes = [0u8; 16];
                tags.store(bytes.as_mut_ptr(), 0);
                for (half, tags) in bytes.as_chunks::<8>().0.iter().enumerate() {
                    let set = (set >> (8 * half)) as usize & 0xff;
                    let chosen = load8::<L::Lane>(tags).shuffle(load8(&MEMBERS[set]));
                    chosen.store(self.tags.as_mut_ptr().add(count), 0);
                    count += set.count_ones() as usize;
                }
            }
        }
        if count != layout.a_len {
            return Err(Damaged);
        }
        self.tags[count..count + L::BYTES].fill(NO_TAG);
        let mut start = 0;
        let mut starts = [0; 16];
        for (tag, place) in starts.iter_mut().enumerate() {
            *place = start;
            if (first..14).contains(&tag) {
                for at in (0..count).step_by(L::BYTES) {
                    // SAFETY: the caller vouches for the machine; a register fits behind the tags.
                    let same = unsafe { L::load(self.tags.as_ptr().add(at), 16).same(L::splat(tag as u8)) };
                    start += same.bits::<7>().count_ones() as u16;
                }
            }
        }
        Ok(starts)
    }

    /// Makes stream A's symbols of `halves` with listed tags. Needs the instructions of `L`.
    #[inline(always)]
    pub(super) unsafe fn split_halves_lanes<L: Lanes>(
        &mut self,
        halves: &[[u8; 2]],
        starts: &[u16; 16],
        tags: std::ops::Range<usize>,
    ) {
        let len = halves.len();
        assert!(len <= A_MAX);
        let mut padded = [[0u8; 2]; A_ROOM];
        padded[..len].copy_from_slice(halves);
        let mut sorted = [0u16; 1 + A_ROOM];
        let mut count = 0;
        for tag in tags {
            for at in (0..len).step_by(L::BYTES) {
                // SAFETY: the caller vouches for the machine; a register and eight halves fit
                // behind the last ones of all arrays.
                unsafe {
                    let same = L::load(self.tags.as_ptr().add(at), 16).same(L::splat(tag as u8)).bits::<7>();
                    for part in 0..L::BYTES / 8 {
                        let set = same >> (8 * part) & 0xff;
                        let halves = L::Lane::load(padded.as_ptr().add(at + 8 * part).cast(), 0);
                        let chosen = halves.shuffle(shuffle(&COMPRESS, set));
                        chosen.store(sorted.as_mut_ptr().add(1 + count).cast(), 0);
                        count += set.count_ones() as usize;
                    }
                }
            }
        }
        debug_assert_eq!(count, len);
        let [_, low, high, ..] = &mut self.symbols;
        let difference = |half: u16, last: u16| {
            let half = u16::from_le(half);
            half.wrapping_sub(u16::from_le(last)).rotate_right(3).to_le_bytes()
        };
        for ((pair, low), high) in sorted.windows(2).zip(&mut low[..len]).zip(&mut high[..len]) {
            [*low, *high] = difference(pair[1], pair[0]);
        }
        // The first half of each tag has none before it.
        for &start in starts {
            let start = usize::from(start);
            if start < len {
                [low[start], high[start]] = difference(sorted[1 + start], 0);
            }
        }
    }
}

/// Loads eight bytes, followed by eight zeros. The machine must have the instructions.
#[inline(always)]
unsafe fn load8<L: Lanes>(bytes: &[u8; 8]) -> L {
    let both = [*bytes, [0; 8]];
    // SAFETY: 16 bytes; the caller vouches for the machine.
    unsafe { L::load(both.as_ptr().cast(), 0) }
}
