//! The decoder of page LZ in AVX-512: the last 128 bytes stay in two registers.
//!
//! Most matches repeat what was written a few bytes ago. Read back from memory, such bytes have to
//! wait until the stores that hold them have left the processor's store buffer, some 20 cycles a
//! match. So a step appends literals and match to a window of the last 128 bytes by permutations,
//! and stores its newer half; memory is read for matches from further away only.
//!
//! Lengths are taken apart for all sequences first, without branches but for the rare extensions.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::decoder::{extension, Parts};
use super::{Damaged, INPUT_MAX, MATCH_MIN};

/// Bytes of the window.
const WINDOW: usize = 128;
/// Bytes that a step appends at most: half of it.
const STEP: usize = 64;
/// Most literals for which half a load is enough. A whole one lies in two cache lines nearly
/// always, and loads are what a step waits for.
const RUN: usize = 32;
/// Sequences whose lengths are taken apart at a step.
const GROUP: usize = 32;
/// Sequences of an object that is not damaged, at most.
const SEQUENCES_MAX: usize = INPUT_MAX / MATCH_MIN;

/// By offset (0 for those beyond the window), 64 selectors of bytes: those of a match. `run` added
/// to each, they tell where the bytes of the window come from that has had `run` literals and the
/// match appended: below 128 from the old window, below 192 from the literals, from there on from
/// the bytes `offset` before the window's end.
static SELECTORS: Rows = {
    let mut rows = [[0; STEP]; WINDOW + 1];
    let mut offset = 0;
    while offset <= WINDOW {
        let mut at = 0;
        while at < STEP {
            rows[offset][at] =
                if offset == 0 { (WINDOW + STEP + at) as u8 } else { (WINDOW - offset + at % offset) as u8 };
            at += 1;
        }
        offset += 1;
    }
    Rows(rows)
};

/// Rows in a cache line each.
#[repr(C, align(64))]
struct Rows([[u8; STEP]; WINDOW + 1]);

/// 0, 1, and so on.
const PLACES: [u8; STEP] = {
    let mut places = [0; STEP];
    let mut at = 0;
    while at < STEP {
        places[at] = at as u8;
        at += 1;
    }
    places
};

/// The lengths of all sequences, extensions included.
struct Lengths([MaybeUninit<Pair>; SEQUENCES_MAX + GROUP]);

/// The lengths of one sequence.
#[derive(Clone, Copy)]
#[repr(C)]
struct Pair {
    run: u16,
    len: u16,
}

/// The output, with room for a window before it and for a step that goes too far behind it.
#[repr(C, align(64))]
struct Space([MaybeUninit<u8>; WINDOW + INPUT_MAX + STEP]);

/// Decodes the object of `parts` into `out`. Verdict and content are those of the portable decoder.
///
/// # Safety
/// The machine must have AVX-512 F, BW, VL, VBMI and VBMI2, BMI1 and BMI2.
///
/// # Panics
/// When the output is longer than [`INPUT_MAX`].
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
)]
pub(super) unsafe fn decode(parts: &Parts<'_>, out: &mut [u8]) -> Result<(), Damaged> {
    assert!(out.len() <= INPUT_MAX, "{} bytes of output", out.len());
    let count = parts.sequences.len();
    if MATCH_MIN * count > out.len() {
        return Err(Damaged);
    }
    let mut lengths = Lengths([const { MaybeUninit::uninit() }; SEQUENCES_MAX + GROUP]);
    let (run_bytes, match_bytes) = lengths.fill(parts)?;
    let tail = parts.literals_len.checked_sub(run_bytes).ok_or(Damaged)?;
    if run_bytes + match_bytes + tail != out.len() {
        return Err(Damaged);
    }
    let mut space = Space([const { MaybeUninit::uninit() }; WINDOW + INPUT_MAX + STEP]);
    // SAFETY: `fill` has set `count` lengths, whose sums are within literals and output; the caller
    // vouches for the machine.
    unsafe {
        if parts.body.len() - parts.literals_len >= STEP {
            lengths.copy::<false>(parts, &mut space)?;
        } else {
            lengths.copy::<true>(parts, &mut space)?;
        }
        // Both are initialised: the steps have stored all but the literals at the end, which come
        // from the object.
        let done = run_bytes + match_bytes;
        space.0.as_ptr().add(WINDOW).cast::<u8>().copy_to_nonoverlapping(out.as_mut_ptr(), done);
        out[done..].copy_from_slice(&parts.body[run_bytes..parts.literals_len]);
    }
    Ok(())
}

