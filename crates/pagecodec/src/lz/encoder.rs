//! The encoder of page LZ: index, walk, write.

use std::ops::Range;

use super::index::{Index, PADDING};
use super::{HEADER, INPUT_MAX, MATCH_MIN};
use crate::Isa;

/// Parts of the input that are walked side by side.
const LANES: usize = 4;
/// Bytes by which the last match of a part may reach into the next one.
const REACH: usize = 64;
/// Matches that are coded at a step.
const GROUP: usize = 32;
/// Sequences of one part at most, and one more that is written but not counted, in whole groups.
const LANE_RECORDS: usize = INPUT_MAX / LANES / MATCH_MIN + 2 + GROUP;

/// Room for extensions: those of one byte belong to a run or match of 15 bytes or more, so there are at most 2 x 4096 / 19;
/// and for a step that writes 64.
const EXTENSIONS: usize = 1024;

/// The matches of one part: positions of their starts, their sources, and their ends, each end one place behind, so that
/// there is room for that of the match before the first. Longer than needed by one step of the vector loop that reads them.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Records {
    starts: [u16; LANE_RECORDS],
    sources: [u16; LANE_RECORDS],
    ends: [u16; LANE_RECORDS + 1],
}

impl Records {
    const NEW: Records =
        Records { starts: [0; LANE_RECORDS], sources: [0; LANE_RECORDS], ends: [0; LANE_RECORDS + 1] };
}

/// What was chosen and coded, in numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Coded {
    /// Bytes of the input.
    len: usize,
    /// Sequences.
    count: usize,
    /// Literal bytes.
    literals: usize,
    /// Bytes of extensions.
    extended: usize,
    /// Where the last match ends.
    anchor: usize,
    /// Bytes of matches whose offset is odd.
    odd: usize,
}

impl Coded {
    /// Bytes behind the literals.
    fn behind(&self) -> usize {
        2 * self.count + self.count.div_ceil(2) + self.extended
    }

    fn total(&self) -> usize {
        HEADER + self.literals + self.behind()
    }
}

#[repr(C, align(64))]
struct Work {
    source: [u8; INPUT_MAX + PADDING],
    index: Index,
    records: [Records; LANES],
    /// Which of each part's records count.
    taken: [Range<u16>; LANES],
    coded: Coded,
    literals: [u8; INPUT_MAX + 64],
    sequences: [u16; LANES * LANE_RECORDS],
    runs: [u8; LANES * LANE_RECORDS],
    /// The same, two nibbles a byte.
    packed: [u8; LANES * LANE_RECORDS / 2],
    extensions: [u8; EXTENSIONS],
}

/// Encodes up to 4096 bytes. Holds the working memory (about 60 KiB), so that encoding never allocates.
pub struct Encoder {
    isa: Isa,
    work: Box<Work>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

/// How many of 32 bytes are equal from the front. WIDE: with AVX2.
///
/// # Safety
/// 32 bytes must be readable at both places, and the machine must have AVX2 where WIDE says so.
#[inline(always)]
unsafe fn equal32<const WIDE: bool>(a: *const u8, b: *const u8) -> usize {
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::*;
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        // SAFETY: the caller vouches for both places, and for AVX2.
        return unsafe {
            let equal = _mm256_cmpeq_epi8(_mm256_loadu_si256(a.cast()), _mm256_loadu_si256(b.cast()));
            (!_mm256_movemask_epi8(equal) as u32).trailing_zeros() as usize
        };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for both places; SSE2 is part of the architecture.
    unsafe {
        let low = _mm_cmpeq_epi8(_mm_loadu_si128(a.cast()), _mm_loadu_si128(b.cast()));
        let high = _mm_cmpeq_epi8(_mm_loadu_si128(a.add(16).cast()), _mm_loadu_si128(b.add(16).cast()));
        let equal = _mm_movemask_epi8(low) as u32 | (_mm_movemask_epi8(high) as u32) << 16;
        (!equal).trailing_zeros() as usize
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for both places.
    unsafe {
        let differ = |at: usize| {
            let (a, b) = (a.add(at).cast::<u128>(), b.add(at).cast::<u128>());
            u128::from_le(a.read_unaligned() ^ b.read_unaligned())
        };
        let low = (differ(0).trailing_zeros() / 8) as usize;
        let high = (differ(16).trailing_zeros() / 8) as usize;
        if low < 16 {
            low
        } else {
            16 + high
        }
    }
}

/// Copies `N` bytes.
///
/// # Safety
/// They must be readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller vouches for both places.
    unsafe { to.cast::<[u8; N]>().write_unaligned(from.cast::<[u8; N]>().read_unaligned()) }
}

/// Copies a page. The C library's way takes 0.25 us on some machines, which is several times as long.
///
/// # Safety
/// The machine must have AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn copy_page_avx512(from: &[u8; INPUT_MAX], to: &mut [u8; INPUT_MAX + PADDING]) {
    use std::arch::x86_64::*;
    for at in (0..INPUT_MAX).step_by(256) {
        // SAFETY: both have at least INPUT_MAX bytes.
        unsafe {
            let (from, to) = (from.as_ptr().add(at), to.as_mut_ptr().add(at));
            let parts = [0, 64, 128, 192].map(|part| _mm512_loadu_si512(from.add(part).cast()));
            for (part, bytes) in parts.into_iter().enumerate() {
                _mm512_storeu_si512(to.add(64 * part).cast(), bytes);
            }
        }
    }
}

