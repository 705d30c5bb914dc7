//! The decoder of page LZ with AVX2: all lengths first, then mostly branch-free steps.
//!
//! In texts it is unpredictable whether a length has an extension, whether a match is longer than a
//! vector, and whether it repeats bytes that it has just written. A mispredicted branch costs as
//! much as two sequences. So all lengths are decoded together, and a step copies 32 literals and 32
//! match bytes for any lengths, the latter through a row of selectors for each offset.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::decoder::{extension, Parts};
use super::{Damaged, INPUT_MAX, MATCH_MIN};

/// Bytes of literals, and of a match, per step.
const STEP: usize = 32;
/// Bytes that a selector reaches.
const HALF: usize = STEP / 2;
/// Sequences whose lengths are decoded at a time.
const GROUP: usize = 16;
/// Most sequences of a valid object.
const SEQUENCES_MAX: usize = INPUT_MAX / MATCH_MIN;
/// If more than one match in this many is longer than a step, steps copy two vectors of each match.
const WIDE_ONE_IN: usize = 32;

const ROOM: usize = SEQUENCES_MAX + GROUP;
const _: () = assert!(ROOM.is_multiple_of(GROUP));

/// The selectors of a match by offset (32 also for longer ones): first of the 16 bytes at its
/// source, then of the 16 behind them. One of the two selects each byte of the match.
static SELECTORS: Rows = {
    let mut rows = [[[0x80; STEP]; 2]; STEP + 1];
    let mut offset = 1;
    while offset <= STEP {
        let mut at = 0;
        while at < STEP {
            let from = at % offset;
            rows[offset][from / HALF][at] = (from % HALF) as u8;
            at += 1;
        }
        offset += 1;
    }
    Rows(rows)
};

/// Rows in a cache line each.
#[repr(C, align(64))]
struct Rows([[[u8; STEP]; 2]; STEP + 1]);

const ROW_BITS: i32 = 6;

/// Places in [`Sequences::lengths`] by set of four run and four match lengths, alternating.
static MEMBERS: [[u16; 8]; 256] = {
    let mut all = [[0; 8]; 256];
    let mut set = 0;
    while set < 256 {
        let (mut bit, mut count) = (0, 0);
        while bit < 8 {
            if set >> bit & 1 != 0 {
                all[set][count] = (bit / 2 + bit % 2 * ROOM) as u16;
                count += 1;
            }
            bit += 1;
        }
        set += 1;
    }
    all
};

/// The decoded sequences, before the first is copied.
struct Sequences {
    /// The lengths of runs, then those of matches, with extensions.
    lengths: [MaybeUninit<u16>; 2 * ROOM],
    offsets: [MaybeUninit<u16>; ROOM],
    /// Byte offset of the offset's row of selectors.
    rows: [MaybeUninit<u16>; ROOM],
    /// 16 if the second half of a step comes from behind the source's first 16 bytes, else 0:
    /// loading bytes that are not or have just been stored would be wrong or slow.
    seconds: [MaybeUninit<u16>; ROOM],
    /// Places in `lengths` of the lengths with extensions, in order.
    extended: [MaybeUninit<u16>; 2 * ROOM],
}

/// The output, with room for a step from its end.
#[repr(C, align(64))]
struct Space([u8; INPUT_MAX + 3 * STEP]);

struct Sums {
    runs: usize,
    matches: usize,
    /// Matches longer than a step.
    wide: usize,
}

