//! A context's memory for devices to read and write.

use acomp::MAX_BATCH;
use idxd::aecs::{CompressAecs, Histogram};
use idxd::Completion;

/// The state of a unit with codes of its own.
pub(crate) struct Tables {
    pub histogram: Histogram,
    pub aecs: [CompressAecs; 2],
}

/// A context's records, tables and bounce buffers. Allocated once.
pub(crate) struct Memory {
    /// One per unit.
    pub completions: Box<[Completion; MAX_BATCH]>,
    /// One per lane.
    pub drains: Box<[Completion; MAX_BATCH]>,
    /// One per unit; empty if only fixed codes are used.
    pub tables: Box<[Tables]>,
    /// One per unit, for sources that are not in one piece. Not resident until used.
    bounce: Box<[u8]>,
    unit_size: usize,
}

impl Memory {
    /// For units of up to `unit_size` bytes.
    pub fn new(unit_size: usize, has_tables: bool) -> Self {
        let tables = || Tables { histogram: Histogram::ZERO, aecs: [CompressAecs::ZERO; 2] };
        let count = if has_tables { MAX_BATCH } else { 0 };
        Memory {
            completions: Box::new([const { Completion::new() }; MAX_BATCH]),
            drains: Box::new([const { Completion::new() }; MAX_BATCH]),
            tables: (0..count).map(|_| tables()).collect(),
            bounce: vec![0; unit_size * MAX_BATCH].into_boxed_slice(),
            unit_size,
        }
    }

    pub fn bounce(&mut self, unit: usize) -> &mut [u8] {
        &mut self.bounce[unit * self.unit_size..][..self.unit_size]
    }
}
