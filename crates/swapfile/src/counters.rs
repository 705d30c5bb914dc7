//! Counters of a swap file, and its current content.

use std::time::Duration;

/// Buckets of latencies: bucket `n` counts those below 2^n microseconds, the last one all above.
pub const LATENCY_BUCKETS: usize = 24;

/// Events so far, and the current content of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Compressed bytes of objects submitted for writing.
    pub object_bytes: u64,
    /// Bytes written to the file.
    pub bytes_written: u64,
    /// Bytes written by cleaning, part of `bytes_written`.
    pub bytes_cleaned: u64,
    /// Bytes read from the file.
    pub bytes_read: u64,
    /// Writes, one per pack.
    pub writes: u64,
    /// Reads for loads: one or more per request.
    pub reads: u64,
    /// Requests to read objects.
    pub loads: u64,
    /// Objects read for loads.
    pub objects_read: u64,
    /// Total nanoseconds of loads, from request to objects.
    pub load_ns: u64,
    /// Total nanoseconds of writes, from submission to completion.
    pub write_ns: u64,
    /// Loads by latency.
    pub load_latency: [u64; LATENCY_BUCKETS],
    /// Segments cleaned.
    pub segments_cleaned: u64,
    /// Objects that cleaning moved.
    pub objects_moved: u64,
    /// Nanoseconds spent cleaning.
    pub clean_ns: u64,
    /// Writes that failed and were retried elsewhere.
    pub writes_retried: u64,
    /// Writes that failed for good.
    pub writes_failed: u64,
    /// Writes that found no room.
    pub no_space: u64,
    /// Segments out of use because writing there failed.
    pub segments_retired: u64,
    /// Reads that failed, or found damaged bytes.
    pub reads_failed: u64,
    /// Bytes of live objects, with their seals.
    pub live_bytes: u64,
    /// Bytes of all segments in use by all processes: live, dead, and unwritten.
    pub used_bytes: u64,
    /// Bytes of free segments that still have their blocks.
    pub kept_bytes: u64,
    /// Bytes of memory: tables and buffers.
    pub memory_bytes: u64,
}

impl Counters {
    /// Bytes written for each submitted byte of objects, in thousandths.
    pub fn write_amplification_milli(&self) -> u64 {
        self.bytes_written.saturating_mul(1000).checked_div(self.object_bytes).unwrap_or(0)
    }

    /// The time within which `percent` of all loads completed, to a factor of two.
    pub fn load_latency_us(&self, percent: u64) -> u64 {
        let all: u64 = self.load_latency.iter().sum();
        let mut seen = 0;
        for (bucket, count) in self.load_latency.iter().enumerate() {
            seen += count;
            if all > 0 && seen * 100 >= all * percent {
                return 1 << bucket;
            }
        }
        0
    }

    pub(crate) fn loaded(&mut self, objects: usize, took: Duration) {
        self.loads += 1;
        self.objects_read += objects as u64;
        self.load_ns += took.as_nanos() as u64;
        let bucket = (64 - (took.as_micros() as u64).leading_zeros()) as usize;
        self.load_latency[bucket.min(LATENCY_BUCKETS - 1)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_told_by_percent() {
        let mut counters = Counters::default();
        (0..90).for_each(|_| counters.loaded(1, Duration::from_micros(100)));
        (0..10).for_each(|_| counters.loaded(1, Duration::from_secs(100)));
        assert_eq!((counters.load_latency_us(50), counters.load_latency_us(90)), (128, 128));
        assert_eq!(counters.load_latency_us(99), 1 << 23);
        assert_eq!(Counters::default().load_latency_us(50), 0);
    }
}
