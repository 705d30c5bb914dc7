//! T16H, the dense format for cold pages: T16 objects with static Huffman codes.
//!
//! `docs/formats/t16h.md` describes the layout. A page chooses one of 16 codebooks for each of six
//! contexts. Codebooks come in immutable sets, so that an object is readable as long as its set
//! lives. The encoder needs only the T16 object: no template search, only the entropy stage.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bits;
mod books;
mod estimate;
mod huffman;
#[cfg(target_arch = "x86_64")]
mod pack;
mod symbols;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tags;
mod train;

pub use books::{builtin, builtin_page, reserve_builtin, Lengths, Set, BOOKS, CONTEXTS};
pub use estimate::Estimator;
pub use train::{Trainer, TRAINING_ROUNDS};

use crate::t16::{self, Layout};
use crate::Isa;
use symbols::{Packed, PageParts, Symbols};

/// Bytes of the fixed header: set, six codebook numbers, raw count, lengths of three bit streams.
pub(crate) const HEADER: usize = 2 + 3 + 2 + 6;
/// Bytes of a page's header: set, six codebooks, three numbers of page LZ, three lengths.
pub(crate) const PAGE_HEADER: usize = 2 + 3 + 6 + 6;
/// Bytes after the header of an object with packed raw words: the three numbers of [`Packed`].
const PACKED: usize = 6;
/// Flag beside the raw count: the raw words are packed.
const PACKED_FLAG: usize = 1 << 15;
/// No object is longer.
pub const OBJECT_MAX: usize = HEADER + PACKED + t16::OBJECT_MAX * 2;
const RAW_MAX: usize = 512 + 13;
/// A context with at most this many symbols does not prefetch its table of 32 cache lines.
const FEW: usize = 16;

/// A T16H object that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged T16H object")]
pub struct Damaged;

