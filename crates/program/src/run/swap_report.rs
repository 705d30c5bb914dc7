//! What a run's swap file came to.

use ledger::{Counter, Tree};
use serde::Serialize;

use super::report::Latency;
use super::supervisor::Supervisor;
use crate::size::Size;

/// Of the time of a run, so much spent by faults waiting for the disk makes it the bottleneck.
const BOTTLENECK_SHARE: f64 = 0.3;

/// The swap file's part of the report, as `docs/report.md` describes it.
#[derive(Debug, Serialize)]
pub struct SwapReport {
    limit_bytes: u64,
    /// Whether data went past the page cache.
    direct: bool,
    /// Pages in the file when it was last used, and when they were most.
    pages: u64,
    pages_peak: u64,
    /// Bytes of the objects that were needed then, of those that were not, and of all segments at most.
    live_bytes: u64,
    dead_bytes: u64,
    used_peak_bytes: u64,
    bytes_written: u64,
    bytes_read: u64,
    /// Bytes written by those of the objects, as they were compressed.
    write_amplification: f64,
    /// Faults that had to read from the file, the pages that came in with them, and how long they took.
    disk_faults: u64,
    disk_pages_in: u64,
    disk_fault_latency_us: Latency,
    /// Requests to read, and the time of one on average.
    reads: u64,
    read_us_mean: f64,
    segments_cleaned: u64,
    bytes_cleaned: u64,
    clean_seconds: f64,
    no_space: u64,
    writes_failed: u64,
    reads_failed: u64,
    /// Time that faults waited until others' pages were written.
    write_wait_seconds: f64,
    /// Whether faults waited for the disk most of all.
    bottleneck: bool,
}

impl SwapReport {
    /// The figures of a tree that had a swap file.
    pub fn of(tree: &Tree, supervisor: &Supervisor, elapsed_seconds: f64) -> Option<Self> {
        let swap = supervisor.swap()?;
        let peaks = &supervisor.figures;
        let sum = |counter| tree.sum(counter);
        let seconds = |counter| sum(counter) as f64 / 1e9;
        let ratio = |over: u64, under: u64| if under == 0 { 0.0 } else { over as f64 / under as f64 };
        let waited = seconds(Counter::SwapWaitNs) + seconds(Counter::DiskReadNs);
        Some(SwapReport {
            limit_bytes: swap.size_bytes(),
            direct: swap.is_direct(),
            pages: peaks.disk_pages,
            pages_peak: peaks.disk_pages_peak,
            live_bytes: peaks.disk_live_bytes,
            dead_bytes: peaks.disk_used_bytes.saturating_sub(peaks.disk_live_bytes),
            used_peak_bytes: peaks.disk_used_peak_bytes,
            bytes_written: sum(Counter::SwapBytesWritten),
            bytes_read: sum(Counter::SwapBytesRead),
            write_amplification: ratio(sum(Counter::SwapBytesWritten), sum(Counter::SwapObjectBytes)),
            disk_faults: sum(Counter::DiskFaults),
            disk_pages_in: sum(Counter::DiskPagesIn),
            disk_fault_latency_us: Latency::of(
                &tree.disk_fault_counts(),
                ratio(sum(Counter::DiskFaultNs), sum(Counter::DiskFaults)) / 1000.0,
            ),
            reads: sum(Counter::DiskReads),
            read_us_mean: ratio(sum(Counter::DiskReadNs), sum(Counter::DiskReads)) / 1000.0,
            segments_cleaned: sum(Counter::SwapSegmentsCleaned),
            bytes_cleaned: sum(Counter::SwapBytesCleaned),
            clean_seconds: seconds(Counter::SwapCleanNs),
            no_space: sum(Counter::SwapNoSpace),
            writes_failed: sum(Counter::SwapWritesFailed),
            reads_failed: sum(Counter::SwapReadsFailed),
            write_wait_seconds: seconds(Counter::SwapWaitNs),
            bottleneck: waited > elapsed_seconds * BOTTLENECK_SHARE,
        })
    }

    /// Whether anything went there.
    fn is_used(&self) -> bool {
        self.bytes_written > 0
    }

    /// Whether there was no room for more at some time.
    pub fn was_full(&self) -> bool {
        self.no_space > 0
    }

    /// A line or two on stderr.
    pub fn summarise(&self, written_pages: u64) {
        if !self.is_used() {
            return;
        }
        eprintln!(
            "uzswap: {written_pages} pages to disk in {}, {} back; {} faults from disk, p50 {:.0} us, p99 {:.0} us; {} of {} used at most",
            Size::from(self.bytes_written),
            self.disk_pages_in,
            self.disk_faults,
            self.disk_fault_latency_us.p50,
            self.disk_fault_latency_us.p99,
            Size::from(self.used_peak_bytes),
            Size::from(self.limit_bytes),
        );
        if self.bottleneck {
            eprintln!(
                "uzswap: the disk was the bottleneck: faults waited {:.1} s for it to write, reading took {:.1} s",
                self.write_wait_seconds,
                self.read_us_mean * self.reads as f64 / 1e6,
            );
        }
    }
}
