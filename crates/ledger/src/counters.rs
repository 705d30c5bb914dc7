//! The table of counters. To add a counter, add one line here and call
//! `accounts.add(Counter::…, by)` where the event happens. The ledger's field, the report's key,
//! the Prometheus line and the row in `docs/user/report.md` follow from the line.

/// The unit of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Pages of 4096 bytes.
    Pages,
    /// Events.
    Times,
    /// Bytes.
    Bytes,
    /// Nanoseconds, reported in seconds.
    Nanoseconds,
}

impl Unit {
    /// Its name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Pages => "pages",
            Unit::Times => "times",
            Unit::Bytes => "bytes",
            Unit::Nanoseconds => "seconds",
        }
    }
}

/// A line of the table.
#[derive(Debug, Clone, Copy)]
pub struct Described {
    /// The counter.
    pub counter: Counter,
    /// Its unit.
    pub unit: Unit,
    /// Its key in the report. A part before a dot names the object that contains it.
    pub report: &'static str,
    /// Its name for Prometheus.
    pub prometheus: &'static str,
    /// Whether the key is the kernel's name of a counter with the same meaning.
    pub is_kernels: bool,
    sentence: &'static str,
}

impl Described {
    /// Its meaning, as one sentence of Markdown.
    pub fn sentence(&self) -> &'static str {
        self.sentence.trim()
    }

    /// Its key in the report's object `group` ("" for the report itself); `None` in other objects.
    pub fn key_in(&self, group: &str) -> Option<&'static str> {
        let (own, key) = self.report.rsplit_once('.').unwrap_or(("", self.report));
        (own == group).then_some(key)
    }
}

