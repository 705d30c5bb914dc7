//! Chooses matches by four greedy walks in parallel, each through a part of the input. Each step
//! waits some 40 cycles for the one before it; four walks hide each other's latency.

use super::compare::Compare;
#[cfg(target_arch = "x86_64")]
use super::compare::{Avx2, Avx512};
use super::index::{Index, PADDING};
use super::matches::{Matches, Records, PARTS, REACH};
use super::{INPUT_MAX, MATCH_MIN};

struct Lane {
    at: usize,
    end: usize,
    /// Bound of the ends of its matches.
    reach: usize,
    count: usize,
    records: *mut Records,
    /// Whether the index named a place where not even four bytes are equal.
    misled: bool,
}

impl Lane {
    /// Takes the next match that starts within the next 57 positions, and moves behind it. Returns
    /// false if there is none up to the part's end.
    ///
    /// # Safety
    /// The machine must have the instructions of `C`. `bytes` must have PADDING readable bytes
    /// after its 4096th. `end <= reach <= 4096`. The first place must be less than `INPUT_MAX /
    /// PARTS` + PARTS bytes before `end`.
    #[inline(always)]
    unsafe fn step<C: Compare, const STEP: usize>(&mut self, bytes: *const u8, index: &Index) -> bool {
        // SAFETY: `at <= 4096 + 64`, so bytes at / 8 .. + 8 are within the 528 bytes of `mask`.
        let window =
            unsafe { index.mask.as_ptr().cast::<u8>().add(self.at / 8).cast::<u64>().read_unaligned() };
        let window = u64::from_le(window) >> (self.at % 8);
        let start = self.at + window.trailing_zeros() as usize;
        if window == 0 {
            self.at += 57;
            return self.at < self.end;
        }
        if start >= self.end {
            return false;
        }
        // SAFETY: `start < 4096`.
        let source = unsafe { *index.candidates.as_ptr().add(start) } as usize;
        // SAFETY: both places are within the input; PADDING is 128.
        let mut matched = unsafe { C::equal(bytes.add(start), bytes.add(source)) };
        // One comparison catches both rare cases: fewer than four bytes, and all that are compared.
        if matched.wrapping_sub(MATCH_MIN) >= C::BYTES - MATCH_MIN {
            if matched < MATCH_MIN {
                self.misled = true;
                matched = MATCH_MIN;
            }
            while matched >= C::BYTES && start + matched < self.reach {
                // SAFETY: `start + matched < 4096`, and C::BYTES bytes follow.
                let more = unsafe { C::equal(bytes.add(start + matched), bytes.add(source + matched)) };
                matched += more;
                if more < C::BYTES {
                    break;
                }
            }
        }
        let stop = start + matched;
        // A match may start one place earlier, which the index does not cover.
        let (start, source) = if STEP == 1 {
            (start, source)
        } else {
            // SAFETY: candidates are even and not 0, and precede their position.
            let same = unsafe { *bytes.add(start - 1) == *bytes.add(source - 1) };
            let back = usize::from(same & (start > self.at));
            (start - back, source - back)
        };
        // SAFETY: a counted record covers at least four bytes of its own, all but the last within
        // the part. So at most PART_RECORDS - GROUP are counted, and this one has a place.
        unsafe {
            (&raw mut (*self.records).starts).cast::<u16>().add(self.count).write(start as u16);
            (&raw mut (*self.records).sources).cast::<u16>().add(self.count).write(source as u16);
            (&raw mut (*self.records).ends).cast::<u16>().add(self.count + 1).write(stop as u16);
        }
        self.count += 1;
        self.at = stop;
        true
    }
}

impl Matches {
    /// Chooses the matches of the first `len` bytes of `source`, every `STEP`th of which `index`
    /// covers. Returns false if the index was wrong.
    ///
    /// # Safety
    /// The machine must have the instructions of `C`.
    #[inline(always)]
    pub(super) unsafe fn walk<C: Compare, const STEP: usize>(
        &mut self,
        source: &[u8; INPUT_MAX + PADDING],
        index: &Index,
        len: usize,
    ) -> bool {
        let bytes = source.as_ptr();
        let mut part = 0;
        let lanes = self.records.each_mut().map(|records| {
            let (at, end) = (part * len / PARTS, (part + 1) * len / PARTS);
            part += 1;
            let reach = (end + REACH).min(len);
            Lane { at, end, reach, count: 0, records: &raw mut *records, misled: false }
        });
        // Variables instead of an array keep each step's state in registers.
        let [mut a, mut b, mut c, mut d] = lanes;
        // SAFETY: `bytes` has PADDING readable bytes after 4096. The lanes are within the input and
        // write to their own arrays of PART_RECORDS records. The caller vouches for the
        // instructions.
        unsafe {
            let mut going = [true; PARTS];
            while going == [true; PARTS] {
                going = [
                    a.step::<C, STEP>(bytes, index),
                    b.step::<C, STEP>(bytes, index),
                    c.step::<C, STEP>(bytes, index),
                    d.step::<C, STEP>(bytes, index),
                ];
            }
            while going != [false; PARTS] {
                going = [
                    going[0] && a.step::<C, STEP>(bytes, index),
                    going[1] && b.step::<C, STEP>(bytes, index),
                    going[2] && c.step::<C, STEP>(bytes, index),
                    going[3] && d.step::<C, STEP>(bytes, index),
                ];
            }
        }
        let lanes = [a, b, c, d];
        if lanes.iter().any(|lane| lane.misled) {
            return false;
        }
        for (records, lane) in self.records.iter_mut().zip(&lanes) {
            // The last match may extend beyond its bound or the input.
            let last = &mut records.ends[lane.count];
            *last = (*last).min(lane.reach as u16);
        }
        self.join(&lanes.map(|lane| lane.count));
        true
    }

    /// [`Matches::walk`] with the instructions of Haswell (shifts and bit counts without detours),
    /// which the machine must have.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) unsafe fn walk_avx2<const STEP: usize>(
        &mut self,
        source: &[u8; INPUT_MAX + PADDING],
        index: &Index,
        len: usize,
    ) -> bool {
        // SAFETY: the caller vouches for the machine.
        unsafe { self.walk::<Avx2, STEP>(source, index, len) }
    }

    /// [`Matches::walk`] with AVX-512 F, BW and VL and the instructions of Haswell, which the
    /// machine must have.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) unsafe fn walk_avx512<const STEP: usize>(
        &mut self,
        source: &[u8; INPUT_MAX + PADDING],
        index: &Index,
        len: usize,
    ) -> bool {
        // SAFETY: the caller vouches for the machine.
        unsafe { self.walk::<Avx512, STEP>(source, index, len) }
    }
}
