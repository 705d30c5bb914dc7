//! The six symbol streams of a T16 object, and back.

use super::books::{Set, BOOKS, CONTEXTS};
use super::Damaged;
use crate::t16::Layout;

/// Most symbols of one context: the bytes of the most B halves, or of half the most raw words.
pub(crate) const SYMBOLS_MAX: usize = 2 * 1024 + 128;

pub(crate) struct Symbols {
    symbols: [[u8; SYMBOLS_MAX]; CONTEXTS],
    lens: [usize; CONTEXTS],
    /// The tag of each A half.
    tags: [u8; 1024 + 16],
}

impl Symbols {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Symbols { symbols: [[0; SYMBOLS_MAX]; CONTEXTS], lens: [0; CONTEXTS], tags: [0; 1024 + 16] })
    }

    pub(crate) fn of(&self, context: usize) -> &[u8] {
        &self.symbols[context][..self.lens[context]]
    }

    pub(crate) fn of_mut(&mut self, context: usize) -> &mut [u8] {
        &mut self.symbols[context][..self.lens[context]]
    }

    /// How many symbols each context has, which follows from the header.
    pub(crate) fn set_lens(&mut self, layout: &Layout) {
        let raw = 4 * layout.raw_len;
        self.lens = [4 * layout.lines_len, layout.a_len, layout.a_len, 2 * layout.b_len, raw, raw];
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
        self.set_lens(layout);
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
            // At most 2176 symbols of 10 bits: 16 bits hold the sum.
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
