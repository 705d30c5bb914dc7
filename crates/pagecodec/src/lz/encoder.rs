//! The encoder of page LZ: index, walk, streams.

use super::compare::Portable;
use super::index::{Index, PADDING};
use super::matches::Matches;
use super::streams::{Coded, LzStreams};
use super::{HEADER, INPUT_MAX};
use crate::zeroed::zeroed;
use crate::Isa;

/// Largest step in which literals are copied, in bytes.
pub(crate) const LITERALS_STEP_MAX: usize = 32;
/// With this many matches of 32 bytes or more in the last input, 64 bytes are compared at a time,
/// because a branch taken now and then costs more than the longer loads.
#[cfg(target_arch = "x86_64")]
const LONG_MIN: usize = 8;

#[repr(C, align(64))]
struct Work {
    source: [u8; INPUT_MAX + PADDING],
    index: Index,
    matches: Matches,
    streams: LzStreams,
    /// Whether the last input had at least `LONG_MIN` long matches.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    many_long: bool,
    literals: [u8; INPUT_MAX + LITERALS_STEP_MAX],
}

/// The streams of an object except the literals, of which there are `literals` bytes.
pub(crate) struct Apart<'a> {
    pub(crate) literals: usize,
    pub(crate) sequences: &'a [u16],
    pub(crate) runs: &'a [u8],
    pub(crate) extensions: &'a [u8],
}

/// Encodes up to 4096 bytes. Holds the working memory (about 60 KiB), so encoding never allocates.
pub struct Encoder {
    isa: Isa,
    work: Box<Work>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies `N` bytes, which must be readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { to.cast::<[u8; N]>().write_unaligned(from.cast::<[u8; N]>().read_unaligned()) }
}

/// Copies a page with AVX-512 F, which the machine must have. On some machines the C library takes
/// 0.25 us, several times as long.
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

/// [`copy_page_avx512`] with AVX2, which the machine must have.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_page_avx2(from: &[u8; INPUT_MAX], to: &mut [u8; INPUT_MAX + PADDING]) {
    use std::arch::x86_64::*;
    for at in (0..INPUT_MAX).step_by(128) {
        // SAFETY: both have at least INPUT_MAX bytes.
        unsafe {
            let (from, to) = (from.as_ptr().add(at), to.as_mut_ptr().add(at));
            let parts = [0, 32, 64, 96].map(|part| _mm256_loadu_si256(from.add(part).cast()));
            for (part, bytes) in parts.into_iter().enumerate() {
                _mm256_storeu_si256(to.add(32 * part).cast(), bytes);
            }
        }
    }
}

impl Encoder {
    /// Creates an encoder with the fastest instruction set of this machine.
    pub fn new() -> Self {
        Self::with_isa(Isa::best())
    }

    /// Creates an encoder with the instruction set `isa`. All write the same bytes.
    ///
    /// # Panics
    /// If the machine lacks `isa`.
    pub fn with_isa(isa: Isa) -> Self {
        assert!(isa.is_available(), "this machine lacks {isa}");
        // SAFETY: integers, false, and empty ranges of zero, for which zero bytes are valid.
        let work = unsafe { zeroed::<Work>().assume_init() };
        Encoder { isa, work }
    }

    /// Returns the instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Encodes `input` into `out` and returns the object's length, or `None` if `out` is too short.
    ///
    /// # Panics
    /// If the input is longer than [`INPUT_MAX`].
    pub fn encode(&mut self, input: &[u8], out: &mut [u8]) -> Option<usize> {
        self.plan(input);
        self.write(out)
    }

    /// Finds the matches of `input` and returns the length of its object.
    ///
    /// # Panics
    /// If the input is longer than [`INPUT_MAX`].
    pub fn plan(&mut self, input: &[u8]) -> usize {
        self.plan_by::<1>(input)
    }

    /// [`Encoder::plan`] in three quarters of the time: searches only even positions and distances.
    /// Objects of strings and records become 2 to 6 % longer, those of texts and code up to 30 %,
    /// which [`Encoder::matched`] predicts.
    ///
    /// # Panics
    /// If the input is longer than [`INPUT_MAX`].
    pub fn plan_even(&mut self, input: &[u8]) -> usize {
        self.plan_by::<2>(input)
    }

    /// Returns the bytes of the last planned input in matches, and in matches at odd distances.
    pub fn matched(&self) -> (usize, usize) {
        (self.work.streams.coded.len - self.work.streams.coded.literals, self.work.streams.coded.odd)
    }

