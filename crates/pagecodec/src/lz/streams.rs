//! The streams of an object except its literals: sequences, literal runs, extensions.

use super::matches::{Matches, GROUP, PARTS, PART_RECORDS};
use super::{HEADER, MATCH_MIN};

/// Sequences of all parts, in whole groups.
const SEQUENCES: usize = PARTS * PART_RECORDS;
/// Room for extensions: one-byte ones belong to a run or match of 15 bytes or more, so there are at
/// most 2 x 4096 / 19; and for a step that writes 64.
const EXTENSIONS: usize = 1024;

/// Totals of the coded matches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Coded {
    pub(super) len: usize,
    pub(super) count: usize,
    pub(super) literals: usize,
    pub(super) extended: usize,
    /// End of the last match.
    pub(super) anchor: usize,
    /// Bytes of matches at odd offsets.
    pub(super) odd: usize,
}

impl Coded {
    pub(super) fn behind(&self) -> usize {
        2 * self.count + self.count.div_ceil(2) + self.extended
    }

    pub(super) fn total(&self) -> usize {
        HEADER + self.literals + self.behind()
    }
}

pub(super) struct LzStreams {
    pub(super) coded: Coded,
    sequences: [u16; SEQUENCES],
    runs: [u8; SEQUENCES],
    /// `runs` as nibbles, two a byte.
    packed: [u8; SEQUENCES / 2],
    extensions: [u8; EXTENSIONS],
}

impl LzStreams {
    pub(super) fn sequences(&self) -> &[u16] {
        &self.sequences[..self.coded.count]
    }

    pub(super) fn extensions(&self) -> &[u8] {
        &self.extensions[..self.coded.extended]
    }

    pub(super) fn packed(&self) -> &[u8] {
        &self.packed[..self.coded.count.div_ceil(2)]
    }

    #[inline(always)]
    pub(super) fn packed_runs(&mut self) -> &[u8] {
        let count = self.coded.count;
        self.runs[count] = 0;
        // Whole groups, so that there is no scalar tail.
        let groups = count.div_ceil(2 * GROUP);
        let pairs = self.runs.as_chunks::<{ 2 * GROUP }>().0[..groups].iter();
        for (packed, runs) in self.packed.as_chunks_mut::<GROUP>().0.iter_mut().zip(pairs) {
            for (packed, pair) in packed.iter_mut().zip(runs.as_chunks::<2>().0) {
                *packed = pair[0] | pair[1] << 4;
            }
        }
        self.packed()
    }

    /// [`LzStreams::code`] with AVX-512 F, BW, VL and VBMI2, which the machine must have.
    /// Extensions are also written without branches, as long as they take one byte. Returns how
    /// many matches have 32 bytes or more.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) unsafe fn code_avx512(&mut self, matches: &Matches, len: usize) -> usize {
        use std::arch::x86_64::*;
        let (mut anchor, mut count, mut extended, mut long_matches) = (0u16, 0, 0, 0);
        let (mut matched, mut matched_odd) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        let fifteen = _mm512_set1_epi16(15);
        for (records, taken) in matches.parts() {
            let (from, to) = (taken.start, taken.end);
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
                let is_long = _mm512_mask_cmpge_epu16_mask(words, whole, _mm512_set1_epi16(32));
                long_matches += is_long.count_ones() as usize;
                matched = _mm512_mask_add_epi16(matched, words, matched, whole);
                let odd = _mm512_mask_test_epi16_mask(words, offsets, _mm512_set1_epi16(1));
                matched_odd = _mm512_mask_add_epi16(matched_odd, odd, matched_odd, whole);
                // The run's byte, then the match's, for each record: the order of extensions.
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
        long_matches
    }

    /// [`LzStreams::code`] with the instructions of Haswell, which the machine must have.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) unsafe fn code_avx2(&mut self, matches: &Matches, len: usize) {
        self.code(matches, len);
    }

    /// Codes the chosen matches into all streams but the literals.
    #[inline(always)]
    pub(super) fn code(&mut self, matches: &Matches, len: usize) {
        let (mut anchor, mut count, mut literals, mut extended, mut odd) = (0u16, 0, len, 0, 0);
        for (records, taken) in matches.parts() {
            let (from, to) = (taken.start, taken.end);
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
                // Values behind the last record are meaningless and overwritten.
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
}

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