impl Encoder {
    /// An encoder with the fastest instruction set of this machine.
    pub fn new() -> Self {
        Self::with_isa(Isa::best())
    }

    /// An encoder with the instruction set `isa`. All of them write the same bytes.
    ///
    /// # Panics
    /// When the machine lacks it.
    pub fn with_isa(isa: Isa) -> Self {
        assert!(isa.is_available(), "this machine lacks {isa}");
        let work = Box::new(Work {
            source: [0; INPUT_MAX + PADDING],
            index: Index::NEW,
            records: [Records::NEW; LANES],
            taken: [const { 0..0 }; LANES],
            coded: Coded { len: 0, count: 0, literals: 0, extended: 0, anchor: 0, odd: 0 },
            literals: [0; INPUT_MAX + 64],
            sequences: [0; LANES * LANE_RECORDS],
            runs: [0; LANES * LANE_RECORDS],
            packed: [0; LANES * LANE_RECORDS / 2],
            extensions: [0; EXTENSIONS],
        });
        Encoder { isa, work }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Encodes `input` into `out` and answers the object's length; `None` when `out` is too short for it.
    ///
    /// # Panics
    /// When the input is longer than [`INPUT_MAX`].
    pub fn encode(&mut self, input: &[u8], out: &mut [u8]) -> Option<usize> {
        self.plan(input);
        self.write(out)
    }

    /// Finds the matches of `input` and answers how long its object will be.
    ///
    /// # Panics
    /// When the input is longer than [`INPUT_MAX`].
    pub fn plan(&mut self, input: &[u8]) -> usize {
        self.plan_by::<1>(input)
    }

    /// [`Encoder::plan`] in three quarters of the time: looks for matches at even places and even distances only. Objects of
    /// strings and records become 2 to 6 % longer, those of texts and code up to 30 %: [`Encoder::matched`] tells.
    ///
    /// # Panics
    /// When the input is longer than [`INPUT_MAX`].
    pub fn plan_even(&mut self, input: &[u8]) -> usize {
        self.plan_by::<2>(input)
    }

    /// Of the input that was planned last: the bytes that its matches cover, and those that matches at odd distances do.
    pub fn matched(&self) -> (usize, usize) {
        (self.work.coded.len - self.work.coded.literals, self.work.coded.odd)
    }

    fn plan_by<const STEP: usize>(&mut self, input: &[u8]) -> usize {
        let len = input.len();
        assert!(len <= INPUT_MAX, "{len} bytes of input");
        let work = &mut *self.work;
        match (self.isa, input.first_chunk::<INPUT_MAX>()) {
            // SAFETY: `with_isa` has checked that the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, Some(page)) => unsafe { copy_page_avx512(page, &mut work.source) },
            _ => work.source[..len].copy_from_slice(input),
        }
        // The index reads whole groups; what it finds there does not count, but must not depend on the past.
        work.source[len..].fill(0);
        if !work.find::<STEP>(self.isa, len) {
            work.index.clear();
            let found = work.find::<STEP>(self.isa, len);
            assert!(found, "an index that started empty holds this input only");
        }
        match self.isa {
            // SAFETY: `with_isa` has checked that the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { work.code_avx512(len) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { work.code_avx2(len) },
            _ => work.code(len),
        }
        work.coded.total()
    }

    /// Writes the object of the input that was planned last into `out` and answers its length; `None` when `out` is too
    /// short for it. Before anything was planned the input is empty.
    pub fn write(&mut self, out: &mut [u8]) -> Option<usize> {
        match self.isa {
            // SAFETY: `with_isa` has checked that the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => unsafe { self.work.write_avx2(out) },
            _ => self.work.write::<16>(out),
        }
    }
}

/// The walk through one part of the input.
struct Lane {
    at: usize,
    /// Where the part ends.
    end: usize,
    /// Where its matches end at the latest.
    reach: usize,
    count: usize,
    records: *mut Records,
    /// Whether the index named a place where not even four bytes are the same.
    misled: bool,
}

impl Lane {
    /// Takes the next match, if one starts within the next 57 positions, and moves behind it. Answers false when there is none
    /// up to the part's end. WIDE: with AVX2.
    ///
    /// # Safety
    /// `bytes` must have PADDING readable bytes after its 4096th; `end <= reach <= 4096`; no more than
    /// `INPUT_MAX / LANES` bytes and less than LANES more may be between the first place and `end`.
    #[inline(always)]
    unsafe fn step<const WIDE: bool, const STEP: usize>(&mut self, bytes: *const u8, index: &Index) -> bool {
        // SAFETY: `at <= 4096 + 32`, so bytes at / 8 .. + 8 are within the 528 bytes of `mask`.
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
        let mut matched = unsafe { equal32::<WIDE>(bytes.add(start), bytes.add(source)) };
        // One comparison for both of what is rare: less than four, and 32, which may be more.
        if matched.wrapping_sub(MATCH_MIN) >= 32 - MATCH_MIN {
            if matched < MATCH_MIN {
                self.misled = true;
                matched = MATCH_MIN;
            }
            while matched >= 32 && start + matched < self.reach {
                // SAFETY: `start + matched < 4096`, and 32 bytes follow.
                let more =
                    unsafe { equal32::<WIDE>(bytes.add(start + matched), bytes.add(source + matched)) };
                matched += more;
                if more < 32 {
                    break;
                }
            }
        }
        let stop = start + matched;
        // A match may start one place earlier, which the index has left out.
        let (start, source) = if STEP == 1 {
            (start, source)
        } else {
            // SAFETY: candidates are even and not 0, and what they are candidates for comes after them.
            let same = unsafe { *bytes.add(start - 1) == *bytes.add(source - 1) };
            let back = usize::from(same & (start > self.at));
            (start - back, source - back)
        };
        // SAFETY: a counted record covers at least four bytes of its own, all but the last within the part, so at most
        // LANE_RECORDS - GROUP are counted, and this one has a place.
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

impl Work {
    /// Indexes the input and chooses its matches. Answers false if entries of an earlier input misled it, which cannot happen
    /// after the index was cleared.
    fn find<const STEP: usize>(&mut self, isa: Isa, len: usize) -> bool {
        match isa {
            // SAFETY: `with_isa` has checked that the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe {
                self.index.fill_avx512::<STEP>(&self.source, len);
                self.walk_avx2::<STEP>(len)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe {
                self.index.fill_avx2::<STEP>(&self.source, len);
                self.walk_avx2::<STEP>(len)
            },
            _ => {
                self.index.fill_generic::<STEP>(&self.source, len);
                self.walk::<false, STEP>(len)
            }
        }
    }

    /// [`Work::walk`] with the instructions of Haswell (shifts and bit counts without detours).
    ///
    /// # Safety
    /// The machine must have them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn walk_avx2<const STEP: usize>(&mut self, len: usize) -> bool {
        self.walk::<true, STEP>(len)
    }

    /// [`Work::code`] with the instructions of Haswell.
    ///
    /// # Safety
    /// The machine must have them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn code_avx2(&mut self, len: usize) {
        self.code(len);
    }

