//! Splits a T16 object into six symbol streams, and joins them.

use super::books::{Set, BOOKS, CONTEXTS};
use super::Damaged;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::lanes::Lanes;
#[cfg(target_arch = "aarch64")]
use crate::lanes::Neon;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{Xmm, Ymm};
use crate::t16::{Layout, OBJECT_MAX, PAGE_SIZE};
use crate::zeroed::zeroed;
use crate::{lz, Isa};

/// Most symbols of one context: the literals of page LZ over the most raw words.
pub(crate) const SYMBOLS_MAX: usize = 4352;
/// Page LZ is tried on this many raw words or more before they are coded.
const PACK_MIN: usize = 32;
/// Page LZ is worth its time on raw words with this many repeats among 256 sampled positions.
const REPEATS_MIN: u32 = 16;

/// Symbols whose costs are added up before the sums are widened.
const CHOOSE_BLOCK: usize = 96;
/// From this many symbols on, only every other block affects a context's codebook; from twice as
/// many on, every fourth.
const SAMPLED_FROM: usize = 240;

const LZ_HEADER: usize = 4;

// Accepted parts fit the room for a page LZ object.
const _: () = assert!(SYMBOLS_MAX <= OBJECT_MAX);

/// The raw words as page LZ: the numbers of its header, and the bytes of the other streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) sequences: u16,
    pub(crate) literals: u16,
    pub(crate) rest: u16,
}

/// Most halves of stream A: one of every word, and those of 13 exact templates.
pub(super) const A_MAX: usize = 512 + 13;
/// Room for the halves of A and for overrunning vector stores.
pub(super) const A_ROOM: usize = A_MAX + 3 + 64;

/// A page as page LZ: numbers of its sequences, and of bytes of literals and of extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageParts {
    pub(crate) sequences: u16,
    pub(crate) literals: u16,
    pub(crate) extensions: u16,
}

impl PageParts {
    /// Literals, sequences, bytes of literal runs, bytes of extensions.
    fn lens(self) -> [usize; 4] {
        let sequences = usize::from(self.sequences);
        [self.literals.into(), sequences, sequences.div_ceil(2), self.extensions.into()]
    }
}

pub(crate) struct Symbols {
    pub(super) symbols: [[u8; SYMBOLS_MAX]; CONTEXTS],
    pub(super) lens: [usize; CONTEXTS],
    pub(super) tags: [u8; A_ROOM],
    /// The halves of A by tag, preceded by a zero.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) sorted: [u16; A_ROOM],
    lz: lz::Encoder,
    lz_object: [u8; OBJECT_MAX],
    pub(super) packed: Option<Packed>,
}

/// [`Symbols::split`] and [`Symbols::join`] with lanes, compiled for instructions that the machine
/// must have.
#[cfg(target_arch = "x86_64")]
macro_rules! compiled {
    ($features:literal, $lanes:ident, $split:ident, $join:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $split(&mut self, object: &[u8], layout: &Layout) -> Result<(), Damaged> {
            // SAFETY: the caller vouches for the machine.
            unsafe { self.split_lanes::<$lanes>(object, layout) }
        }

        #[target_feature(enable = $features)]
        unsafe fn $join(&mut self, object: &mut [u8], layout: &Layout) -> Result<(), Damaged> {
            // SAFETY: as above.
            unsafe { self.join_lanes::<$lanes>(object, layout) }
        }
    };
}

impl Symbols {
    pub(crate) fn new(isa: Isa) -> Box<Self> {
        let mut symbols = zeroed::<Symbols>();
        let at = symbols.as_mut_ptr();
        // SAFETY: writes the fields that are no integers; for the others zero bytes are valid.
        unsafe {
            (&raw mut (*at).lz).write(lz::Encoder::with_isa(isa));
            (&raw mut (*at).packed).write(None);
            symbols.assume_init()
        }
    }

    pub(crate) fn isa(&self) -> Isa {
        self.lz.isa()
    }

    pub(crate) fn of(&self, context: usize) -> &[u8] {
        &self.symbols[context][..self.lens[context]]
    }

    pub(crate) fn of_mut(&mut self, context: usize) -> &mut [u8] {
        &mut self.symbols[context][..self.lens[context]]
    }

    pub(crate) fn packed(&self) -> Option<Packed> {
        self.packed
    }