macro_rules! counters {
    ($(
        $(#[doc = $sentence:literal])+
        $name:ident: $unit:ident, report $report:literal, prometheus $prometheus:literal $(, $kernel:ident)?;
    )*) => {
        /// The counters of a process. Reports use the kernel's names where the meaning matches.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter {
            $($(#[doc = $sentence])+ $name,)*
        }

        /// The table, in the order of [`Counter`].
        pub const COUNTERS: &[Described] = &[
            $(Described {
                counter: Counter::$name,
                unit: Unit::$unit,
                report: $report,
                prometheus: $prometheus,
                is_kernels: counters!(@is_kernels $($kernel)?),
                sentence: concat!($($sentence),+),
            },)*
        ];
    };
    (@is_kernels) => { false };
    (@is_kernels kernel) => { true };
}

counters! {
    /// Pages stored in the pool.
    ZswpOut: Pages, report "zswpout", prometheus "uzswap_stored_pages_total", kernel;
    /// Pages loaded from the pool.
    ZswpIn: Pages, report "zswpin", prometheus "uzswap_loaded_pages_total", kernel;
    /// Pages written to the swap file (0 without `--swap`).
    ZswpWb: Pages, report "zswpwb", prometheus "uzswap_written_back_pages_total", kernel;
    /// Pages that did not shrink and stay in memory.
    RejectCompressPoor: Pages, report "reject_compress_poor", prometheus "uzswap_incompressible_pages_total", kernel;
    /// Pages on which the compressor failed, and that stay in memory.
    RejectCompressFail: Pages, report "reject_compress_fail", prometheus "uzswap_compress_failed_pages_total", kernel;
    /// Pages that stay in memory because the pool could not allocate memory for them.
    RejectAllocFail: Pages, report "reject_alloc_fail", prometheus "uzswap_refused_pages_total", kernel;
    /// Pages that the kernel did not let leave, each time: read-only, locked or under a protection
    /// key.
    Immovable: Pages, report "immovable_pages", prometheus "uzswap_immovable_pages_total";
    /// Pages that were left in memory because processes share them since a fork, each time.
    KeptShared: Pages, report "kept_shared_pages", prometheus "uzswap_kept_shared_pages_total";
    /// Faults served.
    Faults: Times, report "faults", prometheus "uzswap_faults_total";
    /// Time from reading each fault to having served it.
    FaultNs: Nanoseconds, report "fault_seconds_total", prometheus "uzswap_fault_seconds_total";
    /// Pages that came back before they were compressed: second chances.
    Refaults: Pages, report "refaults", prometheus "uzswap_refaulted_pages_total";
    /// Pages given at their first touch.
    ZeroFilled: Pages, report "zero_filled", prometheus "uzswap_zero_filled_pages_total";
    /// Requests to the compressor that evictions made.
    Batches: Times, report "batches", prometheus "uzswap_batches_total";
    /// Pages in those requests, whether they shrank or not: eight a request is what batching aims
    /// at. Pages that repeat one word need no compressor.
    CompressUnits: Pages, report "compress_units", prometheus "uzswap_compress_units_total";
    /// Requests to the compressor that faults made.
    DecompressBatches: Times, report "decompress_batches", prometheus "uzswap_decompress_batches_total";
    /// Pages in those requests: more than one where a fault brings neighbours in.
    DecompressUnits: Pages, report "decompress_units", prometheus "uzswap_decompress_units_total";
    /// Requests of both kinds that emulated devices served: no figure of their processes describes
    /// a real one.
    EmulatedBatches: Times, report "emulated_batches", prometheus "uzswap_emulated_batches_total";
    /// Times the budget was exceeded with nothing left to evict.
    OverBudget: Times, report "over_budget", prometheus "uzswap_over_budget_total";
    /// Pages brought in because paging had to end.
    BroughtIn: Pages, report "brought_in", prometheus "uzswap_brought_in_pages_total";
    /// Forks prepared for.
    Forks: Times, report "forks", prometheus "uzswap_forks_total";
    /// Stored pages made denser when they had become cold: `auto-t16h` alone does that.
    Promoted: Pages, report "promoted", prometheus "uzswap_promoted_pages_total";
    /// Faults served by reading from the swap file.
    DiskFaults: Times, report "swap.disk_faults", prometheus "uzswap_disk_faults_total";
    /// Time from reading each fault served from the swap file to its page in place.
    DiskFaultNs: Nanoseconds, report "swap.disk_fault_seconds", prometheus "uzswap_disk_fault_seconds_total";
    /// Pages that came in with faults served from the swap file.
    DiskPagesIn: Pages, report "swap.disk_pages_in", prometheus "uzswap_disk_loaded_pages_total";
    /// Time that requests to read from the swap file took.
    DiskReadNs: Nanoseconds, report "swap.read_seconds", prometheus "uzswap_swap_read_seconds_total";
    /// Requests to read from the swap file.
    DiskReads: Times, report "swap.reads", prometheus "uzswap_swap_reads_total";
    /// Bytes written to the swap file, all told.
    SwapBytesWritten: Bytes, report "swap.bytes_written", prometheus "uzswap_swap_written_bytes_total";
    /// Bytes read from the swap file, all told.
    SwapBytesRead: Bytes, report "swap.bytes_read", prometheus "uzswap_swap_read_bytes_total";
    /// Bytes of objects that went to the swap file for the first time.
    SwapObjectBytes: Bytes, report "swap.object_bytes", prometheus "uzswap_swap_object_bytes_total";
    /// Time that writes to the swap file took together.
    SwapWriteNs: Nanoseconds, report "swap.write_seconds", prometheus "uzswap_swap_write_seconds_total";
    /// Bytes written by cleaning.
    SwapBytesCleaned: Bytes, report "swap.bytes_cleaned", prometheus "uzswap_swap_cleaned_bytes_total";
    /// Segments cleaned.
    SwapSegmentsCleaned: Times, report "swap.segments_cleaned", prometheus "uzswap_swap_cleaned_segments_total";
    /// Time spent cleaning.
    SwapCleanNs: Nanoseconds, report "swap.clean_seconds", prometheus "uzswap_swap_clean_seconds_total";
    /// Writes that found no room in the swap file or on its disk.
    SwapNoSpace: Times, report "swap.no_space", prometheus "uzswap_swap_no_space_total";
    /// Writes that failed and were given up.
    SwapWritesFailed: Times, report "swap.writes_failed", prometheus "uzswap_swap_writes_failed_total";
    /// Reads that failed, or found other bytes than were written.
    SwapReadsFailed: Times, report "swap.reads_failed", prometheus "uzswap_swap_reads_failed_total";
    /// Time that faults waited for others' pages to be written, because the budget was exceeded.
    SwapWaitNs: Nanoseconds, report "swap.write_wait_seconds", prometheus "uzswap_swap_write_wait_seconds_total";
    /// Pages that came back because they were needed, from the pool or from staging.
    Returned: Pages, report "replacement.returned", prometheus "uzswap_returned_pages_total";
    /// Sum of the refault distances of returned pages: pages that came in between a page's going
    /// and its return.
    ReturnDistance: Pages, report "replacement.return_distance", prometheus "uzswap_return_distance_pages_total";
    /// Present pages that were looked at to find some that can go.
    LookedAt: Pages, report "replacement.looked_at", prometheus "uzswap_looked_at_pages_total";
    /// Pages looked at that were left where they are.
    Spared: Pages, report "replacement.spared", prometheus "uzswap_spared_pages_total";
    /// Pages that went only to learn whether they return.
    Tried: Pages, report "replacement.tried", prometheus "uzswap_tried_pages_total";
    /// Pages armed, to see whether they are used before they go (Linux 7.3).
    Armed: Pages, report "replacement.armed", prometheus "uzswap_armed_pages_total";
    /// Armed pages that were found used, and stayed.
    SeenUsed: Pages, report "replacement.seen_used", prometheus "uzswap_seen_used_pages_total";
    /// Pages that came in beside one that was needed.
    ReadAhead: Pages, report "replacement.read_ahead", prometheus "uzswap_read_ahead_pages_total";
    /// Pages read ahead that were seen not to be used: without access tracking 0.
    ReadAheadWasted: Pages, report "replacement.read_ahead_wasted", prometheus "uzswap_read_ahead_wasted_pages_total";
}

impl Counter {
    /// Its line in the table.
    pub fn described(self) -> &'static Described {
        &COUNTERS[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_counter_has_a_line_and_names_of_its_own() {
        let mut names = BTreeSet::new();
        for (index, line) in COUNTERS.iter().enumerate() {
            assert_eq!(line.counter as usize, index);
            assert!(names.insert(line.report), "{} twice", line.report);
            assert!(names.insert(line.prometheus), "{} twice", line.prometheus);
            assert!(line.prometheus.starts_with("uzswap_") && line.prometheus.ends_with("_total"));
            let is_time = line.unit == Unit::Nanoseconds;
            assert_eq!(line.prometheus.ends_with("_seconds_total"), is_time, "{}", line.prometheus);
            assert_eq!(line.report.contains("seconds"), is_time, "{}", line.report);
            assert!(line.sentence().ends_with('.') && !line.sentence().contains('|'), "{}", line.sentence());
        }
    }

    #[test]
    fn a_key_belongs_to_one_object() {
        let reads = Counter::DiskReads.described();
        assert_eq!(
            (reads.key_in("swap"), reads.key_in(""), reads.key_in("replacement")),
            (Some("reads"), None, None)
        );
        assert_eq!(Counter::Faults.described().key_in(""), Some("faults"));
    }
}
