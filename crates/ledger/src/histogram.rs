//! Latencies in shared memory: eight buckets per power of two, so percentiles are off by up to 1/8.

use std::sync::atomic::{AtomicU64, Ordering};

const SUB_BITS: u32 = 3;
const EXPONENTS: usize = 40;
/// Number of buckets: up to 2^40 ns, 18 minutes.
pub const BUCKETS: usize = EXPONENTS << SUB_BITS;

/// The bucket of a latency.
pub fn bucket_of(ns: u64) -> usize {
    let ns = ns.clamp(1 << SUB_BITS, (1 << (EXPONENTS - 1)) - 1);
    let exponent = 63 - ns.leading_zeros();
    let sub = (ns >> (exponent - SUB_BITS)) as usize & ((1 << SUB_BITS) - 1);
    (exponent as usize) << SUB_BITS | sub
}

/// The latencies of a bucket: the lowest, and one past the highest.
pub fn bucket_range_ns(bucket: usize) -> (u64, u64) {
    let (exponent, sub) = ((bucket >> SUB_BITS) as u32, (bucket & ((1 << SUB_BITS) - 1)) as u64);
    let step = 1u64 << exponent.saturating_sub(SUB_BITS);
    let start = (1 << exponent.max(SUB_BITS)) + sub * step;
    (start, start + step)
}

/// Counts of latencies.
#[repr(C)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
}

impl Histogram {
    /// An empty histogram, in the caller's memory.
    pub const fn new() -> Self {
        Histogram { buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }

    /// Counts one latency.
    pub fn record(&self, ns: u64) {
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the counts of another.
    pub fn add(&self, other: &Histogram) {
        for (own, other) in self.buckets.iter().zip(&other.buckets) {
            own.fetch_add(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Sets every count to zero.
    pub fn clear(&self) {
        self.buckets.iter().for_each(|bucket| bucket.store(0, Ordering::Relaxed));
    }

    /// The current counts.
    pub fn counts(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|bucket| self.buckets[bucket].load(Ordering::Relaxed))
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// The latency in ns below which `fraction` of the counts lie, to a bucket's width; 0 without
/// counts.
pub fn percentile_ns(counts: &[u64; BUCKETS], fraction: f64) -> u64 {
    let total = counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
    if total == 0 {
        return 0;
    }
    let wanted = ((total as f64 * fraction).ceil() as u64).clamp(1, total);
    let mut seen = 0u64;
    for (bucket, count) in counts.iter().enumerate() {
        seen = count.saturating_add(seen);
        if seen >= wanted {
            let (start, end) = bucket_range_ns(bucket);
            return (start + end) / 2;
        }
    }
    unreachable!("the counts add up to the total")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_in_its_bucket() {
        for ns in (8..5000).chain([1 << 20, (1 << 30) + 12345, (1 << 39) - 1]) {
            let (start, end) = bucket_range_ns(bucket_of(ns));
            assert!(start <= ns && ns < end, "{ns} in {start}..{end}");
            assert!((end - start) * 8 <= start.max(8), "narrow enough at {ns}");
        }
        assert_eq!(bucket_of(0), bucket_of(8));
        assert!(bucket_of(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles() {
        let mut counts = [0; BUCKETS];
        assert_eq!(percentile_ns(&counts, 0.5), 0);
        counts[bucket_of(1000)] = 98;
        counts[bucket_of(100_000)] = 2;
        assert!((900..1130).contains(&percentile_ns(&counts, 0.5)));
        assert!((90_000..113_000).contains(&percentile_ns(&counts, 0.99)));
    }
}