    /// Sets the number of symbols of each context, which follows from the headers.
    pub(crate) fn set_lens(&mut self, layout: &Layout, packed: Option<Packed>) -> Result<(), Damaged> {
        let (low, high) = match packed {
            Some(packed) => (usize::from(packed.literals), usize::from(packed.rest)),
            None => (4 * layout.raw_len, 4 * layout.raw_len),
        };
        if layout.a_len > A_MAX || layout.b_len > A_MAX {
            return Err(Damaged);
        }
        if low.max(high) > SYMBOLS_MAX || 4 + low + high > OBJECT_MAX {
            return Err(Damaged);
        }
        self.packed = packed;
        self.lens = [4 * layout.lines_len, layout.a_len, layout.a_len, 2 * layout.b_len, low, high];
        Ok(())
    }

    pub(crate) fn collect_page(&mut self, page: &[u8; PAGE_SIZE]) -> PageParts {
        self.lz.plan(page);
        let isa = self.lz.isa();
        let [first, low, high, third, fourth, _] = &mut self.symbols;
        let streams = self.lz.apart(first);
        let parts = PageParts {
            sequences: streams.sequences.len() as u16,
            literals: streams.literals as u16,
            extensions: streams.extensions.len() as u16,
        };
        split_halves(isa, streams.sequences, low, high);
        third[..streams.runs.len()].copy_from_slice(streams.runs);
        fourth[..streams.extensions.len()].copy_from_slice(streams.extensions);
        self.set_page_lens(parts).expect("page LZ of this encoder");
        parts
    }

    pub(crate) fn set_page_lens(&mut self, parts: PageParts) -> Result<(), Damaged> {
        let [literals, sequences, runs, extensions] = parts.lens();
        if LZ_HEADER + literals + 2 * sequences + runs + extensions > SYMBOLS_MAX {
            return Err(Damaged);
        }
        self.lens = [literals, sequences, sequences, runs, extensions, 0];
        Ok(())
    }

    /// Returns the destination of a context's symbols when a page of these parts is read. Symbols
    /// stored unchanged in its page LZ object go directly into it.
    pub(crate) fn of_page_mut(&mut self, parts: PageParts, context: usize) -> &mut [u8] {
        let [literals, sequences, runs, extensions] = parts.lens();
        let behind = LZ_HEADER + literals + 2 * sequences;
        match context {
            0 => &mut self.lz_object[LZ_HEADER..][..literals],
            3 => &mut self.lz_object[behind..][..runs],
            4 => &mut self.lz_object[behind + runs..][..extensions],
            _ => self.of_mut(context),
        }
    }

    /// The reverse of [`Symbols::collect_page`], after all [`Symbols::of_page_mut`] are filled.
    pub(crate) fn restore_page(
        &mut self,
        parts: PageParts,
        page: &mut [u8; PAGE_SIZE],
    ) -> Result<(), Damaged> {
        let [literals, sequences, runs, extensions] = parts.lens();
        let len = LZ_HEADER + literals + 2 * sequences + runs + extensions;
        let (header, rest) = self.lz_object[..len].split_first_chunk_mut::<LZ_HEADER>().expect("a header");
        [header[0], header[1]] = parts.sequences.to_le_bytes();
        [header[2], header[3]] = parts.literals.to_le_bytes();
        let pairs = &mut rest[literals..][..2 * sequences];
        let [_, low, high, ..] = &self.symbols;
        for ((pair, low), high) in pairs.as_chunks_mut::<2>().0.iter_mut().zip(low).zip(high) {
            *pair = [*low, *high];
        }
        lz::decode(self.isa(), &self.lz_object[..len], page).map_err(|_| Damaged)
    }

    /// Packs the raw words if that saves 1/8 of them.
    fn pack(&mut self, raw: &[u8]) -> Option<Packed> {
        if raw.len() < 8 * PACK_MIN || raw.len() > lz::INPUT_MAX {
            return None;
        }
        if lz::repeats_in(self.lz.isa(), raw) < REPEATS_MIN {
            return None;
        }
        let len = self.lz.encode(raw, &mut self.lz_object[..raw.len() - raw.len() / 8])?;
        let [a, b, c, d] = *self.lz_object.first_chunk().expect("a header");
        let (sequences, literals) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let (low, high) = self.lz_object[4..len].split_at(usize::from(literals));
        self.symbols[4][..low.len()].copy_from_slice(low);
        self.symbols[5][..high.len()].copy_from_slice(high);
        Some(Packed { sequences, literals, rest: high.len() as u16 })
    }

