//! The six symbol streams of a T16 object, and back.

use super::books::{Set, BOOKS, CONTEXTS};
use super::Damaged;
use crate::lz;
use crate::t16::{Layout, OBJECT_MAX};

/// Most symbols of one context: the literals of page LZ over the most raw words.
pub(crate) const SYMBOLS_MAX: usize = 4352;
/// Raw words from which on page LZ is tried on them before they are coded.
const PACK_MIN: usize = 32;
/// Repeats among the 256 places sampled of the raw words from which on that is worth its time.
const REPEATS_MIN: u32 = 16;

/// The raw words as page LZ: what its header held, and the bytes of the other streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) sequences: u16,
    pub(crate) literals: u16,
    pub(crate) rest: u16,
}

pub(crate) struct Symbols {
    symbols: [[u8; SYMBOLS_MAX]; CONTEXTS],
    lens: [usize; CONTEXTS],
    /// The tag of each A half.
    tags: [u8; 1024 + 16],
    lz: lz::Encoder,
    /// A page LZ object.
    lz_object: [u8; OBJECT_MAX],
    packed: Option<Packed>,
}

impl Symbols {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Symbols {
            symbols: [[0; SYMBOLS_MAX]; CONTEXTS],
            lens: [0; CONTEXTS],
            tags: [0; 1024 + 16],
            lz: lz::Encoder::new(),
            lz_object: [0; OBJECT_MAX],
            packed: None,
        })
    }

    pub(crate) fn of(&self, context: usize) -> &[u8] {
        &self.symbols[context][..self.lens[context]]
    }

    pub(crate) fn of_mut(&mut self, context: usize) -> &mut [u8] {
        &mut self.symbols[context][..self.lens[context]]
    }

    /// Whether, and how, the raw words were packed.
    pub(crate) fn packed(&self) -> Option<Packed> {
        self.packed
    }

    /// Sets how many symbols each context has, which follows from the headers.
    pub(crate) fn set_lens(&mut self, layout: &Layout, packed: Option<Packed>) -> Result<(), Damaged> {
        let (low, high) = match packed {
            Some(packed) => (usize::from(packed.literals), usize::from(packed.rest)),
            None => (4 * layout.raw_len, 4 * layout.raw_len),
        };
        if low.max(high) > SYMBOLS_MAX || 4 + low + high > OBJECT_MAX {
            return Err(Damaged);
        }
        self.packed = packed;
        self.lens = [4 * layout.lines_len, layout.a_len, layout.a_len, 2 * layout.b_len, low, high];
        Ok(())
    }

    /// Packs the raw words if that saves an eighth of them.
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

    /// Lists the tags whose literals make up stream A: the exact templates', then the words'.
    fn list_tags(&mut self, object: &[u8], layout: &Layout) -> Result<(), Damaged> {
        let first = layout.prefix_first();
        let mut count = 0;
        for exact in 1..=layout.exact {
            let code = layout.kind(exact);
            if code != 15 {
                self.tags[count] = code as u8;
                count += 1;
            }
        }
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
                // 512 words and 13 templates at most.
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

    /// Splits a T16 object.
    pub(crate) fn collect(&mut self, object: &[u8], layout: &Layout) -> Result<(), Damaged> {
        let packed = self.pack(&object[layout.raw_at..layout.refs_at]);
        self.set_lens(layout, packed)?;
        self.list_tags(object, layout)?;
        self.symbols[0][..4 * layout.lines_len].copy_from_slice(&object[layout.lines_at..]);
        let halves = object[layout.a_at..layout.b_at].as_chunks::<2>().0;
        let mut last = [0u16; 16];
        let [_, low, high, ..] = &mut self.symbols;
        for (((half, tag), low), high) in halves.iter().zip(&self.tags).zip(low).zip(high) {
            let half = u16::from_le_bytes(*half);
            let last = &mut last[usize::from(*tag & 15)];
            let difference = half.wrapping_sub(*last).rotate_right(3);
            *last = half;
            *low = difference as u8;
            *high = (difference >> 8) as u8;
        }
        let halves = object[layout.b_at..layout.raw_at].as_chunks::<2>().0;
        let (low, high) = self.symbols[3].split_at_mut(layout.b_len);
        for ((half, low), high) in halves.iter().zip(low).zip(high) {
            [*low, *high] = *half;
        }
        if packed.is_some() {
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
        self.list_tags(object, layout)?;
        let halves = object[layout.a_at..layout.b_at].as_chunks_mut::<2>().0;
        let mut last = [0u16; 16];
        let [_, low, high, ..] = &self.symbols;
        for (((half, tag), low), high) in halves.iter_mut().zip(&self.tags).zip(low).zip(high) {
            let last = &mut last[usize::from(*tag & 15)];
            *last = last.wrapping_add(u16::from_le_bytes([*low, *high]).rotate_left(3));
            *half = last.to_le_bytes();
        }
        let halves = object[layout.b_at..layout.raw_at].as_chunks_mut::<2>().0;
        let (low, high) = self.symbols[3].split_at(layout.b_len);
        for ((half, low), high) in halves.iter_mut().zip(low).zip(high) {
            *half = [*low, *high];
        }
        if let Some(packed) = self.packed {
            let (low, high) = (self.lens[4], self.lens[5]);
            self.lz_object[..2].copy_from_slice(&packed.sequences.to_le_bytes());
            self.lz_object[2..4].copy_from_slice(&packed.literals.to_le_bytes());
            self.lz_object[4..4 + low].copy_from_slice(&self.symbols[4][..low]);
            self.lz_object[4 + low..4 + low + high].copy_from_slice(&self.symbols[5][..high]);
            let raw = &mut object[layout.raw_at..layout.refs_at];
            return lz::decode(&self.lz_object[..4 + low + high], raw).map_err(|_| Damaged);
        }
        let words = object[layout.raw_at..layout.refs_at].as_chunks_mut::<8>().0;
        let [.., low, high] = &self.symbols;
        let quads = low.as_chunks::<4>().0.iter().zip(high.as_chunks::<4>().0);
        for (word, ([a, b, c, d], [e, f, g, h])) in words.iter_mut().zip(quads) {
            *word = [*a, *b, *c, *d, *e, *f, *g, *h];
        }
        Ok(())
    }

    /// The codebook that codes each context in the fewest bits.
    pub(crate) fn choose(&self, set: &Set) -> [u8; CONTEXTS] {
        std::array::from_fn(|context| {
            let costs = set.costs(context);
            // At most 4352 symbols of 10 bits: 16 bits hold the sum.
            let mut sums = [0u16; BOOKS];
            for &symbol in self.of(context) {
                for (sum, cost) in sums.iter_mut().zip(&costs[usize::from(symbol)]) {
                    *sum += u16::from(*cost);
                }
            }
            let best = (0..BOOKS).min_by_key(|&book| sums[book]).expect("there are codebooks");
            best as u8
        })
    }
}
