//! The encoder of page LZ: index, walk, write.

use super::index::{Index, PADDING};
use super::{copy16, HEADER, INPUT_MAX, MATCH_MIN};
use crate::Isa;

/// Parts of the input that are walked side by side.
const LANES: usize = 4;
/// Sequences of one part at most, and one more that is written but not counted.
const LANE_RECORDS: usize = INPUT_MAX / LANES / MATCH_MIN + 2;

/// One match: positions of its start, of its source, and of its end.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Record {
    start: u16,
    source: u16,
    end: u16,
    unused: u16,
}

#[repr(C, align(64))]
struct Work {
    source: [u8; INPUT_MAX + PADDING],
    index: Index,
    records: [[Record; LANE_RECORDS]; LANES],
    counts: [usize; LANES],
    literals: [u8; INPUT_MAX + 64],
    sequences: [u16; LANES * LANE_RECORDS],
    runs: [u8; LANES * LANE_RECORDS + 2],
    extensions: [u8; 1024],
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

/// How many of 32 bytes are equal from the front.
///
/// # Safety
/// 32 bytes must be readable at both places.
#[inline(always)]
unsafe fn equal32(a: *const u8, b: *const u8) -> usize {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for both places; SSE2 is part of the architecture.
    unsafe {
        use std::arch::x86_64::*;
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
            records: [[Record::default(); LANE_RECORDS]; LANES],
            counts: [0; LANES],
            literals: [0; INPUT_MAX + 64],
            sequences: [0; LANES * LANE_RECORDS],
            runs: [0; LANES * LANE_RECORDS + 2],
            extensions: [0; 1024],
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
        let len = input.len();
        assert!(len <= INPUT_MAX, "{len} bytes of input");
        let work = &mut *self.work;
        work.source[..len].copy_from_slice(input);
        // The index reads whole chunks; what it finds there does not count, but must not depend on the past.
        work.source[len..].fill(0);
        match self.isa {
            // SAFETY: `with_isa` has checked that the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe {
                work.index.fill_avx512(&work.source, len);
                work.walk_avx2(len);
                work.write_avx2(len, out)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe {
                work.index.fill_avx2(&work.source, len);
                work.walk_avx2(len);
                work.write_avx2(len, out)
            },
            _ => {
                work.index.fill_generic(&work.source, len);
                work.walk(len);
                work.write(len, out)
            }
        }
    }
}

/// The walk through one quarter of the input.
struct Lane {
    at: usize,
    end: usize,
    next: *mut Record,
}

impl Lane {
    fn new(start: usize, end: usize, next: *mut Record) -> Self {
        Lane { at: start, end, next }
    }

    #[inline(always)]
    fn busy(&self) -> bool {
        self.at + MATCH_MIN <= self.end
    }

    /// Takes the next match, if one starts within the next 57 positions, and moves behind it.
    ///
    /// # Safety
    /// `bytes` must have PADDING readable bytes after its 4096th; `at <= end <= 4096`; `next` must
    /// have room for a quarter's records.
    #[inline(always)]
    unsafe fn step(&mut self, bytes: *const u8, index: &Index) {
        // SAFETY: `at <= 4096`, so bytes at / 8 .. + 8 are within the 528 bytes of `mask`.
        let window =
            unsafe { index.mask.as_ptr().cast::<u8>().add(self.at / 8).cast::<u64>().read_unaligned() };
        let window = u64::from_le(window) >> (self.at % 8);
        let start = self.at + window.trailing_zeros() as usize;
        // SAFETY: `start <= 4096 + 64`, and `candidates` has one element more.
        let source = unsafe { *index.candidates.as_ptr().add(start) } as usize & 0xfff;
        let found = (window != 0) & (start + MATCH_MIN <= self.end);
        // SAFETY: both places are at most 4160 bytes into the input; PADDING is 320.
        let mut matched = unsafe { equal32(bytes.add(start), bytes.add(source)) };
        if found & (matched == 32) {
            while start + matched < self.end {
                // SAFETY: `start + matched < 4096`, and 32 bytes follow.
                let more = unsafe { equal32(bytes.add(start + matched), bytes.add(source + matched)) };
                matched += more;
                if more < 32 {
                    break;
                }
            }
        }
        let stop = (start + matched).min(self.end);
        let record = Record { start: start as u16, source: source as u16, end: stop as u16, unused: 0 };
        // SAFETY: a counted record covers at least four bytes of the quarter, so at most LANE_RECORDS - 1 are counted,
        // and this one has a place.
        unsafe {
            *self.next = record;
            self.next = self.next.add(usize::from(found));
        }
        self.at = if found { stop } else { (self.at + 57).min(self.end) };
    }
}

impl Work {
    /// [`Work::walk`] with the instructions of Haswell (shifts and bit counts without detours).
    ///
    /// # Safety
    /// The machine must have them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn walk_avx2(&mut self, len: usize) {
        self.walk(len);
    }

