//! A device's counters and gauges: the figures of zram's `mm_stat`, `bd_stat`, `io_stat` and
//! `stat`, under its names where the meaning is the same, the swap file's, and latencies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ledger::{percentile_ns, Histogram};
use swapfile::SwapFile;

/// Counters of one kind of request. On a cache line of their own, since every queue adds to them.
#[repr(align(128))]
pub(crate) struct Kind {
    pub(crate) requests: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) failed: AtomicU64,
    latencies: Histogram,
}

impl Kind {
    pub(crate) const fn new() -> Self {
        Kind {
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            latencies: Histogram::new(),
        }
    }

    pub(crate) fn count<E>(&self, bytes: u64, request: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let start = Instant::now();
        let result = request();
        self.latencies.record(start.elapsed().as_nanos() as u64);
        self.requests.fetch_add(1, Ordering::Relaxed);
        match &result {
            Ok(()) => self.bytes.fetch_add(bytes, Ordering::Relaxed),
            Err(_) => self.failed.fetch_add(1, Ordering::Relaxed),
        };
        result
    }

    pub(crate) fn latencies(&self) -> Latencies {
        let counts = self.latencies.counts();
        let us = |fraction| percentile_ns(&counts, fraction) as f64 / 1000.0;
        Latencies { p50_us: us(0.5), p99_us: us(0.99), p999_us: us(0.999) }
    }
}

pub(crate) fn now(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// Percentiles of request times, in microseconds, precise to an eighth.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Latencies {
    /// Half of the requests took at most this time.
    pub p50_us: f64,
    /// 99 of 100 requests took at most this time.
    pub p99_us: f64,
    /// 999 of 1000 requests took at most this time.
    pub p999_us: f64,
}

/// A device's figures. Figures read while requests are in progress are not of one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Statistics {
    /// Bytes of the device.
    pub disksize: u64,
    /// Bytes of the blocks in memory, before compression.
    pub orig_data_size: u64,
    /// Bytes of these blocks after compression.
    pub compr_data_size: u64,
    /// Bytes of memory for them, arenas and tables included.
    pub mem_used_total: u64,
    /// Most bytes of memory; 0 without a bound.
    pub mem_limit: u64,
    /// The most memory that was seen in use.
    pub mem_used_max: u64,
    /// Blocks in memory that repeat one word and take no object.
    pub same_pages: u64,
    /// Pages that packing objects again has freed.
    pub pages_compacted: u64,
    /// Blocks in memory that are kept uncompressed, because they do not shrink.
    pub huge_pages: u64,
    /// Blocks in the swap file.
    pub bd_count: u64,
    /// Blocks read from the swap file since the start.
    pub bd_reads: u64,
    /// Blocks written to the swap file since the start.
    pub bd_writes: u64,
    /// Blocks whose content is lost: reading them fails until they are written.
    pub lost_blocks: u64,
    /// Writes refused for want of room.
    pub refused_writes: u64,
    /// Reads.
    pub read_ios: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Writes, zeroing included.
    pub write_ios: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Writes that failed.
    pub failed_writes: u64,
    /// Discards.
    pub discard_ios: u64,
    /// Bytes of discard requests.
    pub discard_bytes: u64,
    /// Flushes.
    pub flush_ios: u64,
    /// Requests beyond the device's end.
    pub invalid_io: u64,
    /// How long reads took.
    pub read_latency: Latencies,
    /// How long writes took.
    pub write_latency: Latencies,
    /// How long discards took.
    pub discard_latency: Latencies,
    /// The swap file's figures, if there is one.
    pub swap: Option<SwapStatistics>,
}

/// A swap file's figures.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SwapStatistics {
    /// Bytes that the file may take on the disk.
    pub swap_limit: u64,
    /// Bytes of segments in use.
    pub swap_used: u64,
    /// Bytes of `swap_used` whose blocks still exist.
    pub swap_live: u64,
    /// Bytes of objects written out, in compressed form.
    pub swap_object_bytes: u64,
    /// Bytes written to the disk, cleaning included.
    pub swap_write_bytes: u64,
    /// Bytes of `swap_write_bytes` that cleaning wrote.
    pub swap_clean_bytes: u64,
    /// Bytes written for each byte of objects.
    pub swap_write_amplification: f64,
    /// Bytes read from the disk, cleaning included.
    pub swap_read_bytes: u64,
    /// Reads of one or more blocks.
    pub swap_reads: u64,
    /// Half of the reads took at most this time, in microseconds, to a factor of two.
    pub swap_read_p50_us: u64,
    /// 99 of 100 reads took at most this time, in microseconds.
    pub swap_read_p99_us: u64,
    /// Failed writes; their blocks stayed in memory.
    pub swap_failed_writes: u64,
    /// Reads that failed or returned other bytes than were written.
    pub swap_failed_reads: u64,
    /// Writes that found no room.
    pub swap_no_space: u64,
}