    fn plan_by<const STEP: usize>(&mut self, input: &[u8]) -> usize {
        let len = input.len();
        assert!(len <= INPUT_MAX, "{len} bytes of input");
        let work = &mut *self.work;
        match (self.isa, input.first_chunk::<INPUT_MAX>()) {
            // SAFETY: `with_isa` has checked that the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, Some(page)) => unsafe { copy_page_avx512(page, &mut work.source) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, Some(page)) => unsafe { copy_page_avx2(page, &mut work.source) },
            _ => work.source[..len].copy_from_slice(input),
        }
        // The index reads whole groups. These bytes must not depend on earlier inputs.
        work.source[len..].fill(0);
        if !work.find::<STEP>(self.isa, len) {
            work.index.clear();
            let found = work.find::<STEP>(self.isa, len);
            assert!(found, "an index that started empty holds this input only");
        }
        match self.isa {
            // SAFETY: `with_isa` has checked that the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe {
                work.many_long = work.streams.code_avx512(&work.matches, len) >= LONG_MIN;
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { work.streams.code_avx2(&work.matches, len) },
            _ => work.streams.code(&work.matches, len),
        }
        work.streams.coded.total()
    }

    /// Writes the object of the last planned input into `out` and returns its length, or `None` if
    /// `out` is too short. Without a plan the input is empty.
    pub fn write(&mut self, out: &mut [u8]) -> Option<usize> {
        match self.isa {
            // SAFETY: `with_isa` has checked that the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => unsafe { self.work.write_avx2(out) },
            _ => self.work.write::<16>(out),
        }
    }

    /// Returns the streams of the last planned input. The literals go to `literals`.
    ///
    /// # Panics
    /// If there is no room for the literals and [`LITERALS_STEP_MAX`] more bytes.
    pub(crate) fn apart(&mut self, literals: &mut [u8]) -> Apart<'_> {
        let work = &mut *self.work;
        let len = work.streams.coded.literals;
        assert!(literals.len() >= len + LITERALS_STEP_MAX, "{} bytes for {len} literals", literals.len());
        let to = literals.as_mut_ptr();
        match self.isa {
            // SAFETY: `with_isa` has checked the instructions; a step fits (asserted above).
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => unsafe { work.copy_literals_avx2(to) },
            // SAFETY: as above.
            _ => unsafe { work.copy_literals::<16>(to) },
        }
        work.streams.packed_runs();
        Apart {
            literals: len,
            sequences: work.streams.sequences(),
            runs: work.streams.packed(),
            extensions: work.streams.extensions(),
        }
    }
}

impl Work {
    /// Indexes the input and chooses its matches. Returns false if entries of an earlier input
    /// misled it, which cannot happen after [`Index::clear`].
    fn find<const STEP: usize>(&mut self, isa: Isa, len: usize) -> bool {
        let Work { source, index, matches, .. } = self;
        match isa {
            // SAFETY: `with_isa` has checked that the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe {
                index.fill_avx512::<STEP>(source, len);
                if self.many_long {
                    matches.walk_avx512::<STEP>(source, index, len)
                } else {
                    matches.walk_avx2::<STEP>(source, index, len)
                }
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe {
                index.fill_avx2::<STEP>(source, len);
                matches.walk_avx2::<STEP>(source, index, len)
            },
            _ => {
                index.fill_generic::<STEP>(source, len);
                // SAFETY: every machine has the instructions of `Portable`.
                unsafe { matches.walk::<Portable, STEP>(source, index, len) }
            }
        }
    }

