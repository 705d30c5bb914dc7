//! The ledgers of one tree, read together.

use std::collections::BTreeMap;

use crate::board::Settings;
use crate::memory::{total, Ledger, SLOTS};
use crate::slot::FORMS_MAX;
use crate::{Counter, Histogram, Slot, BUCKETS};

/// The ledgers of one tree, one per user. A *place* is a slot's number among all of them.
#[derive(Clone, Default)]
pub struct Tree(Vec<Ledger>);

/// A process of a tree.
#[derive(Clone, Copy)]
pub struct Live {
    /// Its place.
    pub place: usize,
    /// The process, by the supervisor's numbers.
    pub pid: u32,
    /// Its figures.
    pub slot: &'static Slot,
}

impl Tree {
    /// Adds a ledger and returns its number.
    pub fn add(&mut self, ledger: Ledger) -> usize {
        self.0.push(ledger);
        self.0.len() - 1
    }

    /// The place of a slot.
    pub fn place(ledger: usize, index: usize) -> usize {
        ledger * SLOTS + index
    }

    /// The ledger and the slot of a place.
    pub fn at(place: usize) -> (usize, usize) {
        (place / SLOTS, place % SLOTS)
    }

    /// The figures of a place.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn slot(&self, place: usize) -> &'static Slot {
        let (ledger, index) = Self::at(place);
        self.0[ledger].slot(index)
    }

    pub(crate) fn ledgers(&self) -> &[Ledger] {
        &self.0
    }

    /// The supervisor's settings.
    pub fn settings(&self) -> Settings {
        self.0.first().map(Ledger::settings).unwrap_or_default()
    }

    /// The live processes.
    pub fn live(&self) -> impl Iterator<Item = Live> + '_ {
        self.0.iter().enumerate().flat_map(|(ledger, one)| {
            one.live().map(move |(index, pid, slot)| Live { place: Self::place(ledger, index), pid, slot })
        })
    }

    fn departed(&self) -> impl Iterator<Item = &'static Slot> + '_ {
        self.0.iter().map(|ledger| &ledger.board().departed)
    }

    fn all(&self) -> impl Iterator<Item = &'static Slot> + '_ {
        self.live().map(|live| live.slot).chain(self.departed())
    }

    /// A counter's sum over all processes, ended ones included.
    pub fn sum(&self, counter: Counter) -> u64 {
        total(self.all().map(|slot| slot.counter(counter)))
    }

    /// Pages stored by all processes, ended ones included, by the name of their form.
    pub fn forms(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (number, name) in self.settings().forms.into_iter().enumerate().take(FORMS_MAX) {
            let sum: &mut u64 = sums.entry(name).or_default();
            *sum = total(self.all().map(|slot| slot.form(number)).chain([*sum]));
        }
        sums
    }

    /// Fault latencies of all processes, ended ones included.
    pub fn fault_counts(&self) -> [u64; BUCKETS] {
        self.counts_of(Slot::faults)
    }

    /// Latencies of faults that read from the swap file, of all processes, ended ones included.
    pub fn disk_fault_counts(&self) -> [u64; BUCKETS] {
        self.counts_of(Slot::disk_faults)
    }

    fn counts_of(&self, histogram: fn(&Slot) -> &Histogram) -> [u64; BUCKETS] {
        let mut sum = [0u64; BUCKETS];
        for slot in self.all() {
            for (sum, count) in sum.iter_mut().zip(histogram(slot).counts()) {
                *sum = count.saturating_add(*sum);
            }
        }
        sum
    }
}