impl Lengths {
    /// Takes the lengths of all sequences apart, and returns the sums of runs and of matches.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
    )]
    fn fill(&mut self, parts: &Parts<'_>) -> Result<(usize, usize), Damaged> {
        let count = parts.sequences.len();
        // Of each sequence its run and its match, 16 bits each. The sums hold: there are at most 32
        // groups, each with two lengths below 300 for a sum; lengths with longer extensions are
        // added apart.
        let mut sums = _mm512_setzero_si512();
        let (mut runs_more, mut matches_more) = (0, 0);
        let mut rest = parts.extensions;
        for first in (0..count).step_by(GROUP) {
            let left = count - first;
            let valid = u32::MAX >> (GROUP - left.min(GROUP));
            let nibbles_valid = u16::MAX >> ((GROUP - left.min(GROUP)) / 2);
            // SAFETY: only bytes of the sequences and of their runs are read: two sequences a byte,
            // rounded up.
            let (sequences, nibbles) = unsafe {
                (
                    _mm512_maskz_loadu_epi16(valid, parts.sequences.as_ptr().add(first).cast()),
                    _mm_maskz_loadu_epi8(nibbles_valid, parts.runs.as_ptr().add(first / 2).cast()),
                )
            };
            if _mm512_mask_testn_epi16_mask(valid, sequences, _mm512_set1_epi16(0xfff)) != 0 {
                return Err(Damaged);
            }
            let nibbles = _mm256_cvtepu8_epi16(nibbles);
            let nibbles = _mm256_or_si256(nibbles, _mm256_slli_epi16::<4>(nibbles));
            let runs = _mm512_cvtepu8_epi16(_mm256_and_si256(nibbles, _mm256_set1_epi8(15)));
            // A byte of the run, a byte of the match: the order of extensions.
            let coded = _mm512_slli_epi16::<8>(_mm512_srli_epi16::<12>(sequences));
            let coded = _mm512_maskz_mov_epi16(valid, _mm512_or_si512(runs, coded));
            let least = |valid| _mm512_maskz_set1_epi32(valid, (MATCH_MIN as i32) << 16);
            let low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(coded));
            let high = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64::<1>(coded));
            let mut low = _mm512_add_epi16(low, least(valid as u16));
            let mut high = _mm512_add_epi16(high, least((valid >> 16) as u16));
            let mut long = _mm512_cmpeq_epi8_mask(coded, _mm512_set1_epi8(15));
            // Without a branch on whether there are any: that is as good as chance in many pages.
            let wanted = long.count_ones();
            let there = _bzhi_u64(!0, rest.len().min(64) as u32);
            // SAFETY: only bytes of the extensions are read.
            let bytes = unsafe { _mm512_maskz_loadu_epi8(there, rest.as_ptr().cast()) };
            let more = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(-1));
            if _bzhi_u64(more, wanted) == 0 {
                rest = rest.get(wanted as usize..).ok_or(Damaged)?;
                let added = _mm512_maskz_expand_epi8(long, bytes);
                low = _mm512_add_epi16(low, _mm512_cvtepu8_epi16(_mm512_castsi512_si256(added)));
                let added = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64::<1>(added));
                high = _mm512_add_epi16(high, added);
                long = 0;
            }
            sums = _mm512_add_epi16(sums, _mm512_add_epi16(low, high));
            // SAFETY: there is room for a whole group behind the last sequence.
            unsafe {
                let place = self.0.as_mut_ptr().add(first).cast::<u8>();
                _mm512_storeu_si512(place.cast(), low);
                _mm512_storeu_si512(place.add(64).cast(), high);
            }
            while long != 0 {
                let k = long.trailing_zeros() as usize;
                long &= long - 1;
                let more = extension(&mut rest)?;
                // SAFETY: both lengths of this sequence have just been stored.
                let pair = unsafe { self.0[first + k / 2].assume_init_mut() };
                if k.is_multiple_of(2) {
                    runs_more += more;
                    pair.run += more.min(INPUT_MAX) as u16;
                } else {
                    matches_more += more;
                    pair.len += more.min(INPUT_MAX) as u16;
                }
            }
        }
        if !rest.is_empty() {
            return Err(Damaged);
        }
        let runs = _mm512_and_si512(sums, _mm512_set1_epi32(0xffff));
        let matches = _mm512_srli_epi32::<16>(sums);
        let (runs, matches) = (_mm512_reduce_add_epi32(runs), _mm512_reduce_add_epi32(matches));
        Ok((runs as usize + runs_more, matches as usize + matches_more))
    }

    /// Follows all sequences. ENDS: the object ends within 64 bytes behind its literals.
    ///
    /// # Safety
    /// All lengths must be set and their sums within the literals and [`INPUT_MAX`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
    )]
    unsafe fn copy<const ENDS: bool>(&self, parts: &Parts<'_>, space: &mut Space) -> Result<(), Damaged> {
        let base = space.0.as_mut_ptr().cast::<u8>().wrapping_add(WINDOW);
        let end = parts.body.as_ptr().wrapping_add(parts.literals_len);
        let (mut from, mut to) = (parts.body.as_ptr(), base);
        // SAFETY: `from` stays within the literals and `to` within INPUT_MAX bytes from `base` on,
        // as the sums do.
        unsafe {
            let zero = _mm512_setzero_si512();
            let mut window = Window { older: zero, newer: zero };
            _mm512_storeu_si512(base.sub(WINDOW).cast(), zero);
            _mm512_storeu_si512(base.sub(STEP).cast(), zero);
            for (sequence, pair) in parts.sequences.iter().zip(&self.0) {
                // `fill` has set as many pairs as there are sequences.
                let pair = pair.assume_init();
                let (run, len) = (usize::from(pair.run), usize::from(pair.len));
                let offset = usize::from(u16::from_le_bytes(*sequence)) & 0xfff;
                if to.wrapping_add(run).wrapping_sub(offset) < base {
                    return Err(Damaged);
                }
                if run + len <= STEP {
                    let literals = if ENDS {
                        let left = end.offset_from_unsigned(from) as u32;
                        _mm512_maskz_loadu_epi8(_bzhi_u64(!0, left.min(64)), from.cast())
                    } else if run <= RUN {
                        _mm512_zextsi256_si512(_mm256_loadu_si256(from.cast()))
                    } else {
                        // The object has 64 bytes behind its literals.
                        _mm512_loadu_si512(from.cast())
                    };
                    window.append(literals, to, run, len, offset);
                    from = from.add(run);
                    to = to.add(run + len);
                    _mm512_storeu_si512(to.sub(STEP).cast(), window.newer);
                } else {
                    window = copy_long(from, to, pair, offset);
                    from = from.add(run);
                    to = to.add(run + len);
                }
            }
        }
        Ok(())
    }
}