    /// Chooses matches greedily in each part of the input, then joins the parts. Answers false if the index was wrong.
    #[inline(always)]
    fn walk<const WIDE: bool, const STEP: usize>(&mut self, len: usize) -> bool {
        let bytes = self.source.as_ptr();
        let mut part = 0;
        let lanes = self.records.each_mut().map(|records| {
            let (at, end) = (part * len / LANES, (part + 1) * len / LANES);
            part += 1;
            Lane {
                at,
                end,
                reach: (end + REACH).min(len),
                count: 0,
                records: &raw mut *records,
                misled: false,
            }
        });
        // Variables, not an array: each step's state then stays in registers.
        let [mut a, mut b, mut c, mut d] = lanes;
        let index = &self.index;
        let (mut ra, mut rb, mut rc, mut rd) = (true, true, true, true);
        // SAFETY: `bytes` has PADDING readable bytes after 4096; the lanes are within the input
        // and write to arrays of LANE_RECORDS records of their own.
        unsafe {
            loop {
                ra = a.step::<WIDE, STEP>(bytes, index);
                rb = b.step::<WIDE, STEP>(bytes, index);
                rc = c.step::<WIDE, STEP>(bytes, index);
                rd = d.step::<WIDE, STEP>(bytes, index);
                if !(ra & rb & rc & rd) { break; }
            }
            while ra | rb | rc | rd {
                if ra { ra = a.step::<WIDE, STEP>(bytes, index); }
                if rb { rb = b.step::<WIDE, STEP>(bytes, index); }
                if rc { rc = c.step::<WIDE, STEP>(bytes, index); }
                if rd { rd = d.step::<WIDE, STEP>(bytes, index); }
            }
            for lane in [&mut a, &mut b, &mut c, &mut d] {
                let end = (&raw mut (*lane.records).ends).cast::<u16>().add(lane.count);
                if lane.count > 0 { *end = (*end).min(lane.reach as u16); }
            }
        }
        if a.misled | b.misled | c.misled | d.misled {
            return false;
        }
        let counts = [a, b, c, d].map(|lane| lane.count);
        self.join(&counts);
        true
    }