    /// Lists the tags whose literals form stream A: the exact templates', then the words'.
    #[inline(always)]
    fn list_tags(&mut self, object: &[u8], layout: &Layout) -> Result<(), Damaged> {
        let first = layout.prefix_first();
        let mut count = self.list_exact_tags(layout);
        let lines = object[layout.lines_at..].as_chunks::<4>().0;
        let index = &object[layout.index_at..layout.lines_at];
        let (mut fresh, mut repeated) = (0, 0);
        let span = 14 - first as u32;
        for line in 0..64 {
            let number = if layout.fresh >> line & 1 != 0 {
                fresh += 1;
                fresh - 1
            } else {
                repeated += 1;
                usize::from(index[repeated - 1])
            };
            let mut tags = u32::from_le_bytes(*lines.get(number).ok_or(Damaged)?);
            for _ in 0..8 {
                let tag = tags & 15;
                tags >>= 4;
                // At most 512 words and 13 templates.
                self.tags[count] = tag as u8;
                count += usize::from(tag.wrapping_sub(first as u32) < span);
            }
        }
        if count == layout.a_len {
            Ok(())
        } else {
            Err(Damaged)
        }
    }

    #[inline(always)]
    pub(super) fn list_exact_tags(&mut self, layout: &Layout) -> usize {
        let first = layout.prefix_first();
        let mut count = 0;
        for exact in 1..=layout.exact {
            let code = layout.kind(exact);
            self.tags[count] = code as u8;
            count += usize::from((first..14).contains(&code));
        }
        count
    }

    pub(crate) fn collect(&mut self, object: &[u8], layout: &Layout) -> Result<(), Damaged> {
        let packed = self.pack(&object[layout.raw_at..layout.refs_at]);
        self.set_lens(layout, packed)?;
        match self.isa() {
            // SAFETY: page LZ's encoder was created with an instruction set that the machine has.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { self.split_avx512(object, layout) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { self.split_avx2(object, layout) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Sse4 => unsafe { self.split_sse4(object, layout) },
            // SAFETY: every machine of this architecture has the instructions.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { self.split_lanes::<Neon>(object, layout) },
            _ => self.split(object, layout),
        }
    }

    #[cfg(target_arch = "x86_64")]
    compiled!("avx2,bmi1,bmi2,lzcnt,popcnt", Ymm, split_avx2, join_avx2);
    #[cfg(target_arch = "x86_64")]
    compiled!("ssse3,sse4.1,popcnt", Xmm, split_sse4, join_sse4);

    /// Returns the start of each tag's halves in `sorted`.
    #[inline(always)]
    fn starts(&self, layout: &Layout) -> [u16; 16] {
        let mut counts = [0u16; 16];
        for tag in &self.tags[..layout.a_len] {
            counts[usize::from(*tag & 15)] += 1;
        }
        let mut start = 0;
        counts.map(|count| {
            start += count;
            start - count
        })
    }

    /// Makes the symbols of all streams, except for packed raw words.
    #[inline(always)]
    fn split(&mut self, object: &[u8], layout: &Layout) -> Result<(), Damaged> {
        self.list_tags(object, layout)?;
        let mut places = self.starts(layout);
        let halves = object[layout.a_at..layout.b_at].as_chunks::<2>().0;
        let mut last = [0u16; 16];
        let [_, low, high, ..] = &mut self.symbols;
        for (half, tag) in halves.iter().zip(&self.tags) {
            let half = u16::from_le_bytes(*half);
            let tag = usize::from(*tag & 15);
            let difference = half.wrapping_sub(last[tag]).rotate_right(3);
            last[tag] = half;
            let place = usize::from(places[tag]);
            places[tag] += 1;
            [low[place], high[place]] = difference.to_le_bytes();
        }
        self.split_rest(object, layout)
    }

