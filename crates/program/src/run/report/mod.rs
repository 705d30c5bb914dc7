//! The report of a run.

pub mod counts;
pub mod history;
pub mod notes;
pub mod output;
pub mod over_limit;
pub mod page;
pub mod peaks;
pub mod progress;
pub mod swap_report;

use std::collections::BTreeMap;
use std::time::Duration;

use ledger::{percentile_ns, Counter};
use serde::Serialize;

use crate::kernel_features;
use crate::run::report::counts::{ratio, Counts};
use crate::run::report::over_limit::OverLimit;
use crate::run::report::swap_report::SwapReport;
use crate::run::supervisor::Supervisor;
use crate::size::{self, Size};

/// The report of `docs/user/report.md`. Names are the kernel's where the meaning matches.
#[derive(Debug, Serialize)]
pub struct Report {
    exit_status: i32,
    elapsed_seconds: f64,
    /// CPU time of the program's ended processes, including the pager's threads; null after an
    /// attach, since the kernel tells it to the processes' parent alone.
    cpu_seconds: Option<f64>,
    ram_limit_bytes: u64,
    /// The memory limit that programs read in their cgroup; null for the actual one.
    cgroup_limit_bytes: Option<u64>,
    /// Largest sum of anonymous resident memory, pool and staging included.
    ram_peak_bytes: u64,
    /// The tree's largest use without uzswap.
    ram_wanted_peak_bytes: u64,
    over_limit_peak_bytes: u64,
    /// The reason for the largest excess; null without one.
    over_limit_reason: Option<String>,
    /// Largest resident shared memory of one process, twice a second: not paged, not counted above.
    shared_peak_bytes: u64,
    compressor: String,
    /// Whether any process used emulated devices: no figure describes real ones then.
    emulated: bool,
    access_tracking: &'static str,
    verified: bool,
    /// Counters of the report itself, named in `ledger::COUNTERS`.
    #[serde(flatten)]
    counts: Counts,
    /// Pages stored, by form; `same` is a repeated word, which takes no object. Their sum is
    /// zswpout plus the few pages that a fault took back during the store.
    forms: BTreeMap<String, u64>,
    /// Pages in the pool at the end, and the pool's bytes.
    stored_pages: u64,
    pool_total_size: u64,
    /// The same at the maximum of stored pages.
    stored_pages_peak: u64,
    pool_total_size_at_peak: u64,
    /// Stored bytes by the pool's bytes at that maximum; 0 when nothing was stored.
    compression_ratio: f64,
    fault_latency_us: Latency,
    pages_per_batch: f64,
    pages_per_decompress_batch: f64,
    /// The swap file's figures; null without one.
    swap: Option<SwapReport>,
    replacement: Replacement,
    /// Programs that ran without uzswap, and why.
    unmanaged: Vec<String>,
    /// Failures of uzswap that ended a process.
    failures: Vec<String>,
    /// Messages about processes that outlived the program, when the terminal was gone.
    said_after_end: Vec<String>,
    /// Closed connections of processes outside the tree, or with protocol errors.
    refused_connections: u64,
    /// Corrections of a shared sum that a process overwrote, or died while updating.
    corrected_totals: u64,
    /// Looks at which a process's use differed much from its own figure.
    wrong_figures: u64,
}

#[derive(Debug, Serialize)]
struct Replacement {
    #[serde(flatten)]
    counts: Counts,
    /// Mean number of pages loaded between a page's eviction and its return.
    mean_distance: f64,
    /// Share of the scanned pages that stayed in memory.
    protected_share: f64,
}

/// Percentiles in microseconds.
#[derive(Debug, Serialize)]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
}

impl Latency {
    /// Percentiles of counted latencies with a known mean.
    pub fn of(counts: &[u64; ledger::BUCKETS], mean: f64) -> Self {
        let us = |fraction| percentile_ns(counts, fraction) as f64 / 1000.0;
        Latency { mean, p50: us(0.5), p90: us(0.9), p99: us(0.99), p999: us(0.999) }
    }
}