impl SwapStatistics {
    pub(crate) fn of(file: &SwapFile) -> Self {
        let counters = file.counters();
        SwapStatistics {
            swap_limit: file.size_bytes(),
            swap_used: counters.used_bytes,
            swap_live: counters.live_bytes,
            swap_object_bytes: counters.object_bytes,
            swap_write_bytes: counters.bytes_written,
            swap_clean_bytes: counters.bytes_cleaned,
            swap_write_amplification: counters.write_amplification_milli() as f64 / 1000.0,
            swap_read_bytes: counters.bytes_read,
            swap_reads: counters.loads,
            swap_read_p50_us: counters.load_latency_us(50),
            swap_read_p99_us: counters.load_latency_us(99),
            swap_failed_writes: counters.writes_failed,
            swap_failed_reads: counters.reads_failed,
            swap_no_space: counters.no_space,
        }
    }

    fn each(&self, mut line: impl FnMut(&str, &dyn std::fmt::Display)) {
        for (name, value) in [
            ("swap_limit", self.swap_limit),
            ("swap_used", self.swap_used),
            ("swap_live", self.swap_live),
            ("swap_object_bytes", self.swap_object_bytes),
            ("swap_write_bytes", self.swap_write_bytes),
            ("swap_clean_bytes", self.swap_clean_bytes),
            ("swap_read_bytes", self.swap_read_bytes),
            ("swap_reads", self.swap_reads),
            ("swap_read_p50_us", self.swap_read_p50_us),
            ("swap_read_p99_us", self.swap_read_p99_us),
            ("swap_failed_writes", self.swap_failed_writes),
            ("swap_failed_reads", self.swap_failed_reads),
            ("swap_no_space", self.swap_no_space),
        ] {
            line(name, &value);
        }
        line("swap_write_amplification", &self.swap_write_amplification);
    }
}

impl Statistics {
    /// The figures as lines of `name: value`.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        self.each(|name, value| text.push_str(&format!("{name}: {value}\n")));
        text
    }

    /// The figures as one JSON object.
    pub fn json(&self) -> String {
        let mut text = String::from("{");
        self.each(|name, value| {
            let comma = if text.len() > 1 { "," } else { "" };
            text.push_str(&format!("{comma}\"{name}\":{value}"));
        });
        text + "}\n"
    }

    fn each(&self, mut line: impl FnMut(&str, &dyn std::fmt::Display)) {
        for (name, value) in [
            ("disksize", self.disksize),
            ("orig_data_size", self.orig_data_size),
            ("compr_data_size", self.compr_data_size),
            ("mem_used_total", self.mem_used_total),
            ("mem_limit", self.mem_limit),
            ("mem_used_max", self.mem_used_max),
            ("same_pages", self.same_pages),
            ("pages_compacted", self.pages_compacted),
            ("huge_pages", self.huge_pages),
            ("bd_count", self.bd_count),
            ("bd_reads", self.bd_reads),
            ("bd_writes", self.bd_writes),
            ("lost_blocks", self.lost_blocks),
            ("refused_writes", self.refused_writes),
            ("read_ios", self.read_ios),
            ("read_bytes", self.read_bytes),
            ("failed_reads", self.failed_reads),
            ("write_ios", self.write_ios),
            ("write_bytes", self.write_bytes),
            ("failed_writes", self.failed_writes),
            ("discard_ios", self.discard_ios),
            ("discard_bytes", self.discard_bytes),
            ("flush_ios", self.flush_ios),
            ("invalid_io", self.invalid_io),
        ] {
            line(name, &value);
        }
        for (kind, latencies) in
            [("read", self.read_latency), ("write", self.write_latency), ("discard", self.discard_latency)]
        {
            line(&format!("{kind}_p50_us"), &latencies.p50_us);
            line(&format!("{kind}_p99_us"), &latencies.p99_us);
            line(&format!("{kind}_p999_us"), &latencies.p999_us);
        }
        if let Some(swap) = &self.swap {
            swap.each(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted() {
        let kind = Kind::new();
        kind.count(10, || Ok::<_, ()>(())).unwrap();
        kind.count(20, || Err(())).unwrap_err();
        assert_eq!([&kind.requests, &kind.bytes, &kind.failed].map(now), [2, 10, 1]);
        assert!(kind.latencies().p999_us < 1e6);
    }

    #[test]
    fn figures_are_lines_and_json() {
        let statistics = Statistics { disksize: 7, lost_blocks: 1, ..Statistics::default() };
        assert!(statistics.lines().starts_with("disksize: 7\norig_data_size: 0\n"));
        let json = statistics.json();
        assert!(json.starts_with("{\"disksize\":7,\"orig_data_size\":0,"), "{json}");
        assert!(json.ends_with("\"discard_p999_us\":0}\n"), "{json}");
        let swap =
            SwapStatistics { swap_used: 5, swap_write_amplification: 1.25, ..SwapStatistics::default() };
        let json = Statistics { swap: Some(swap), ..statistics }.json();
        assert!(json.contains(",\"swap_used\":5,"), "{json}");
        assert!(json.ends_with(",\"swap_write_amplification\":1.25}\n"), "{json}");
    }
}