    /// [`Symbols::split`] with vectors. The machine must have the instructions of `L`.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    unsafe fn split_lanes<L: Lanes>(&mut self, object: &[u8], layout: &Layout) -> Result<(), Damaged> {
        // SAFETY: the caller's promise.
        unsafe {
            let starts = self.list_tags_lanes::<L>(object, layout)?;
            let halves = object[layout.a_at..layout.b_at].as_chunks::<2>().0;
            self.split_halves_lanes::<L>(halves, &starts, layout.prefix_first()..14);
        }
        self.split_rest(object, layout)
    }

    /// The part of [`Symbols::split`] beside stream A.
    #[inline(always)]
    fn split_rest(&mut self, object: &[u8], layout: &Layout) -> Result<(), Damaged> {
        self.symbols[0][..4 * layout.lines_len].copy_from_slice(&object[layout.lines_at..]);
        let halves = object[layout.b_at..layout.raw_at].as_chunks::<2>().0;
        let (low, high) = self.symbols[3].split_at_mut(layout.b_len);
        for ((half, low), high) in halves.iter().zip(low).zip(high) {
            [*low, *high] = *half;
        }
        if self.packed.is_some() {
            return Ok(());
        }
        let words = object[layout.raw_at..layout.refs_at].as_chunks::<8>().0;
        let [.., low, high] = &mut self.symbols;
        let quads = low.as_chunks_mut::<4>().0.iter_mut().zip(high.as_chunks_mut::<4>().0);
        for (word, (low, high)) in words.iter().zip(quads) {
            let [a, b, c, d, e, f, g, h] = *word;
            *low = [a, b, c, d];
            *high = [e, f, g, h];
        }
        Ok(())
    }

    /// The reverse of [`Symbols::collect`], into an object that already has its other parts.
    pub(crate) fn restore(&mut self, object: &mut [u8], layout: &Layout) -> Result<(), Damaged> {
        object[layout.lines_at..].copy_from_slice(&self.symbols[0][..4 * layout.lines_len]);
        match self.isa() {
            // SAFETY: page LZ's encoder was created with an instruction set that the machine has.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { self.join_avx512(object, layout) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { self.join_avx2(object, layout) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Sse4 => unsafe { self.join_sse4(object, layout) },
            // SAFETY: every machine of this architecture has the instructions.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { self.join_lanes::<Neon>(object, layout) },
            _ => self.join(object, layout),
        }?;
        let Some(packed) = self.packed else { return Ok(()) };
        let (low, high) = (self.lens[4], self.lens[5]);
        self.lz_object[..2].copy_from_slice(&packed.sequences.to_le_bytes());
        self.lz_object[2..4].copy_from_slice(&packed.literals.to_le_bytes());
        self.lz_object[4..4 + low].copy_from_slice(&self.symbols[4][..low]);
        self.lz_object[4 + low..4 + low + high].copy_from_slice(&self.symbols[5][..high]);
        let raw = &mut object[layout.raw_at..layout.refs_at];
        lz::decode(self.isa(), &self.lz_object[..4 + low + high], raw).map_err(|_| Damaged)
    }

    /// [`Symbols::join`] with vectors. The halves are joined one by one, because tag by tag takes
    /// longer. The machine must have the instructions of `L`.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    unsafe fn join_lanes<L: Lanes>(&mut self, object: &mut [u8], layout: &Layout) -> Result<(), Damaged> {
        // SAFETY: the caller's promise.
        let starts = unsafe { self.list_tags_lanes::<L>(object, layout)? };
        self.join_by(object, layout, starts)
    }

    #[inline(always)]
    fn join(&mut self, object: &mut [u8], layout: &Layout) -> Result<(), Damaged> {
        self.list_tags(object, layout)?;
        let starts = self.starts(layout);
        self.join_by(object, layout, starts)
    }

    /// [`Symbols::join`] with listed tags, given the start of each tag's halves.
    #[inline(always)]
    fn join_by(&mut self, object: &mut [u8], layout: &Layout, mut places: [u16; 16]) -> Result<(), Damaged> {
        let halves = object[layout.a_at..layout.b_at].as_chunks_mut::<2>().0;
        let mut last = [0u16; 16];
        let [_, low, high, ..] = &self.symbols;
        for (half, tag) in halves.iter_mut().zip(&self.tags) {
            let tag = usize::from(*tag & 15);
            let place = usize::from(places[tag]);
            places[tag] += 1;
            let difference = u16::from_le_bytes([low[place], high[place]]);
            last[tag] = last[tag].wrapping_add(difference.rotate_left(3));
            *half = last[tag].to_le_bytes();
        }
        let halves = object[layout.b_at..layout.raw_at].as_chunks_mut::<2>().0;
        let (low, high) = self.symbols[3].split_at(layout.b_len);
        for ((half, low), high) in halves.iter_mut().zip(low).zip(high) {
            *half = [*low, *high];
        }
        if self.packed.is_some() {
            return Ok(());
        }
        let words = object[layout.raw_at..layout.refs_at].as_chunks_mut::<8>().0;
        let [.., low, high] = &self.symbols;
        let quads = low.as_chunks::<4>().0.iter().zip(high.as_chunks::<4>().0);
        for (word, ([a, b, c, d], [e, f, g, h])) in words.iter_mut().zip(quads) {
            *word = [*a, *b, *c, *d, *e, *f, *g, *h];
        }
        Ok(())
    }

    /// Returns each context's codebook with the fewest bits, judged by a sample if it is long.
    pub(crate) fn choose(&self, set: &Set) -> [u8; CONTEXTS] {
        std::array::from_fn(|context| cheapest(self.isa(), self.of(context), set.costs(context)))
    }

    /// Returns the bits of a context in the codebook that [`Symbols::choose`] takes by these costs.
    pub(super) fn bits(&self, context: usize, costs: &[[u8; BOOKS]; 256]) -> usize {
        let symbols = self.of(context);
        let book = usize::from(cheapest(self.isa(), symbols, costs));
        symbols.iter().map(|symbol| usize::from(costs[usize::from(*symbol)][book])).sum()
    }
}