/// Decodes the object of `parts` into `out`. Result and content equal the portable decoder's.
///
/// # Safety
/// The machine must have AVX2, BMI1 and BMI2.
///
/// # Panics
/// If the output is longer than [`INPUT_MAX`].
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) unsafe fn decode(parts: &Parts<'_>, out: &mut [u8]) -> Result<(), Damaged> {
    assert!(out.len() <= INPUT_MAX, "{} bytes of output", out.len());
    let count = parts.sequences.len();
    if MATCH_MIN * count > out.len() {
        return Err(Damaged);
    }
    let mut sequences = MaybeUninit::<Sequences>::uninit();
    // SAFETY: all parts may be uninitialised.
    let sequences = unsafe { sequences.assume_init_mut() };
    let Sums { runs, matches, wide } = sequences.fill(parts)?;
    let tail = parts.literals_len.checked_sub(runs).ok_or(Damaged)?;
    let done = runs + matches;
    if done + tail != out.len() {
        return Err(Damaged);
    }
    // Initialised, because loads reach behind the last byte written. Selectors skip these bytes.
    let mut space = Space([0; INPUT_MAX + 3 * STEP]);
    let base = space.0.as_mut_ptr();
    // SAFETY: `fill` has set all `count` sequences. Their sums are within literals and output,
    // hence within `space`. The steps have written its first `done` bytes.
    unsafe {
        if parts.body.len() - parts.literals_len < STEP {
            sequences.copy::<true, true>(parts, base)?;
        } else if wide * WIDE_ONE_IN > count {
            sequences.copy::<false, true>(parts, base)?;
        } else {
            sequences.copy::<false, false>(parts, base)?;
        }
        copy_out(base, &mut out[..done]);
    }
    out[done..].copy_from_slice(&parts.body[runs..parts.literals_len]);
    Ok(())
}

/// Copies `out.len()` bytes. On some machines the C library takes 0.25 us a page, several times as
/// long.
///
/// # Safety
/// `out.len()` bytes must be readable at `from`, which is aligned to 32.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn copy_out(mut from: *const u8, out: &mut [u8]) {
    let (blocks, rest) = out.as_chunks_mut::<{ 4 * STEP }>();
    // SAFETY: both have all bytes of the blocks, then those of the rest.
    unsafe {
        for block in blocks {
            let parts = [0, 1, 2, 3].map(|part| _mm256_load_si256(from.add(STEP * part).cast()));
            for (place, part) in block.as_chunks_mut::<STEP>().0.iter_mut().zip(parts) {
                _mm256_storeu_si256(place.as_mut_ptr().cast(), part);
            }
            from = from.add(4 * STEP);
        }
        from.copy_to_nonoverlapping(rest.as_mut_ptr(), rest.len());
    }
}

