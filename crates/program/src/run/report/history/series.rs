//! Figures over time in bounded memory: when there are too many points, neighbours are merged.

use ledger::{percentile_ns, Counter, Slot, Tree, BUCKETS};
use serde::Serialize;
use serde_json::value::RawValue;

/// A page shows no more points than its width. With a histogram each they take at most 400 KiB.
const POINTS_MAX: usize = 256;
/// The first points' width. It doubles with each merge: after an hour it is 20 s.
const WIDTH_SECONDS: f64 = 0.02;

/// Values that rise and fall. An interval keeps the maximum of each.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Anonymous resident bytes, pools and staging included.
    used: u64,
    wanted: u64,
    pool: u64,
    staged: u64,
}

impl Levels {
    /// Starts a tree's levels; processes are added later.
    pub fn new(used: u64) -> Self {
        Levels { used, ..Levels::default() }
    }

    /// Adds a process's levels except `used`, which is the tree's.
    pub fn add(&mut self, slot: &Slot) {
        self.wanted = self.wanted.saturating_add(slot.wanted_bytes());
        self.pool = self.pool.saturating_add(slot.pool_bytes());
        self.staged = self.staged.saturating_add(slot.staged_bytes());
    }

    fn most(&mut self, other: &Levels) {
        self.used = self.used.max(other.used);
        self.wanted = self.wanted.max(other.wanted);
        self.pool = self.pool.max(other.pool);
        self.staged = self.staged.max(other.staged);
    }
}

const COUNTED: [Counter; 4] = [Counter::ZswpOut, Counter::ZswpIn, Counter::Faults, Counter::FaultNs];

#[derive(Debug, Default, Clone)]
struct Point {
    /// Its end in seconds since the start.
    end: f64,
    levels: Levels,
    /// Growth of [`COUNTED`] in the interval.
    counts: [u64; COUNTED.len()],
    /// Latencies of the interval's faults; none without faults.
    latencies: Option<Box<[u32; BUCKETS]>>,
}

impl Point {
    fn join(&mut self, next: Point) {
        self.end = next.end;
        self.levels.most(&next.levels);
        for (count, more) in self.counts.iter_mut().zip(next.counts) {
            *count = count.saturating_add(more);
        }
        match (&mut self.latencies, next.latencies) {
            (Some(own), Some(more)) => {
                own.iter_mut().zip(&*more).for_each(|(own, more)| *own = own.saturating_add(*more));
            }
            (own @ None, more) => *own = more,
            (Some(_), None) => {}
        }
    }

    fn percentile_us(&self, fraction: f64) -> Option<f64> {
        let counts = self.latencies.as_ref()?;
        Some(percentile_ns(&std::array::from_fn(|bucket| counts[bucket].into()), fraction) as f64 / 1000.0)
    }
}

pub struct Series {
    width: f64,
    points: Vec<Point>,
    open: Levels,
    counts: [u64; COUNTED.len()],
    latencies: Box<[u64; BUCKETS]>,
}

impl Series {
    pub fn new() -> Self {
        Series {
            width: WIDTH_SECONDS,
            points: Vec::new(),
            open: Levels::default(),
            counts: [0; COUNTED.len()],
            latencies: Box::new([0; BUCKETS]),
        }
    }

    /// Notes the levels at `now`, in seconds since the start, and ends the interval if it is over.
    pub fn sample(&mut self, levels: &Levels, tree: &Tree, now: f64) {
        self.open.most(levels);
        let start = self.points.last().map_or(0.0, |point| point.end);
        if now - start >= self.width {
            self.close(tree, now);
        }
    }

    /// Ends the last interval. A short one is merged into the one before: its rates would be noise.
    pub fn finish(&mut self, tree: &Tree, now: f64) {
        let start = self.points.last().map_or(0.0, |point| point.end);
        self.close(tree, now);
        if now - start < self.width / 2.0 && self.points.len() > 1 {
            let short = self.points.pop().expect("there are two");
            self.points.last_mut().expect("there are two").join(short);
        }
    }

    fn close(&mut self, tree: &Tree, now: f64) {
        let counts = COUNTED.map(|counter| tree.sum(counter));
        let grown = std::array::from_fn(|at| counts[at].saturating_sub(self.counts[at]));
        let mut latencies = None;
        // Summing the histograms of many processes is slow.
        if counts != self.counts {
            let sums = tree.fault_counts();
            let new: [u32; BUCKETS] = std::array::from_fn(|bucket| {
                u32::try_from(sums[bucket].saturating_sub(self.latencies[bucket])).unwrap_or(u32::MAX)
            });
            *self.latencies = sums;
            latencies = new.iter().any(|count| *count > 0).then(|| Box::new(new));
        }
        self.counts = counts;
        self.points.push(Point {
            end: now,
            levels: std::mem::take(&mut self.open),
            counts: grown,
            latencies,
        });
        if self.points.len() >= POINTS_MAX {
            self.halve();
        }
    }