/// Returns the number of the set that `object` was coded with, which the reader needs.
pub fn set_number(object: &[u8]) -> Option<u16> {
    object.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

/// Working memory of both directions, so that neither allocates.
pub struct Coder {
    symbols: Box<Symbols>,
    streams: Box<bits::BitStreams>,
    object: Box<[u8; t16::OBJECT_MAX]>,
}

impl Default for Coder {
    fn default() -> Self {
        Self::new()
    }
}

impl Coder {
    /// Creates a coder with the fastest instruction set of this machine.
    pub fn new() -> Self {
        Self::with_isa(Isa::best())
    }

    /// Creates a coder with the instruction set `isa`. All write the same bytes.
    ///
    /// # Panics
    /// If the machine lacks it.
    pub fn with_isa(isa: Isa) -> Self {
        Coder {
            symbols: Symbols::new(isa),
            streams: bits::BitStreams::new(),
            object: Box::new([0; t16::OBJECT_MAX]),
        }
    }

    /// Codes the T16 object `source` with `set` into `out`. Returns `None` if `out` is too short or
    /// `source` damaged.
    pub fn encode(&mut self, set: &Set, source: &[u8], out: &mut [u8]) -> Option<usize> {
        let layout = Layout::parse(source).ok()?;
        self.symbols.collect(source, &layout).ok()?;
        let (chosen, lens) = self.code(set);

        let fixed = [&source[..layout.a_at], &source[layout.refs_at..layout.lines_at]];
        let packed = self.symbols.packed();
        let numbers = packed.map_or([0; PACKED], |packed| {
            let [a, b] = packed.sequences.to_le_bytes();
            let [c, d] = packed.literals.to_le_bytes();
            let [e, f] = packed.rest.to_le_bytes();
            [a, b, c, d, e, f]
        });
        let numbers = if packed.is_some() { &numbers[..] } else { &[] };
        let fixed = [numbers, fixed[0], fixed[1]];
        let flag = if packed.is_some() { PACKED_FLAG } else { 0 };
        let len = HEADER + numbers.len() + fixed[1].len() + fixed[2].len() + lens.iter().sum::<usize>();
        let out = out.get_mut(..len)?;
        let (front, mut out) = out.split_at_mut(HEADER);
        put_numbers(front, set, chosen, [(layout.raw_len | flag) as u16], lens);
        for part in fixed {
            let place;
            (place, out) = out.split_at_mut(part.len());
            place.copy_from_slice(part);
        }
        self.streams.copy(out);
        Some(len)
    }

    /// Codes `page` as page LZ with `set` into `out`. Returns `None` if `out` is too short.
    pub fn encode_page(&mut self, set: &Set, page: &[u8; t16::PAGE_SIZE], out: &mut [u8]) -> Option<usize> {
        let parts = self.symbols.collect_page(page);
        let (chosen, lens) = self.code(set);
        let len = PAGE_HEADER + lens.iter().sum::<usize>();
        let (front, out) = out.get_mut(..len)?.split_at_mut(PAGE_HEADER);
        put_numbers(front, set, chosen, [parts.sequences, parts.literals, parts.extensions], lens);
        self.streams.copy(out);
        Some(len)
    }

    /// Codes the collected symbols. Returns the chosen codebooks and the stretches' lengths.
    fn code(&mut self, set: &Set) -> ([u8; CONTEXTS], [usize; bits::STRETCHES]) {
        let chosen = self.symbols.choose(set);
        self.streams.clear();
        for (context, &book) in chosen.iter().enumerate() {
            self.streams.put(self.symbols.isa(), self.symbols.of(context), set.codes(context, book));
        }
        (chosen, self.streams.finish())
    }

    /// Rebuilds the page of `object`, which [`Coder::encode_page`] coded with `set`. Any bytes may
    /// be given.
    ///
    /// # Errors
    /// [`Damaged`] if the object contradicts itself or names another set.
    pub fn decode_page(
        &mut self,
        set: &Set,
        object: &[u8],
        page: &mut [u8; t16::PAGE_SIZE],
    ) -> Result<(), Damaged> {
        let (header, rest) = object.split_first_chunk::<PAGE_HEADER>().ok_or(Damaged)?;
        let chosen = chosen_books(set, object)?;
        let number = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let parts = PageParts { sequences: number(5), literals: number(7), extensions: number(9) };
        self.symbols.set_page_lens(parts)?;
        for (context, &book) in chosen.iter().enumerate() {
            if self.symbols.of(context).len() > FEW {
                set.prefetch(context, book);
            }
        }
        let lens = [11, 13, 15].map(|at| usize::from(number(at)));
        self.read_symbols(set, chosen, rest, lens, |symbols, context| symbols.of_page_mut(parts, context))?;
        self.symbols.restore_page(parts, page)
    }

    /// Reads the symbols of all contexts, of known numbers, to the places that `place` returns.
    fn read_symbols(
        &mut self,
        set: &Set,
        chosen: [u8; CONTEXTS],
        streams: &[u8],
        lens: [usize; bits::STRETCHES - 1],
        place: impl Fn(&mut Symbols, usize) -> &mut [u8],
    ) -> Result<(), Damaged> {
        let isa = self.symbols.isa();
        let mut reader = self.streams.read(streams, lens).ok_or(Damaged)?;
        for (context, &book) in chosen.iter().enumerate() {
            reader.take(isa, place(&mut self.symbols, context), set.table(context, book));
        }
        Ok(())
    }

    /// Rebuilds the T16 object of `object`, which was coded with `set`. Any bytes may be given.
    ///
    /// # Errors
    /// [`Damaged`] if the object contradicts itself or names another set. The T16 object may still
    /// be damaged, which its decoder detects.
    pub fn decode(&mut self, set: &Set, object: &[u8]) -> Result<&[u8], Damaged> {
        let (header, rest) = object.split_first_chunk::<HEADER>().ok_or(Damaged)?;
        let chosen = chosen_books(set, object)?;
        for (context, &book) in chosen.iter().enumerate() {
            set.prefetch(context, book);
        }
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]) as usize;
        let raw_len = u16_at(5) & !PACKED_FLAG;
        let (packed, rest) = if u16_at(5) & PACKED_FLAG != 0 {
            let ([a, b, c, d, e, f], rest) = rest.split_first_chunk::<PACKED>().ok_or(Damaged)?;
            let packed = Packed {
                sequences: u16::from_le_bytes([*a, *b]),
                literals: u16::from_le_bytes([*c, *d]),
                rest: u16::from_le_bytes([*e, *f]),
            };
            (Some(packed), rest)
        } else {
            (None, rest)
        };
        if raw_len > RAW_MAX {
            return Err(Damaged);
        }
        let fixed_len = Layout::fixed_len(rest).map_err(|_| Damaged)?;
        let whole = fixed_len.total(raw_len);
        if whole > self.object.len() {
            return Err(Damaged);
        }
        let (head, rest) = rest.split_at_checked(fixed_len.before_a).ok_or(Damaged)?;
        let (tail, rest) = rest.split_at_checked(fixed_len.between).ok_or(Damaged)?;
        self.object[..head.len()].copy_from_slice(head);
        let layout = Layout::parse(&self.object[..whole]).map_err(|_| Damaged)?;
        self.object[layout.refs_at..layout.lines_at].copy_from_slice(tail);

        self.symbols.set_lens(&layout, packed)?;
        self.read_symbols(set, chosen, rest, [u16_at(7), u16_at(9), u16_at(11)], Symbols::of_mut)?;
        self.symbols.restore(&mut self.object[..whole], &layout)?;
        Ok(&self.object[..whole])
    }
}

/// Writes both kinds' common start: set, codebooks, numbers, and three streams' lengths.
fn put_numbers<const LEN: usize>(
    front: &mut [u8],
    set: &Set,
    chosen: [u8; CONTEXTS],
    numbers: [u16; LEN],
    lens: [usize; bits::STRETCHES],
) {
    let (number, front) = front.split_at_mut(2);
    number.copy_from_slice(&set.number().to_le_bytes());
    let (books, front) = front.split_at_mut(CONTEXTS / 2);
    for (byte, pair) in books.iter_mut().zip(chosen.as_chunks::<2>().0) {
        *byte = pair[0] | pair[1] << 4;
    }
    let lens = lens.into_iter().take(bits::STRETCHES - 1).map(|len| len as u16);
    for (bytes, number) in front.as_chunks_mut::<2>().0.iter_mut().zip(numbers.into_iter().chain(lens)) {
        *bytes = number.to_le_bytes();
    }
}

/// Returns the codebooks that `object` names, or an error if they are not of `set`.
fn chosen_books(set: &Set, object: &[u8]) -> Result<[u8; CONTEXTS], Damaged> {
    if set_number(object) != Some(set.number()) {
        return Err(Damaged);
    }
    let books = object.get(2..2 + CONTEXTS / 2).ok_or(Damaged)?;
    let chosen = std::array::from_fn(|context| books[context / 2] >> (4 * (context % 2)) & 15);
    Ok(chosen)
}