impl Report {
    pub fn new(
        supervisor: &Supervisor,
        elapsed: Duration,
        exit_status: i32,
        cgroup_limit_bytes: Option<u64>,
    ) -> Self {
        let (books, tree) = (&supervisor.books, &supervisor.books.tree);
        let settings = books.settings.clone();
        let peaks = &supervisor.figures;
        let counts = Counts::of(tree, "");
        let mean_us = counts.ratio(Counter::FaultNs, Counter::Faults) / 1000.0;
        Report {
            exit_status,
            elapsed_seconds: elapsed.as_secs_f64(),
            cpu_seconds: (!supervisor.is_attached()).then(children_cpu_seconds),
            ram_limit_bytes: settings.budget_bytes,
            cgroup_limit_bytes,
            ram_peak_bytes: books.total_peak_bytes,
            ram_wanted_peak_bytes: peaks.wanted_bytes,
            over_limit_peak_bytes: peaks.over_limit.bytes,
            over_limit_reason: peaks.over_limit.reason(),
            shared_peak_bytes: peaks.shared_bytes,
            compressor: settings.compressor,
            emulated: counts.sum(Counter::EmulatedBatches) > 0,
            access_tracking: match kernel_features::sees_uses(
                settings.without & ledger::WITHOUT_TRACKING != 0,
            ) {
                true => "rwp",
                false => "none",
            },
            verified: settings.verify,
            forms: tree.forms(),
            stored_pages: peaks.stored_pages,
            pool_total_size: peaks.pool_bytes,
            stored_pages_peak: peaks.stored_pages_peak,
            pool_total_size_at_peak: peaks.pool_bytes_at_peak,
            compression_ratio: ratio(peaks.stored_pages_peak.saturating_mul(4096), peaks.pool_bytes_at_peak),
            fault_latency_us: Latency::of(&tree.fault_counts(), mean_us),
            pages_per_batch: counts.ratio(Counter::CompressUnits, Counter::Batches),
            pages_per_decompress_batch: counts.ratio(Counter::DecompressUnits, Counter::DecompressBatches),
            swap: SwapReport::of(tree, supervisor, elapsed.as_secs_f64()),
            replacement: Replacement {
                mean_distance: counts.ratio(Counter::ReturnDistance, Counter::Returned),
                protected_share: counts.ratio(Counter::Spared, Counter::LookedAt),
                counts: Counts::of(tree, "replacement"),
            },
            counts,
            unmanaged: supervisor.notes.unmanaged.clone(),
            failures: supervisor.notes.failures.clone(),
            said_after_end: Vec::new(),
            refused_connections: supervisor.connections.refused,
            corrected_totals: books.corrections(),
            wrong_figures: peaks.wrong_figures,
        }
    }

    /// Adds messages since the program's end; returns false if there are none.
    pub fn take_late(&mut self, supervisor: &Supervisor) -> bool {
        let before = (self.unmanaged.len(), self.failures.len());
        self.unmanaged = supervisor.notes.unmanaged.clone();
        self.failures = supervisor.notes.failures.clone();
        self.said_after_end = supervisor.notes.said_after_end().to_vec();
        before != (self.unmanaged.len(), self.failures.len()) || !self.said_after_end.is_empty()
    }

    fn cost(&self, faults: u64) -> Cost {
        Cost {
            faults,
            fault_seconds: self.counts.seconds(Counter::FaultNs),
            elapsed_seconds: self.elapsed_seconds,
            peak_bytes: self.ram_peak_bytes,
            wanted_bytes: self.ram_wanted_peak_bytes,
            limit_bytes: self.ram_limit_bytes,
        }
    }