    /// [`Work::write`] with the instructions of Haswell, which the machine must have.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn write_avx2(&mut self, out: &mut [u8]) -> Option<usize> {
        self.write::<32>(out)
    }

    /// Joins the streams in `out`, if there is room. Copies literals in steps of `STEP` (16 or 32).
    #[inline(always)]
    fn write<const STEP: usize>(&mut self, out: &mut [u8]) -> Option<usize> {
        let coded = self.streams.coded;
        let Coded { count, literals, .. } = coded;
        let behind = coded.behind();
        let out = out.get_mut(..coded.total())?;
        // Literals are copied in place if a whole step follows them.
        let in_place = behind >= STEP;
        let to = if in_place { out[HEADER..].as_mut_ptr() } else { self.literals.as_mut_ptr() };
        // SAFETY: in both cases there is room for all literals and a step behind them.
        unsafe { self.copy_literals::<STEP>(to) };
        let (header, out) = out.split_at_mut(HEADER);
        header[..2].copy_from_slice(&(count as u16).to_le_bytes());
        header[2..].copy_from_slice(&(literals as u16).to_le_bytes());
        let (place, out) = out.split_at_mut(literals);
        if !in_place {
            place.copy_from_slice(&self.literals[..literals]);
        }
        let (place, out) = out.split_at_mut(2 * count);
        for (place, sequence) in place.as_chunks_mut::<2>().0.iter_mut().zip(self.streams.sequences()) {
            *place = sequence.to_le_bytes();
        }
        let (place, out) = out.split_at_mut(count.div_ceil(2));
        place.copy_from_slice(self.streams.packed_runs());
        out.copy_from_slice(self.streams.extensions());
        Some(coded.total())
    }

    /// [`Work::copy_literals`] with the instructions of Haswell, which the machine must have, and
    /// with its conditions for a `STEP` of 32.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn copy_literals_avx2(&self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.copy_literals::<32>(to) }
    }

    /// Copies all literals to `to` in steps of `STEP` (16 or 32).
    ///
    /// # Safety
    /// There must be room for them and for `STEP` bytes more.
    #[inline(always)]
    unsafe fn copy_literals<const STEP: usize>(&self, to: *mut u8) {
        let Coded { len, literals, anchor, .. } = self.streams.coded;
        let mut copied = 0;
        for (records, taken) in self.matches.parts() {
            let befores = &records.ends[taken.start..];
            for (&start, &before) in records.starts[taken].iter().zip(befores) {
                let run = usize::from(start - before);
                // SAFETY: the input has PADDING readable bytes after it. The literals up to the end
                // of this run are at most `literals`, and there are STEP bytes more.
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
        // SAFETY: including the tail there are `literals` bytes, for which there is room.
        unsafe { tail.as_ptr().copy_to_nonoverlapping(to.add(copied), tail.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under the previous input's salt its entries count.
    #[test]
    fn an_index_that_misleads_is_rebuilt() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 58) as u8
        };
        let first: Vec<u8> = (0..INPUT_MAX).map(|_| random()).collect();
        // The front half of the first appears later in the second.
        let mut second = first.clone();
        second.rotate_right(INPUT_MAX / 2);
        let mut object = vec![0; INPUT_MAX + 64];
        for isa in Isa::available() {
            // An encoder that has seen the first and is about to reuse its salt.
            let used = || {
                let mut encoder = Encoder::with_isa(isa);
                let salt = encoder.work.index.salt;
                encoder.plan(&first);
                encoder.work.index.salt = salt;
                encoder
            };
            let mut encoder = used();
            encoder.work.source[..INPUT_MAX].copy_from_slice(&second);
            assert!(!encoder.work.find::<1>(isa, INPUT_MAX), "{isa}: the test does not mislead the encoder");

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

    /// An object does not depend on the match lengths of earlier inputs.
    #[test]
    fn long_matches_leave_no_trace() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 58) as u8
        };
        // Periods with a byte changed now and then: matches end at every length to 128 and above.
        let mut page = |period: usize, every: usize| {
            let mut page: Vec<u8> = (0..period).map(|_| random()).collect();
            page = page.into_iter().cycle().take(INPUT_MAX).collect();
            for at in (period..INPUT_MAX).step_by(every) {
                page[at] = 200;
            }
            page
        };
        let (long, short) = (page(300, 70), page(300, 9));
        for isa in Isa::available() {
            for plan in [Encoder::plan, Encoder::plan_even] {
                let object_after = |before: &[&[u8]], input: &[u8]| {
                    let mut encoder = Encoder::with_isa(isa);
                    for before in before {
                        plan(&mut encoder, before);
                    }
                    let many_long = encoder.work.many_long;
                    let len = plan(&mut encoder, input);
                    let mut object = vec![0; len];
                    assert_eq!(encoder.write(&mut object), Some(len));
                    (object, many_long)
                };
                for input in [&long, &short] {
                    let (expected, many_long) = object_after(&[&short], input);
                    assert!(!many_long, "{isa}");
                    let (object, many_long) = object_after(&[&short, &long], input);
                    assert!(object == expected, "{isa}");
                    assert_eq!(many_long, isa == Isa::Avx512, "{isa}");
                }
            }
        }
    }
}