    /// A part's last match may cover matches of the next part: takes those away, or what of them it covers, or lets the
    /// match go on where they continue it.
    #[inline(always)]
    fn join(&mut self, counts: &[usize; LANES]) {
        // The last match before the part: its place, offset and end.
        let (mut last, mut offset, mut covered) = ((0, 0), 0, 0);
        for (part, &count) in counts.iter().enumerate() {
            let mut first = 0;
            let records = &mut self.records[part];
            while first < count {
                let (start, source, end) =
                    (records.starts[first], records.sources[first], records.ends[first + 1]);
                if start > covered {
                    break;
                }
                if start - source == offset && end > covered {
                    covered = end;
                } else if end >= covered + MATCH_MIN as u16 {
                    records.starts[first] = covered;
                    records.sources[first] = source + (covered - start);
                    break;
                }
                first += 1;
            }
            records.ends[first] = covered;
            if first > 0 && last.1 > 0 {
                let (part, place): (usize, usize) = last;
                self.records[part].ends[place] = covered;
            }
            let records = &self.records[part];
            if first < count {
                last = (part, count);
                (offset, covered) =
                    (records.starts[count - 1] - records.sources[count - 1], records.ends[count]);
            }
            self.taken[part] = first as u16..count as u16;
        }
    }

    /// [`Work::code`] in AVX-512: extensions too are written without branches, as long as they take one byte.
    ///
    /// # Safety
    /// The machine must have AVX-512 F, BW, VL and VBMI2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn code_avx512(&mut self, len: usize) {
        use std::arch::x86_64::*;
        let (mut anchor, mut count, mut extended) = (0u16, 0, 0);
        let (mut matched, mut matched_odd) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        let fifteen = _mm512_set1_epi16(15);
        for (records, taken) in self.records.iter().zip(&self.taken) {
            let (from, to) = (usize::from(taken.start), usize::from(taken.end));
            for first in (from..to).step_by(GROUP) {
                let here = first..first + GROUP;
                let load = |array: &[u16]| {
                    assert!(array.len() == GROUP);
                    // SAFETY: there are 64 bytes (asserted above).
                    unsafe { _mm512_loadu_si512(array.as_ptr().cast()) }
                };
                let (starts, sources) =
                    (load(&records.starts[here.clone()]), load(&records.sources[here.clone()]));
                let (before, ends) = (load(&records.ends[here]), load(&records.ends[first + 1..][..GROUP]));
                let words = u32::MAX >> (GROUP - GROUP.min(to - first));
                let pairs = u64::MAX >> (2 * (GROUP - GROUP.min(to - first)));
                let whole = _mm512_sub_epi16(ends, starts);
                let run = _mm512_sub_epi16(starts, before);
                let rest = _mm512_sub_epi16(whole, _mm512_set1_epi16(MATCH_MIN as i16));
                let (run_coded, rest_coded) =
                    (_mm512_min_epu16(run, fifteen), _mm512_min_epu16(rest, fifteen));
                let offsets = _mm512_sub_epi16(starts, sources);
                let sequences = _mm512_or_si512(offsets, _mm512_slli_epi16::<12>(rest_coded));
                let place = count + first - from;
                let sequences_place = &mut self.sequences[place..][..GROUP];
                let runs_place = &mut self.runs[place..][..GROUP];
                // SAFETY: both places have room for a group.
                unsafe {
                    _mm512_storeu_si512(sequences_place.as_mut_ptr().cast(), sequences);
                    _mm256_storeu_si256(runs_place.as_mut_ptr().cast(), _mm512_cvtepi16_epi8(run_coded));
                }
                matched = _mm512_mask_add_epi16(matched, words, matched, whole);
                let odd = _mm512_mask_test_epi16_mask(words, offsets, _mm512_set1_epi16(1));
                matched_odd = _mm512_mask_add_epi16(matched_odd, odd, matched_odd, whole);
                // Of each record the run's byte, then the match's: the order of extensions.
                let coded = _mm512_or_si512(run_coded, _mm512_slli_epi16::<8>(rest_coded));
                let long = _mm512_mask_cmpeq_epi8_mask(pairs, coded, _mm512_set1_epi8(15));
                if long == 0 {
                    continue;
                }
                let (run_more, rest_more) =
                    (_mm512_subs_epu16(run, fifteen), _mm512_subs_epu16(rest, fifteen));
                let most = _mm512_max_epu16(run_more, rest_more);
                if _mm512_mask_cmpge_epu16_mask(words, most, _mm512_set1_epi16(255)) == 0 {
                    let bytes = _mm512_or_si512(run_more, _mm512_slli_epi16::<8>(rest_more));
                    let place = &mut self.extensions[extended..][..2 * GROUP];
                    // SAFETY: `place` has 64 bytes.
                    unsafe {
                        _mm512_storeu_si512(
                            place.as_mut_ptr().cast(),
                            _mm512_maskz_compress_epi8(long, bytes),
                        );
                    }
                    extended += long.count_ones() as usize;
                } else {
                    let mut values = [0u16; 2 * GROUP];
                    // SAFETY: `values` has room for two vectors.
                    unsafe {
                        _mm512_storeu_si512(values.as_mut_ptr().cast(), run_more);
                        _mm512_storeu_si512(values[GROUP..].as_mut_ptr().cast(), rest_more);
                    }
                    let mut bits = long;
                    while bits != 0 {
                        let k = bits.trailing_zeros() as usize;
                        bits &= bits - 1;
                        let value = values[k / 2 + k % 2 * GROUP];
                        extended = extend(&mut self.extensions, extended, value.into());
                    }
                }
            }
            count += to - from;
            if from < to {
                anchor = records.ends[to];
            }
        }
        let sum = |sums| {
            let pairs = _mm512_madd_epi16(sums, _mm512_set1_epi16(1));
            _mm512_reduce_add_epi32(pairs) as usize
        };
        let (literals, odd) = (len - sum(matched), sum(matched_odd));
        self.coded = Coded { len, count, literals, extended, anchor: anchor.into(), odd };
    }

