//! Counters in the report: each JSON object contains those of its group.

use ledger::{Counter, Tree, Unit, COUNTERS};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Sums over a tree. An object of the report serializes its own group.
#[derive(Debug)]
pub struct Counts {
    group: &'static str,
    sums: Vec<u64>,
}

impl Counts {
    /// Reads the sums for the object `group`; "" is the report itself.
    pub fn of(tree: &Tree, group: &'static str) -> Self {
        Counts { group, sums: COUNTERS.iter().map(|line| tree.sum(line.counter)).collect() }
    }

    /// Returns a counter's sum, of any group.
    pub fn sum(&self, counter: Counter) -> u64 {
        self.sums[counter as usize]
    }

    pub fn seconds(&self, counter: Counter) -> f64 {
        debug_assert_eq!(counter.described().unit, Unit::Nanoseconds);
        self.sum(counter) as f64 / 1e9
    }

    pub fn ratio(&self, over: Counter, under: Counter) -> f64 {
        ratio(self.sum(over), self.sum(under))
    }
}

/// Returns the quotient of two numbers; 0 for a zero divisor.
pub fn ratio(over: u64, under: u64) -> f64 {
    match under {
        0 => 0.0,
        under => over as f64 / under as f64,
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for line in COUNTERS {
            match (line.key_in(self.group), line.unit) {
                (None, _) => {}
                (Some(key), Unit::Nanoseconds) => map.serialize_entry(key, &self.seconds(line.counter))?,
                (Some(key), _) => map.serialize_entry(key, &self.sum(line.counter))?,
            }
        }
        map.end()
    }
}