    /// [`Work::write`] with the instructions of Haswell.
    ///
    /// # Safety
    /// The machine must have them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn write_avx2(&mut self, len: usize, out: &mut [u8]) -> Option<usize> {
        self.write(len, out)
    }

    /// Chooses matches greedily in each quarter of the input. A match does not leave its quarter (its source may).
    #[inline(always)]
    fn walk(&mut self, len: usize) {
        let bytes = self.source.as_ptr();
        let quarter = len / LANES;
        let [first, second, third, fourth] = self.records.each_mut().map(|records| records.as_mut_ptr());
        // Four variables, not an array: each step's state then stays in registers.
        let mut a = Lane::new(0, quarter, first);
        let mut b = Lane::new(quarter, 2 * quarter, second);
        let mut c = Lane::new(2 * quarter, 3 * quarter, third);
        let mut d = Lane::new(3 * quarter, len, fourth);
        while a.busy() | b.busy() | c.busy() | d.busy() {
            // SAFETY: `bytes` has PADDING readable bytes after 4096; the lanes are within the input
            // and write to arrays of LANE_RECORDS records of their own.
            unsafe {
                a.step(bytes, &self.index);
                b.step(bytes, &self.index);
                c.step(bytes, &self.index);
                d.step(bytes, &self.index);
            }
        }
        for (count, (lane, first)) in
            self.counts.iter_mut().zip([(a, first), (b, second), (c, third), (d, fourth)])
        {
            // SAFETY: both pointers are into the same array.
            *count = unsafe { lane.next.offset_from(first) } as usize;
        }
    }

    /// Writes the streams of the chosen matches and joins them in `out`.
    #[inline(always)]
    fn write(&mut self, len: usize, out: &mut [u8]) -> Option<usize> {
        let bytes = self.source.as_ptr();
        let (mut anchor, mut count, mut literals, mut extended) = (0usize, 0usize, 0usize, 0usize);
        for lane in 0..LANES {
            for record in &self.records[lane][..self.counts[lane]] {
                let (start, end) = (record.start as usize, record.end as usize);
                let run = start - anchor;
                let rest = end - start - MATCH_MIN;
                // SAFETY: the input has 320 readable bytes after it, `literals` 64 writable ones. Matches are at most
                // 1024 in number, the length of `runs` and `sequences`.
                unsafe {
                    let (from, to) = (bytes.add(anchor), self.literals.as_mut_ptr().add(literals));
                    copy16(from, to);
                    if run > 16 {
                        for done in (16..run).step_by(16) {
                            copy16(from.add(done), to.add(done));
                        }
                    }
                    *self.runs.get_unchecked_mut(count) = run.min(15) as u8;
                    *self.sequences.get_unchecked_mut(count) =
                        ((start - record.source as usize) | (rest.min(15) << 12)) as u16;
                }
                literals += run;
                count += 1;
                if run >= 15 {
                    extended = extend(&mut self.extensions, extended, run - 15);
                }
                if rest >= 15 {
                    extended = extend(&mut self.extensions, extended, rest - 15);
                }
                anchor = end;
            }
        }
        let tail = len - anchor;
        self.literals[literals..literals + tail].copy_from_slice(&self.source[anchor..len]);
        literals += tail;

        let total = HEADER + literals + 2 * count + count.div_ceil(2) + extended;
        let out = out.get_mut(..total)?;
        let (header, out) = out.split_at_mut(HEADER);
        header[..2].copy_from_slice(&(count as u16).to_le_bytes());
        header[2..].copy_from_slice(&(literals as u16).to_le_bytes());
        let (place, out) = out.split_at_mut(literals);
        place.copy_from_slice(&self.literals[..literals]);
        let (place, out) = out.split_at_mut(2 * count);
        for (place, sequence) in place.as_chunks_mut::<2>().0.iter_mut().zip(&self.sequences) {
            *place = sequence.to_le_bytes();
        }
        let (place, out) = out.split_at_mut(count.div_ceil(2));
        self.runs[count] = 0;
        for (place, pair) in place.iter_mut().zip(self.runs.as_chunks::<2>().0) {
            *place = pair[0] | pair[1] << 4;
        }
        out.copy_from_slice(&self.extensions[..extended]);
        Some(total)
    }
}

/// Appends an extension and answers the new length. A run or match of 15 bytes or more pays for its three bytes, so
/// there are at most 2 x 4096 / 19 one-byte ones.
#[inline(always)]
fn extend(extensions: &mut [u8; 1024], at: usize, value: usize) -> usize {
    if value < 255 {
        extensions[at] = value as u8;
        return at + 1;
    }
    extensions[at] = 255;
    extensions[at + 1..at + 3].copy_from_slice(&(value as u16).to_le_bytes());
    at + 3
}