    /// Prints the memory, the time that faults took and advice; with `verbose` also pages and
    /// formats.
    pub fn summarise(&self, over: &OverLimit, verbose: bool) {
        let sum = |counter| self.counts.sum(counter);
        if self.ram_peak_bytes == 0 {
            let allowed = Size::from(self.ram_limit_bytes);
            eprintln!("uzswap: {allowed} allowed; the program was over before its memory was looked at");
        } else {
            eprintln!(
                "uzswap: peak {} of {} allowed; would have been {} without uzswap; {:.1} s{}",
                Size::from(self.ram_peak_bytes),
                Size::from(self.ram_limit_bytes),
                Size::from(self.ram_wanted_peak_bytes.max(self.ram_peak_bytes)),
                self.elapsed_seconds,
                self.cpu_seconds.map(|seconds| format!(", {seconds:.1} s of CPU")).unwrap_or_default(),
            );
        }
        if let Some(line) = self.cost(sum(Counter::Faults)).line() {
            eprintln!("uzswap: {line}");
        }
        let requests = sum(Counter::Batches).saturating_add(sum(Counter::DecompressBatches));
        if let Some(line) = emulated_line(sum(Counter::EmulatedBatches), requests) {
            eprintln!("uzswap: {line}");
        }
        if verbose {
            if sum(Counter::ZswpOut) > 0 || sum(Counter::Faults) > 0 {
                eprintln!(
                    "uzswap: {} pages out, {} in, ratio {:.2} ({}); {} faults took {:.1} s, p50 {:.1} us, p99 {:.1} us",
                    sum(Counter::ZswpOut),
                    sum(Counter::ZswpIn),
                    self.compression_ratio,
                    self.compressor,
                    sum(Counter::Faults),
                    self.counts.seconds(Counter::FaultNs),
                    self.fault_latency_us.p50,
                    self.fault_latency_us.p99,
                );
            }
            if let Some(line) = forms_line(&self.forms) {
                eprintln!("uzswap: stored as {line}");
            }
            if sum(Counter::Promoted) > 0 {
                eprintln!(
                    "uzswap: {} of these pages became denser when they were cold",
                    sum(Counter::Promoted)
                );
            }
        }
        if let Some(swap) = &self.swap {
            swap.summarise(sum(Counter::ZswpWb));
        }
        let tolerated = size::tolerated_excess(self.ram_limit_bytes);
        if let Some(reason) = over.reason().filter(|_| over.bytes > tolerated) {
            eprintln!("uzswap: the budget was exceeded by up to {}: {reason}", Size::from(over.bytes));
            if self.swap.as_ref().is_some_and(SwapReport::was_full) && !over.is_paused() {
                eprintln!(
                    "uzswap: the swap file was full, or its disk: give more with --swap, or --swap-dir"
                );
            } else if let Some(advice) = over.advice(self.swap.is_some()) {
                eprintln!("uzswap: {advice}");
            }
        }
        if self.shared_peak_bytes > self.ram_limit_bytes / 8 {
            let shared = Size::from(self.shared_peak_bytes);
            eprintln!("uzswap: beside it {shared} of shared memory, which is not paged");
        }
        if self.corrected_totals >= CORRECTED_MANY {
            eprintln!(
                "uzswap: the shared total was corrected {} times: a process of the tree overwrites it, or died while it was being \
                 changed",
                self.corrected_totals
            );
        }
        if self.wrong_figures > 0 {
            eprintln!("uzswap: a process of the tree does not tell what it uses; the kernel's figures count");
        }
        for what in &self.unmanaged {
            eprintln!("uzswap: not managed: {what}");
        }
    }
}

/// The share of requests to the compressor that emulated devices served.
fn emulated_line(emulated: u64, requests: u64) -> Option<String> {
    let share = if emulated == requests { "all".to_owned() } else { format!("{emulated} of {requests}") };
    (emulated > 0).then(|| format!("{share} requests to compress and decompress were emulated"))
}

/// The figures of a run by which its budget is judged.
#[derive(Debug, Clone, Copy)]
struct Cost {
    faults: u64,
    fault_seconds: f64,
    elapsed_seconds: f64,
    peak_bytes: u64,
    wanted_bytes: u64,
    limit_bytes: u64,
}

impl Cost {
    /// Returns the time that faults took, and the budget that would do without them; `None` if
    /// nothing is known of the program's memory.
    fn line(self) -> Option<String> {
        if self.peak_bytes == 0 {
            return None;
        }
        let whole = whole_bytes(self.wanted_bytes.max(self.peak_bytes));
        if self.faults == 0 {
            let is_less = whole < self.limit_bytes / 4 * 3;
            let advice = is_less.then(|| format!("; --ram {} would have done", size::as_option(whole)));
            return Some(format!("no page had to come back{}", advice.unwrap_or_default()));
        }
        let share = self.fault_seconds / self.elapsed_seconds.max(1e-3) * 100.0;
        let advice = (whole > self.limit_bytes)
            .then(|| format!("; --ram {} would have held all pages", size::as_option(whole)));
        Some(format!(
            "{} faults took {:.1} s of the threads' time, {share:.0} % of the run's length{}",
            self.faults,
            self.fault_seconds,
            advice.unwrap_or_default()
        ))
    }
}