    /// Codes the chosen matches: all streams but the literals.
    #[inline(always)]
    fn code(&mut self, len: usize) {
        let (mut anchor, mut count, mut literals, mut extended, mut odd) = (0u16, 0, len, 0, 0);
        for (records, taken) in self.records.iter().zip(&self.taken) {
            let (from, to) = (usize::from(taken.start), usize::from(taken.end));
            for first in (from..to).step_by(GROUP) {
                let here = first..first + GROUP;
                let starts: &[u16; GROUP] = records.starts[here.clone()].first_chunk().expect("whole groups");
                let sources: &[u16; GROUP] =
                    records.sources[here.clone()].first_chunk().expect("whole groups");
                let before: &[u16; GROUP] = records.ends[here].first_chunk().expect("whole groups");
                let ends: &[u16; GROUP] = records.ends[first + 1..].first_chunk().expect("one more");
                let place = count + first - from;
                let sequences: &mut [u16; GROUP] =
                    self.sequences[place..].first_chunk_mut().expect("a place for every record");
                let runs: &mut [u8; GROUP] =
                    self.runs[place..].first_chunk_mut().expect("a place for every record");
                // What stands behind the last record has no meaning, and is overwritten.
                let mut long = [0u8; GROUP];
                for k in 0..GROUP {
                    let run = starts[k].wrapping_sub(before[k]);
                    let rest = ends[k].wrapping_sub(starts[k]).wrapping_sub(MATCH_MIN as u16);
                    sequences[k] = starts[k].wrapping_sub(sources[k]) | rest.min(15) << 12;
                    runs[k] = run.min(15) as u8;
                    long[k] = u8::from((run >= 15) | (rest >= 15));
                }
                for (part, eight) in long.as_chunks::<8>().0.iter().enumerate() {
                    let mut bits = u64::from_le_bytes(*eight);
                    while bits != 0 {
                        let k = 8 * part + bits.trailing_zeros() as usize / 8;
                        bits &= bits - 1;
                        if first + k >= to {
                            break;
                        }
                        for coded in [starts[k] - before[k], ends[k] - starts[k] - MATCH_MIN as u16] {
                            if coded >= 15 {
                                extended = extend(&mut self.extensions, extended, usize::from(coded) - 15);
                            }
                        }
                    }
                }
            }
            let matched = records.starts[from..to].iter().zip(&records.ends[from + 1..]);
            literals -= matched.map(|(start, end)| end - start).sum::<u16>() as usize;
            let places = records.starts[from..to].iter().zip(&records.sources[from..to]);
            let lens = places.zip(&records.ends[from + 1..]);
            odd +=
                lens.map(|((start, source), end)| (start ^ source) % 2 * (end - start)).sum::<u16>() as usize;
            count += to - from;
            if from < to {
                anchor = records.ends[to];
            }
        }

        self.coded = Coded { len, count, literals, extended, anchor: anchor.into(), odd };
    }