/// The first of the codebooks that code `symbols` in the fewest bits.
fn cheapest(isa: Isa, symbols: &[u8], costs: &[[u8; BOOKS]; 256]) -> u8 {
    with_isa!(
        isa,
        fn run(symbols: &[u8], costs: &[[u8; BOOKS]; 256]) -> u8 {
            let step = if symbols.len() >= 2 * SAMPLED_FROM {
                4
            } else {
                1 + usize::from(symbols.len() >= SAMPLED_FROM)
            };
            // At most 4352 symbols of 10 bits: 16 bits hold the sum.
            let mut sums = [0u16; BOOKS];
            for block in symbols.chunks(CHOOSE_BLOCK).step_by(step) {
                // 24 symbols of 10 bits in each of four chains: 8 bits hold a sum.
                let mut parts = [Costs::ZERO; 4];
                let (fours, rest) = block.as_chunks::<4>();
                for four in fours {
                    for (part, &symbol) in parts.iter_mut().zip(four) {
                        part.add(&costs[usize::from(symbol)]);
                    }
                }
                for (part, &symbol) in parts.iter_mut().zip(rest) {
                    part.add(&costs[usize::from(symbol)]);
                }
                for part in parts {
                    for (sum, cost) in sums.iter_mut().zip(part.get()) {
                        *sum += u16::from(cost);
                    }
                }
            }
            // The number is below the sum, so that finding it needs no branch.
            let mut numbered = [0u32; BOOKS];
            for (book, (numbered, sum)) in numbered.iter_mut().zip(sums).enumerate() {
                *numbered = u32::from(sum) << 8 | book as u32;
            }
            numbered.into_iter().fold(u32::MAX, u32::min) as u8
        }
    )
}

fn split_halves(isa: Isa, halves: &[u16], low: &mut [u8; SYMBOLS_MAX], high: &mut [u8; SYMBOLS_MAX]) {
    with_isa!(
        isa,
        fn run(halves: &[u16], low: &mut [u8; SYMBOLS_MAX], high: &mut [u8; SYMBOLS_MAX]) -> () {
            for ((half, low), high) in halves.iter().zip(low).zip(high) {
                [*low, *high] = half.to_le_bytes();
            }
        }
    )
}

/// Sums of costs in all codebooks, in one register. (Otherwise the compiler takes the bytes apart.)
#[derive(Clone, Copy)]
struct Costs(
    #[cfg(target_arch = "x86_64")] std::arch::x86_64::__m128i,
    #[cfg(not(target_arch = "x86_64"))] [u8; BOOKS],
);

impl Costs {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: any bits are valid.
    const ZERO: Costs = Costs(unsafe { std::mem::zeroed() });
    #[cfg(not(target_arch = "x86_64"))]
    const ZERO: Costs = Costs([0; BOOKS]);

    #[inline(always)]
    fn add(&mut self, costs: &[u8; BOOKS]) {
        // SAFETY: SSE2 is part of the architecture, and 16 bytes are read.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::x86_64::*;
            self.0 = _mm_add_epi8(self.0, _mm_loadu_si128(costs.as_ptr().cast()));
        }
        #[cfg(not(target_arch = "x86_64"))]
        for (sum, cost) in self.0.iter_mut().zip(costs) {
            *sum = sum.wrapping_add(*cost);
        }
    }

    #[inline(always)]
    fn get(self) -> [u8; BOOKS] {
        // SAFETY: both are 16 bytes.
        #[cfg(target_arch = "x86_64")]
        let bytes = unsafe { std::mem::transmute::<std::arch::x86_64::__m128i, [u8; BOOKS]>(self.0) };
        #[cfg(not(target_arch = "x86_64"))]
        let bytes = self.0;
        bytes
    }
}