/// Copies what is too long for one step, and returns the window behind it. Apart, so that the loop
/// keeps its registers.
///
/// # Safety
/// As many literals as `pair` says must be readable at `from`; at `to` there must be room for all
/// and for a step more, and 128 bytes before it, and `offset` before the match. The machine must
/// have the instructions.
#[cold]
#[inline(never)]
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
)]
unsafe fn copy_long(from: *const u8, to: *mut u8, pair: Pair, offset: usize) -> Window {
    let run = usize::from(pair.run);
    // SAFETY: the caller vouches for all places.
    unsafe {
        from.copy_to_nonoverlapping(to, run);
        let mut to = to.add(run);
        let mut window = Window {
            older: _mm512_loadu_si512(to.sub(WINDOW).cast()),
            newer: _mm512_loadu_si512(to.sub(STEP).cast()),
        };
        let mut left = usize::from(pair.len);
        while left > 0 {
            let len = left.min(STEP);
            window.append(_mm512_setzero_si512(), to, 0, len, offset);
            to = to.add(len);
            left -= len;
            _mm512_storeu_si512(to.sub(STEP).cast(), window.newer);
        }
        window
    }
}

/// The last bytes written.
struct Window {
    older: __m512i,
    newer: __m512i,
}

impl Window {
    /// Appends `run` bytes of `literals` and a match of `len` bytes. `to` is the place in memory
    /// behind the window.
    ///
    /// # Safety
    /// `run + len` must be at most 64, and `offset` from 1 to 4095. From `offset` before `to` on 64
    /// bytes must be readable if it is greater than 128.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
    )]
    unsafe fn append(&mut self, literals: __m512i, to: *const u8, run: usize, len: usize, offset: usize) {
        let far = offset > WINDOW;
        let rows = SELECTORS.0.as_ptr().cast::<u8>();
        let row = if far { 0 } else { offset * STEP };
        // A near match has no use for these bytes; they come from where no store is under way.
        let before = if far { to.wrapping_sub(offset) } else { rows };
        // SAFETY: a row has 64 selectors; the caller vouches for what is far.
        let (selectors, before, places) = unsafe {
            (
                _mm512_load_si512(rows.add(row).cast()),
                _mm512_loadu_si512(before.cast()),
                _mm512_loadu_si512(PLACES.as_ptr().cast()),
            )
        };
        // Before the match, what was the window's end.
        let kept = _mm512_add_epi8(places, _mm512_set1_epi8(STEP as i8));
        let selectors =
            _mm512_permutex2var_epi8(kept, _mm512_add_epi8(places, _mm512_set1_epi8(len as i8)), selectors);
        // Literals move everything on by `run`: what was within the window then is there still, or
        // among the literals.
        let selectors = _mm512_add_epi8(selectors, _mm512_set1_epi8(run as i8));
        let new = _mm512_permutex2var_epi8(literals, selectors, before);
        let is_new = _mm512_movepi8_mask(selectors);
        // New bytes wait in the places of their selectors: this one permutation is all that waits
        // for the window before.
        let selectors = _mm512_mask_mov_epi8(selectors, is_new, new);
        let moved = _mm512_add_epi8(places, _mm512_set1_epi8((run + len) as i8));
        let newer = _mm512_mask2_permutex2var_epi8(self.older, selectors, !is_new, self.newer);
        self.older = _mm512_permutex2var_epi8(self.older, moved, self.newer);
        self.newer = newer;
    }
}