impl Sequences {
    /// Decodes the lengths and offsets of all sequences.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn fill(&mut self, parts: &Parts<'_>) -> Result<Sums, Damaged> {
        let count = parts.sequences.len();
        assert!(count <= SEQUENCES_MAX && 2 * parts.runs.len() >= count);
        let mut without_offset = _mm256_setzero_si256();
        let mut extended = 0;
        // Added to members: the number of the first sequence of each four.
        let mut numbers = [0, 4, 8, 12].map(|number| _mm_set1_epi16(number));
        let mut group = |first: usize, sequences: __m256i, nibbles: __m128i| {
            let offsets = _mm256_and_si256(sequences, _mm256_set1_epi16(0xfff));
            without_offset =
                _mm256_or_si256(without_offset, _mm256_cmpeq_epi16(offsets, _mm256_setzero_si256()));
            let nibbles = _mm_cvtepu8_epi16(nibbles);
            let nibbles = _mm_or_si128(nibbles, _mm_slli_epi16::<4>(nibbles));
            let runs = _mm256_cvtepu8_epi16(_mm_and_si128(nibbles, _mm_set1_epi8(15)));
            let coded = _mm256_srli_epi16::<12>(sequences);
            // A byte of the run, a byte of the match, in the order of extensions.
            let both = _mm256_or_si256(runs, _mm256_slli_epi16::<8>(coded));
            let long = _mm256_movemask_epi8(_mm256_cmpeq_epi8(both, _mm256_set1_epi8(15))) as u32;
            let lens = _mm256_add_epi16(coded, _mm256_set1_epi16(MATCH_MIN as i16));
            let rows = _mm256_min_epu16(offsets, _mm256_set1_epi16(STEP as i16));
            let half = _mm256_set1_epi16(HALF as i16);
            let seconds = _mm256_cmpgt_epi16(_mm256_min_epu16(offsets, lens), half);
            assert!(first + GROUP <= ROOM && extended + 2 * GROUP <= 2 * ROOM);
            // SAFETY: there is room for a group from `first` on, and for all its lengths behind
            // those found before (asserted above).
            unsafe {
                let store = |place: *mut MaybeUninit<u16>, values| {
                    _mm256_storeu_si256(place.add(first).cast(), values);
                };
                store(self.lengths.as_mut_ptr(), runs);
                store(self.lengths.as_mut_ptr().add(ROOM), lens);
                store(self.offsets.as_mut_ptr(), offsets);
                store(self.rows.as_mut_ptr(), _mm256_slli_epi16::<ROW_BITS>(rows));
                store(self.seconds.as_mut_ptr(), _mm256_and_si256(seconds, half));
                for (set, numbers) in long.to_le_bytes().into_iter().zip(&mut numbers) {
                    let members = _mm_loadu_si128(MEMBERS[usize::from(set)].as_ptr().cast());
                    let members = _mm_add_epi16(members, *numbers);
                    _mm_storeu_si128(self.extended.as_mut_ptr().add(extended).cast(), members);
                    *numbers = _mm_add_epi16(*numbers, _mm_set1_epi16(GROUP as i16));
                    extended += set.count_ones() as usize;
                }
            }
        };
        let (whole, left) = (count / GROUP, count % GROUP);
        for number in 0..whole {
            // SAFETY: there are as many sequences, and half as many bytes of runs (asserted above).
            let (sequences, nibbles) = unsafe {
                let sequences = parts.sequences.as_ptr().add(GROUP * number);
                let nibbles = parts.runs.as_ptr().add(GROUP / 2 * number);
                (_mm256_loadu_si256(sequences.cast()), _mm_loadl_epi64(nibbles.cast()))
            };
            group(GROUP * number, sequences, nibbles);
        }
        if left > 0 {
            // Filler sequences have an offset and no extensions.
            let (mut sequences, mut nibbles) = ([[1, 0]; GROUP], [0; GROUP / 2]);
            let first = GROUP * whole;
            sequences[..left].copy_from_slice(&parts.sequences[first..]);
            nibbles[..left.div_ceil(2)].copy_from_slice(&parts.runs[first / 2..]);
            if left % 2 == 1 {
                nibbles[left / 2] &= 15;
            }
            // SAFETY: 32 bytes and 8.
            let (sequences, nibbles) = unsafe {
                (_mm256_loadu_si256(sequences.as_ptr().cast()), _mm_loadl_epi64(nibbles.as_ptr().cast()))
            };
            group(first, sequences, nibbles);
        }
        if _mm256_testz_si256(without_offset, without_offset) == 0 {
            return Err(Damaged);
        }
        self.extend(extended, parts.extensions)?;
        // SAFETY: whole groups have been set.
        let mut sums = unsafe { self.sums(count.div_ceil(GROUP)) };
        sums.matches -= MATCH_MIN * (count.next_multiple_of(GROUP) - count);
        Ok(sums)
    }

    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn extend(&mut self, count: usize, mut rest: &[u8]) -> Result<(), Damaged> {
        let mut add = |place: &MaybeUninit<u16>, more: usize| {
            // A length beyond the longest input is an error in any case.
            let more = more.min(INPUT_MAX) as u16;
            // SAFETY: `count` places have been set, all of them of lengths that have been set.
            unsafe {
                *self.lengths.get_unchecked_mut(usize::from(place.assume_init())).assume_init_mut() += more;
            }
        };
        let places = &self.extended[..count];
        if rest.len() == count && rest.iter().fold(true, |short, &byte| short & (byte != 255)) {
            for (place, &more) in places.iter().zip(rest) {
                add(place, usize::from(more));
            }
            return Ok(());
        }
        for place in places {
            add(place, extension(&mut rest)?);
        }
        rest.is_empty().then_some(()).ok_or(Damaged)
    }

    /// Returns the sums over the first groups.
    ///
    /// # Safety
    /// Their lengths must have been set.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn sums(&self, groups: usize) -> Sums {
        let mut sums = [_mm256_setzero_si256(); 3];
        let lengths = self.lengths.as_ptr();
        for first in (0..groups).map(|group| GROUP * group) {
            assert!(first + GROUP <= ROOM);
            // SAFETY: each has a group (asserted above), which the caller has set.
            let [runs, lens] =
                [0, ROOM].map(|kind| unsafe { _mm256_loadu_si256(lengths.add(kind + first).cast()) });
            let wide = _mm256_cmpgt_epi16(lens, _mm256_set1_epi16(STEP as i16 - 1));
            for (sum, values) in sums.iter_mut().zip([runs, lens, _mm256_srli_epi16::<15>(wide)]) {
                // No value exceeds INPUT_MAX + 19.
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(values, _mm256_set1_epi16(1)));
            }
        }
        let [runs, matches, wide] = sums.map(|sums| {
            let four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<1>(two))) as usize
        });
        Sums { runs, matches, wide }
    }

    /// Copies all sequences. ENDS: the object ends within a step behind its literals. WIDE: steps
    /// copy 64 bytes of matches.
    ///
    /// # Safety
    /// All sequences must have been set, their sums must be within the literals of `parts` and
    /// [`INPUT_MAX`], and `base` must have room for a [`Space`].
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn copy<const ENDS: bool, const WIDE: bool>(
        &self,
        parts: &Parts<'_>,
        base: *mut u8,
    ) -> Result<(), Damaged> {
        let end = parts.body.as_ptr_range().end;
        let (mut from, mut to) = (parts.body.as_ptr(), base);
        for number in 0..parts.sequences.len() {
            // SAFETY: the caller has set the sequence. `from` stays within the literals and `to`
            // within INPUT_MAX bytes from `base` on, as the sums do. A step reads up to 32 bytes
            // from `from` on, which the object has behind its literals unless ENDS, and writes up
            // to 64 bytes behind a run. Its source is not before `base`.
            unsafe {
                let value = |values: &[MaybeUninit<u16>], at: usize| {
                    usize::from(values.get_unchecked(at).assume_init())
                };
                let (run, len) = (value(&self.lengths, number), value(&self.lengths, ROOM + number));
                let offset = value(&self.offsets, number);
                let at = to.wrapping_add(run);
                let source = at.wrapping_sub(offset);
                if source < base {
                    return Err(Damaged);
                }
                // The second vector's source must not overlap its destination.
                let fits = if WIDE {
                    ((2 * run) | len) < 2 * STEP && offset >= len & STEP
                } else {
                    (run | len) < STEP
                };
                if fits && (!ENDS || end.offset_from_unsigned(from) >= STEP) {
                    _mm256_storeu_si256(to.cast(), _mm256_loadu_si256(from.cast()));
                    let second = source.add(value(&self.seconds, number));
                    _mm256_storeu_si256(at.cast(), pattern(source, second, value(&self.rows, number)));
                    if WIDE {
                        let more = _mm256_loadu_si256(source.add(len & STEP).cast());
                        _mm256_storeu_si256(at.add(STEP).cast(), more);
                    }
                } else {
                    copy_long(from, to, run, len, offset);
                }
                from = from.add(run);
                to = at.add(len);
            }
        }
        Ok(())
    }
}