    /// [`Work::write`] with the instructions of Haswell.
    ///
    /// # Safety
    /// The machine must have them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn write_avx2(&mut self, out: &mut [u8]) -> Option<usize> {
        self.write::<32>(out)
    }

    /// Joins the streams in `out`, if there is room. Literals are copied `STEP` (16 or 32) at a time.
    #[inline(always)]
    fn write<const STEP: usize>(&mut self, out: &mut [u8]) -> Option<usize> {
        let coded = self.coded;
        let Coded { len, count, literals, extended, anchor, .. } = coded;
        let behind = coded.behind();
        let out = out.get_mut(..coded.total())?;
        // Literals are copied in place where as much as a step follows them.
        let in_place = behind >= STEP;
        let to = if in_place { out[HEADER..].as_mut_ptr() } else { self.literals.as_mut_ptr() };
        let mut copied = 0;
        for (records, taken) in self.records.iter().zip(&self.taken) {
            let (from, to_record) = (usize::from(taken.start), usize::from(taken.end));
            for (&start, &before) in records.starts[from..to_record].iter().zip(&records.ends[from..]) {
                let run = usize::from(start - before);
                // SAFETY: the input has PADDING readable bytes after it. The literals before this run and with it are
                // at most `literals`, and STEP bytes more are there on either way.
                unsafe {
                    let (from, to) = (self.source.as_ptr().add(usize::from(before)), to.add(copied));
                    copy::<STEP>(from, to);
                    if run > STEP {
                        for done in (STEP..run).step_by(STEP) {
                            copy::<STEP>(from.add(done), to.add(done));
                        }
                    }
                }
                copied += run;
            }
        }
        let tail = &self.source[anchor..len];
        assert!(copied + tail.len() == literals, "what no match covers is a literal");
        // SAFETY: with the tail there are `literals` bytes, for which there is room.
        unsafe { tail.as_ptr().copy_to_nonoverlapping(to.add(copied), tail.len()) };
        let (header, out) = out.split_at_mut(HEADER);
        header[..2].copy_from_slice(&(count as u16).to_le_bytes());
        header[2..].copy_from_slice(&(literals as u16).to_le_bytes());
        let (place, out) = out.split_at_mut(literals);
        if !in_place {
            place.copy_from_slice(&self.literals[..literals]);
        }
        let (place, out) = out.split_at_mut(2 * count);
        for (place, sequence) in place.as_chunks_mut::<2>().0.iter_mut().zip(&self.sequences) {
            *place = sequence.to_le_bytes();
        }
        let (place, out) = out.split_at_mut(count.div_ceil(2));
        self.runs[count] = 0;
        // Whole groups, so that there is no end to be done one by one.
        let groups = count.div_ceil(2 * GROUP);
        let pairs = self.runs.as_chunks::<{ 2 * GROUP }>().0[..groups].iter();
        for (packed, runs) in self.packed.as_chunks_mut::<GROUP>().0.iter_mut().zip(pairs) {
            for (packed, pair) in packed.iter_mut().zip(runs.as_chunks::<2>().0) {
                *packed = pair[0] | pair[1] << 4;
            }
        }
        place.copy_from_slice(&self.packed[..place.len()]);
        out.copy_from_slice(&self.extensions[..extended]);
        Some(coded.total())
    }
}