/// Returns the least budget at which `wanted_bytes` are not paged (docs/user/sizing.md).
pub fn whole_bytes(wanted_bytes: u64) -> u64 {
    wanted_bytes.saturating_add((wanted_bytes / 15).max(24 << 20))
}

/// User and system time of children that have ended and were waited for.
fn children_cpu_seconds() -> f64 {
    // SAFETY: all zeroes is a valid structure, and the kernel fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// A process that is killed while it updates the total causes one correction.
const CORRECTED_MANY: u64 = 10;

/// Formats the forms of stored pages, most frequent first; `None` for a single form.
pub fn forms_line(forms: &BTreeMap<String, u64>) -> Option<String> {
    let total = forms.values().fold(0, |sum: u64, pages| sum.saturating_add(*pages));
    if forms.len() <= SINGLE_FORMS || total == 0 {
        return None;
    }
    let mut used: Vec<_> = forms.iter().filter(|(_, pages)| **pages > 0).collect();
    used.sort_by_key(|(_, pages)| std::cmp::Reverse(**pages));
    let share = |pages: u64| pages as f64 * 100.0 / total as f64;
    let parts: Vec<_> = used.iter().map(|(name, pages)| format!("{name} {:.1} %", share(**pages))).collect();
    Some(parts.join(", "))
}

/// `same`, `raw` and the compressor's own form.
const SINGLE_FORMS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_requests_are_told_in_part_or_whole() {
        assert_eq!(emulated_line(0, 9), None);
        assert!(emulated_line(9, 9).unwrap().starts_with("all requests"));
        assert!(emulated_line(2, 9).unwrap().starts_with("2 of 9 requests"));
    }

    #[test]
    fn the_cost_of_a_budget_is_told_with_the_one_that_has_none() {
        let cost = Cost {
            faults: 700,
            fault_seconds: 4.1,
            elapsed_seconds: 10.0,
            peak_bytes: 190 << 20,
            wanted_bytes: 280 << 20,
            limit_bytes: 190 << 20,
        };
        let line = |cost: Cost| cost.line().unwrap();
        let time = "700 faults took 4.1 s of the threads' time, 41 % of the run's length";
        assert_eq!(line(cost), format!("{time}; --ram 304M would have held all pages"));
        assert_eq!(line(Cost { limit_bytes: 320 << 20, ..cost }), time);
        let (faults, peak_bytes, wanted_bytes) = (0, 50 << 20, 50 << 20);
        let none = Cost { faults, peak_bytes, wanted_bytes, ..cost };
        assert_eq!(line(none), "no page had to come back; --ram 74M would have done");
        assert_eq!(line(Cost { limit_bytes: 90 << 20, ..none }), "no page had to come back");
        assert!(Cost { peak_bytes: 0, ..cost }.line().is_none());
        // A process of the tree may claim anything.
        let claimed = Cost { faults: u64::MAX, wanted_bytes: u64::MAX, ..cost };
        assert!(line(claimed).contains("would have held all pages"));
        assert!(line(Cost { faults: 0, ..claimed }).starts_with("no page"));
    }

    #[test]
    fn forms_are_told_where_there_is_a_choice() {
        let line = |forms: &[(&str, u64)]| {
            forms_line(&forms.iter().map(|(name, pages)| ((*name).to_owned(), *pages)).collect())
        };
        assert_eq!(line(&[("same", 5), ("raw", 0), ("lz4", 9)]), None);
        assert_eq!(line(&[("same", 0), ("raw", 0), ("lz", 0), ("t16", 0)]), None);
        let some = line(&[("same", 10), ("raw", 0), ("lz", 1), ("t16", 189)]);
        assert_eq!(some.as_deref(), Some("t16 94.5 %, same 5.0 %, lz 0.5 %"));
    }
}