    fn halve(&mut self) {
        let mut pairs = std::mem::take(&mut self.points).into_iter();
        while let Some(mut point) = pairs.next() {
            if let Some(next) = pairs.next() {
                point.join(next);
            }
            self.points.push(point);
        }
        self.width *= 2.0;
    }

    pub fn columns(&self) -> Columns {
        let level = |of: fn(&Levels) -> u64| column(self.points.iter().map(|point| of(&point.levels)));
        let count = |at: usize| column(self.points.iter().map(|point| point.counts[at]));
        let us = |fraction| column(self.points.iter().map(|point| point.percentile_us(fraction).map(short)));
        Columns {
            end_seconds: column(self.points.iter().map(|point| short(point.end))),
            ram_used_bytes: level(|levels| levels.used),
            ram_wanted_bytes: level(|levels| levels.wanted),
            pool_total_size: level(|levels| levels.pool),
            staged_bytes: level(|levels| levels.staged),
            zswpout: count(0),
            zswpin: count(1),
            faults: count(2),
            fault_seconds: column(self.points.iter().map(|point| point.counts[3] as f64 / 1e9)),
            fault_p50_us: us(0.5),
            fault_p99_us: us(0.99),
        }
    }
}

/// Figures over time: each column has one entry per interval and is one line in the report.
#[derive(Debug, Serialize)]
pub struct Columns {
    /// End of the interval, since the start. It begins at the end of the one before.
    end_seconds: Box<RawValue>,
    /// Maximum in the interval, as in the next three.
    ram_used_bytes: Box<RawValue>,
    ram_wanted_bytes: Box<RawValue>,
    pool_total_size: Box<RawValue>,
    staged_bytes: Box<RawValue>,
    /// Number in the interval, as in the next two.
    zswpout: Box<RawValue>,
    zswpin: Box<RawValue>,
    faults: Box<RawValue>,
    /// Time that these faults took.
    fault_seconds: Box<RawValue>,
    /// Latencies of the interval's faults; null without faults.
    fault_p50_us: Box<RawValue>,
    fault_p99_us: Box<RawValue>,
}

fn column<T: Serialize>(values: impl Iterator<Item = T>) -> Box<RawValue> {
    serde_json::value::to_raw_value(&values.collect::<Vec<T>>()).expect("numbers are JSON")
}

/// Rounds to a thousandth.
fn short(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::history::tests::ledger;
    use serde_json::Value;

    fn values(columns: &Columns) -> Value {
        serde_json::from_str(&serde_json::to_string(columns).unwrap()).unwrap()
    }

    fn numbers(value: &Value) -> Vec<f64> {
        value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    }

    #[test]
    fn nothing_is_lost_when_the_resolution_is_halved() {
        let ((mut ledger, tree), mut series) = (ledger(), Series::new());
        let slot = tree.slot(ledger.claim(7).unwrap());
        for tick in 0..20_000u64 {
            slot.add(Counter::ZswpOut, 3);
            slot.add(Counter::Faults, 1);
            slot.faults().record(if tick == 11_111 { 50_000_000 } else { 10_000 });
            let used = if tick == 12_345 { 999 } else { 100 };
            series.sample(&Levels::new(used), &tree, tick as f64 * 0.01);
            assert!(series.points.len() < POINTS_MAX);
        }
        series.finish(&tree, 200.0);
        let columns = values(&series.columns());
        let ends = numbers(&columns["end_seconds"]);
        assert!(ends.len() > POINTS_MAX / 2 - 2 && ends.windows(2).all(|two| two[0] < two[1]), "{ends:?}");
        assert_eq!(ends.last(), Some(&200.0));
        assert_eq!(numbers(&columns["zswpout"]).iter().sum::<f64>(), 60_000.0);
        let used = numbers(&columns["ram_used_bytes"]);
        let peak = used.iter().position(|used| *used == 999.0).expect("the one peak is kept");
        assert!(ends[peak] >= 123.45 && (peak == 0 || ends[peak - 1] <= 123.45));
        let p99 = numbers(&columns["fault_p99_us"]);
        let counts = &series.points[ends.iter().position(|end| *end >= 111.11).unwrap()].latencies;
        // The slow one is where it was.
        assert_eq!(counts.as_ref().unwrap()[ledger::bucket_of(50_000_000)], 1);
        assert!(p99.iter().all(|us| *us < 60_000.0));
    }

    #[test]
    fn intervals_without_faults_have_no_latency() {
        let ((mut ledger, tree), mut series) = (ledger(), Series::new());
        series.sample(&Levels::default(), &tree, 1.0);
        tree.slot(ledger.claim(7).unwrap()).faults().record(1000);
        tree.slot(0).add(Counter::Faults, 1);
        series.finish(&tree, 2.0);
        let columns = values(&series.columns());
        assert_eq!(columns["fault_p50_us"][0], Value::Null);
        assert!(columns["fault_p50_us"][1].as_f64().unwrap() > 0.9);
    }
}
