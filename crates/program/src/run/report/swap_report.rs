//! The report of a run's swap file.

use ledger::{Counter, Tree};
use serde::Serialize;

use crate::run::report::counts::Counts;
use crate::run::report::Latency;
use crate::run::supervisor::Supervisor;
use crate::size::Size;

/// The disk is the bottleneck if faults wait for it during this share of the run.
const BOTTLENECK_SHARE: f64 = 0.3;

/// The swap file's part of the report, as `docs/user/report.md` describes it.
#[derive(Debug, Serialize)]
pub struct SwapReport {
    limit_bytes: u64,
    /// Whether data bypassed the page cache.
    direct: bool,
    /// Pages in the file at its last use, and at their maximum.
    pages: u64,
    pages_peak: u64,
    /// Bytes of needed objects then, of unneeded ones, and of all segments at their maximum.
    live_bytes: u64,
    dead_bytes: u64,
    used_peak_bytes: u64,
    /// Counters of the swap file, named in `ledger::COUNTERS`.
    #[serde(flatten)]
    counts: Counts,
    /// Written bytes by the bytes of the compressed objects.
    write_amplification: f64,
    disk_fault_latency_us: Latency,
    read_us_mean: f64,
    /// Whether waiting for the disk dominated the faults' time.
    bottleneck: bool,
}

impl SwapReport {
    pub fn of(tree: &Tree, supervisor: &Supervisor, elapsed_seconds: f64) -> Option<Self> {
        let swap = &supervisor.books.swap()?.shared;
        let peaks = &supervisor.figures;
        let counts = Counts::of(tree, "swap");
        let waited = counts.seconds(Counter::SwapWaitNs) + counts.seconds(Counter::DiskReadNs);
        let mean_us = counts.ratio(Counter::DiskFaultNs, Counter::DiskFaults) / 1000.0;
        Some(SwapReport {
            limit_bytes: swap.size_bytes(),
            direct: swap.disk().is_direct(),
            pages: peaks.disk_pages,
            pages_peak: peaks.disk_pages_peak,
            live_bytes: peaks.disk_live_bytes,
            dead_bytes: peaks.disk_used_bytes.saturating_sub(peaks.disk_live_bytes),
            used_peak_bytes: peaks.disk_used_peak_bytes,
            write_amplification: counts.ratio(Counter::SwapBytesWritten, Counter::SwapObjectBytes),
            disk_fault_latency_us: Latency::of(&tree.disk_fault_counts(), mean_us),
            read_us_mean: counts.ratio(Counter::DiskReadNs, Counter::DiskReads) / 1000.0,
            counts,
            bottleneck: waited > elapsed_seconds * BOTTLENECK_SHARE,
        })
    }

    pub fn was_full(&self) -> bool {
        self.counts.sum(Counter::SwapNoSpace) > 0
    }

    pub fn summarise(&self, written_pages: u64) {
        if self.counts.sum(Counter::SwapBytesWritten) == 0 {
            return;
        }
        eprintln!(
            "uzswap: {written_pages} pages to disk in {}, {} back; {} faults from disk, p50 {:.0} us, p99 {:.0} us; {} of {} used at most",
            Size::from(self.counts.sum(Counter::SwapBytesWritten)),
            self.counts.sum(Counter::DiskPagesIn),
            self.counts.sum(Counter::DiskFaults),
            self.disk_fault_latency_us.p50,
            self.disk_fault_latency_us.p99,
            Size::from(self.used_peak_bytes),
            Size::from(self.limit_bytes),
        );
        if self.bottleneck {
            eprintln!(
                "uzswap: the disk was the bottleneck: faults waited {:.1} s for it to write, reading took {:.1} s",
                self.counts.seconds(Counter::SwapWaitNs),
                self.counts.seconds(Counter::DiskReadNs),
            );
        }
    }
}