/// Returns the first 32 bytes of a match, selected from twice 16 by the row at byte `row`.
///
/// # Safety
/// `row` must be a row's place, and 16 bytes must be readable at `first` and at `second`.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn pattern(first: *const u8, second: *const u8, row: usize) -> __m256i {
    // SAFETY: the caller's promise; a row has 64 bytes and is aligned to them.
    unsafe {
        let row = SELECTORS.0.as_ptr().cast::<u8>().add(row);
        let first = _mm256_broadcastsi128_si256(_mm_loadu_si128(first.cast()));
        let second = _mm256_broadcastsi128_si256(_mm_loadu_si128(second.cast()));
        _mm256_or_si256(
            _mm256_shuffle_epi8(first, _mm256_load_si256(row.cast())),
            _mm256_shuffle_epi8(second, _mm256_load_si256(row.add(STEP).cast())),
        )
    }
}

/// Copies a sequence too long for one step. A separate function, so that the loop keeps its
/// registers.
///
/// # Safety
/// `run` literals must be readable at `from`. `offset` bytes before the match must have been
/// written. There must be room for all and one step more. The machine must have the instructions.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn copy_long(from: *const u8, to: *mut u8, run: usize, len: usize, offset: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        from.copy_to_nonoverlapping(to, run);
        let to = to.add(run);
        let source = to.sub(offset);
        if offset >= STEP {
            for at in (0..len).step_by(STEP) {
                _mm256_storeu_si256(to.add(at).cast(), _mm256_loadu_si256(source.add(at).cast()));
            }
        } else {
            // Repeats whole periods without going through memory.
            let second = if offset > HALF { source.add(HALF) } else { source };
            let period = pattern(source, second, offset << ROW_BITS);
            for at in (0..len).step_by(STEP / offset * offset) {
                _mm256_storeu_si256(to.add(at).cast(), period);
            }
        }
    }
}