/// Appends an extension and answers the new length.
#[inline(always)]
fn extend(extensions: &mut [u8; EXTENSIONS], at: usize, value: usize) -> usize {
    if value < 255 {
        extensions[at] = value as u8;
        return at + 1;
    }
    extensions[at] = 255;
    extensions[at + 1..at + 3].copy_from_slice(&(value as u16).to_le_bytes());
    at + 3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under the salt of the input before, its entries count.
    #[test]
    fn an_index_that_misleads_is_made_anew() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 58) as u8
        };
        let first: Vec<u8> = (0..INPUT_MAX).map(|_| random()).collect();
        // What the first has in its front half comes later in the second.
        let mut second = first.clone();
        second.rotate_right(INPUT_MAX / 2);
        let mut object = vec![0; INPUT_MAX + 64];
        for isa in Isa::available() {
            // An encoder that has seen the first, and is about to use its salt again.
            let used = || {
                let mut encoder = Encoder::with_isa(isa);
                let salt = encoder.work.index.salt;
                encoder.plan(&first);
                encoder.work.index.salt = salt;
                encoder
            };
            let mut encoder = used();
            encoder.work.source[..INPUT_MAX].copy_from_slice(&second);
            assert!(!encoder.work.find::<1>(isa, INPUT_MAX), "{isa}: the test misleads nobody");

            for plan in [Encoder::plan, Encoder::plan_even] {
                let mut fresh = Encoder::with_isa(isa);
                let len = plan(&mut fresh, &second);
                let mut expected = vec![0; len];
                assert_eq!(fresh.write(&mut expected), Some(len));
                let mut encoder = used();
                assert_eq!(plan(&mut encoder, &second), len, "{isa}");
                assert_eq!(encoder.write(&mut object), Some(len));
                assert!(object[..len] == expected, "{isa}");
            }
        }
    }
}
