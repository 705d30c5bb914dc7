//! Trains a set on sample pages: k-means over histograms, with the coded length as distance.

use std::mem::MaybeUninit;

use super::books::{Lengths, Set, BOOKS, CONTEXTS};
use super::huffman;
use super::Coder;
use crate::zeroed::zeroed;

/// Rounds of assignment and recomputation for each context.
pub const TRAINING_ROUNDS: usize = 8;
/// Weight of a counted symbol relative to the floor that gives every symbol a code.
const WEIGHT: u64 = 16;

type Histogram = [u16; 256];

/// Collects samples, then trains in steps of one round of one context, which fit between requests.
/// Allocates all memory (3 KiB a sample) on creation.
pub struct Trainer {
    samples: Vec<[Histogram; CONTEXTS]>,
    capacity: usize,
    work: Box<Work>,
    step: usize,
}

struct Work {
    lengths: Lengths,
    sums: [[u64; 256]; BOOKS],
}

impl Trainer {
    /// Allocates memory for `capacity` sample pages.
    ///
    /// # Panics
    /// If `capacity` is less than the number of codebooks.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity >= BOOKS, "{capacity} samples for {BOOKS} codebooks");
        Trainer {
            samples: Vec::with_capacity(capacity),
            capacity,
            // SAFETY: all fields are integers, for which zero bytes are valid; the first round of a
            // context writes all of its lengths.
            work: unsafe { zeroed::<Work>().assume_init() },
            step: 0,
        }
    }

    /// Returns whether the samples are complete, so that [`Trainer::step`] makes progress.
    pub fn is_full(&self) -> bool {
        self.samples.len() == self.capacity
    }

    /// Adds the last page that `coder` encoded, unless the samples are complete.
    pub fn add(&mut self, coder: &Coder) {
        if self.is_full() {
            return;
        }
        let mut sample = [[0u16; 256]; CONTEXTS];
        for (context, histogram) in sample.iter_mut().enumerate() {
            for &symbol in coder.symbols.of(context) {
                histogram[usize::from(symbol)] += 1;
            }
        }
        self.samples.push(sample);
    }

    /// Forgets the samples and the training's result.
    pub fn restart(&mut self) {
        self.samples.clear();
        self.step = 0;
    }

    /// Returns the memory of absent samples, which the owner may give back while none are
    /// collected: its content does not matter.
    pub fn unused(&mut self) -> &mut [MaybeUninit<u8>] {
        let rest = self.samples.spare_capacity_mut();
        let bytes = std::mem::size_of_val(rest);
        // SAFETY: the same memory as bytes, which may be uninitialised and need no alignment.
        unsafe { std::slice::from_raw_parts_mut(rest.as_mut_ptr().cast(), bytes) }
    }

    /// Runs a round for one context, if the samples are complete. Returns whether all are done.
    pub fn step(&mut self) -> bool {
        if !self.is_full() {
            return false;
        }
        let (context, round) = (self.step / TRAINING_ROUNDS, self.step % TRAINING_ROUNDS);
        if context < CONTEXTS {
            self.round(context, round);
            self.step += 1;
        }
        self.step == CONTEXTS * TRAINING_ROUNDS
    }

    /// Returns the trained lengths, after [`Trainer::step`] has returned true.
    pub fn lengths(&self) -> &Lengths {
        &self.work.lengths
    }

    /// Returns the bits that `set` would spend on the samples' symbols.
    pub fn bits(&self, set: &Set) -> u64 {
        let mut total = 0;
        for context in 0..CONTEXTS {
            for sample in &self.samples {
                let bits = bits(&sample[context], set.costs(context));
                total += u64::from(bits.into_iter().min().expect("there are codebooks"));
            }
        }
        total
    }

    fn round(&mut self, context: usize, round: usize) {
        let Work { lengths, sums } = &mut *self.work;
        sums.as_flattened_mut().fill(0);
        // First deals out the samples in blocks, because neighbours are alike.
        let block = self.samples.len().div_ceil(BOOKS);
        let lens = &mut lengths.0[context];
        let mut costs = [[0u8; BOOKS]; 256];
        for (symbol, costs) in costs.iter_mut().enumerate() {
            *costs = std::array::from_fn(|book| lens[book][symbol]);
        }
        for (number, sample) in self.samples.iter().enumerate() {
            let histogram = &sample[context];
            let book = if round == 0 {
                number / block
            } else {
                let bits = bits(histogram, &costs);
                (0..BOOKS).min_by_key(|&book| bits[book]).expect("there are codebooks")
            };
            for (sum, count) in sums[book].iter_mut().zip(histogram) {
                *sum += u64::from(*count);
            }
        }
        for (lens, sums) in lens.iter_mut().zip(sums.iter()) {
            if round == 0 || sums.iter().any(|&sum| sum != 0) {
                *lens = huffman::lengths(&sums.map(|sum| sum * WEIGHT + 1));
            }
        }
    }
}

/// Returns the bits of a histogram's symbols in each codebook.
fn bits(histogram: &Histogram, costs: &[[u8; BOOKS]; 256]) -> [u32; BOOKS] {
    let mut bits = [0u32; BOOKS];
    for (count, costs) in histogram.iter().zip(costs) {
        if *count != 0 {
            for (bits, cost) in bits.iter_mut().zip(costs) {
                *bits += u32::from(*count) * u32::from(*cost);
            }
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_samples_is_unused_without_them() {
        let mut trainer = Trainer::new(BOOKS);
        let all = BOOKS * CONTEXTS * 256 * size_of::<u16>();
        assert_eq!(trainer.unused().len(), all);
        (0..BOOKS).for_each(|_| trainer.add(&Coder::new()));
        assert!(trainer.is_full() && trainer.unused().is_empty());
        trainer.restart();
        assert_eq!(trainer.unused().len(), all);
    }
}
