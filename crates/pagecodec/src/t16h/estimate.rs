//! Estimates the length of objects without making them.

use super::books::{self, Builtin, Costs, BOOKS, CONTEXTS};
use super::symbols::Symbols;
use super::{bits, HEADER, PACKED, PAGE_HEADER};
use crate::t16::{Layout, PAGE_SIZE};
use crate::zeroed::zeroed;
use crate::Isa;

/// Estimates the lengths of [`super::Coder`]'s objects with the built-in sets, without their
/// tables. It takes some 140 KiB, most of them working memory that stays untouched before the first
/// estimate.
pub struct Estimator {
    symbols: Box<Symbols>,
    /// For T16 objects, and for page LZ.
    costs: Box<[Costs; 2]>,
    is_ready: bool,
}

impl Estimator {
    /// Creates an estimator with the instruction set `isa`. All return the same.
    ///
    /// # Panics
    /// If the machine lacks it.
    pub fn with_isa(isa: Isa) -> Self {
        // SAFETY: integers, for which zero bytes are valid.
        let costs = unsafe { zeroed::<[Costs; 2]>().assume_init() };
        Estimator { symbols: Symbols::new(isa), costs, is_ready: false }
    }

    /// Returns the approximate length to which [`super::Coder::encode`] would code the T16 object
    /// `source`, or `None` if it is damaged.
    pub fn object_len(&mut self, source: &[u8]) -> Option<usize> {
        let layout = Layout::parse(source).ok()?;
        self.symbols.collect(source, &layout).ok()?;
        let packed = if self.symbols.packed().is_some() { PACKED } else { 0 };
        let fixed = layout.a_at + (layout.lines_at - layout.refs_at);
        Some(HEADER + packed + fixed + self.streams_len(0))
    }

    /// Returns the approximate length to which [`super::Coder::encode_page`] would code `page`.
    pub fn page_len(&mut self, page: &[u8; PAGE_SIZE]) -> usize {
        self.symbols.collect_page(page);
        PAGE_HEADER + self.streams_len(1)
    }

    fn streams_len(&mut self, kind: usize) -> usize {
        if !self.is_ready {
            for (costs, builtin) in self.costs.iter_mut().zip([&books::T16, &books::PAGE]) {
                fill(costs, builtin);
            }
            self.is_ready = true;
        }
        let costs = &self.costs[kind];
        let of_context = |context: usize| self.symbols.bits(context, &costs[context]);
        // Each stream ends somewhere in its last byte.
        (0..CONTEXTS).map(of_context).sum::<usize>() / 8 + bits::STREAMS / 2
    }
}

fn fill(costs: &mut Costs, builtin: &Builtin) {
    for (context, costs) in costs.iter_mut().enumerate() {
        for book in 0..BOOKS {
            for (costs, len) in costs.iter_mut().zip(builtin.lens(context, book)) {
                costs[book] = len;
            }
        }
    }
}
