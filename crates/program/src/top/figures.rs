//! Figures of a tree for display: its state, and rates since the previous sample.

use std::collections::BTreeMap;

use ledger::{percentile_ns, Counter, Seen, Slot, BUCKETS};
use serde::Serialize;

use super::find::{name_of, RunningTree};
use crate::plain::plain;

#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub struct Tree {
    /// The process id of `uzswap run`.
    pub pid: u32,
    pub program: Vec<String>,
    /// Whether `uzswap pause` is in force for a process.
    pub paused: bool,
    pub ram_limit_bytes: u64,
    /// Anonymous resident memory of all processes now, pool and staging included.
    pub ram_used_bytes: u64,
    /// The most so far.
    pub ram_peak_bytes: u64,
    /// Their use without uzswap, now.
    pub ram_wanted_bytes: u64,
    pub compressor: String,
    /// Pages in the pools.
    pub stored_pages: u64,
    /// Bytes of the pools.
    pub pool_total_size: u64,
    /// Stored bytes by the pools' bytes; 0 when nothing is stored.
    pub compression_ratio: f64,
    /// Pages evicted and not yet compressed, in bytes.
    pub staged_bytes: u64,
    /// What the swap file may take; 0 without one.
    pub swap_limit_bytes: u64,
    /// Pages in the swap file, and the bytes of their objects there.
    pub swap_pages: u64,
    pub swap_live_bytes: u64,
    /// Pages written to the swap file since the start, and faults served from there.
    pub zswpwb: u64,
    pub disk_faults: u64,
    /// Bytes written to the swap file a second, since the previous sample.
    pub swap_bytes_written_per_second: f64,
    /// Latency of faults served from the swap file since the start; null without such faults.
    pub disk_fault_latency_total_us: Option<Latency>,
    /// Pages stored since the start.
    pub zswpout: u64,
    /// Pages loaded since the start.
    pub zswpin: u64,
    /// Pages stored since the start, by storage form.
    pub forms: BTreeMap<String, u64>,
    /// Faults served since the start.
    pub faults: u64,
    /// Pages stored a second, since the previous sample.
    pub zswpout_per_second: f64,
    /// Pages loaded a second, since the previous sample.
    pub zswpin_per_second: f64,
    /// Faults a second, since the previous sample.
    pub faults_per_second: f64,
    /// Latency of faults since the previous sample; null without faults.
    pub fault_latency_us: Option<Latency>,
    /// Latency of faults since the start.
    pub fault_latency_total_us: Option<Latency>,
    pub processes: Vec<Process>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    /// Whether it has a pager yet.
    pub managed: bool,
    /// Anonymous resident memory, pool and staging included.
    pub resident_bytes: u64,
    /// Bytes of its pool.
    pub pool_total_size: u64,
    /// Pages in its pool.
    pub stored_pages: u64,
}

/// Percentiles in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
}

/// The values that the next sample is compared with.
pub struct Before {
    tree: u64,
    counts: [u64; 4],
    faults: Box<[u64; BUCKETS]>,
}

impl Before {
    pub fn of(found: &RunningTree) -> Self {
        Before { tree: found.tree, counts: counts(found), faults: Box::new(found.snapshot.fault_counts()) }
    }
}

fn counts(found: &RunningTree) -> [u64; 4] {
    [Counter::ZswpOut, Counter::ZswpIn, Counter::Faults, Counter::SwapBytesWritten]
        .map(|counter| found.snapshot.sum(counter))
}

/// Returns the trees' figures, `seconds` after the samples in `before`.
pub fn trees(found: &[RunningTree], before: &[Before], seconds: f64) -> Vec<Tree> {
    let before = |tree: &RunningTree| before.iter().find(|before| before.tree == tree.tree);
    found.iter().map(|tree| figures(tree, before(tree), seconds)).collect()
}

fn figures(found: &RunningTree, before: Option<&Before>, seconds: f64) -> Tree {
    let snapshot = &found.snapshot;
    let settings = snapshot.settings();
    let sum =
        |of: fn(&Slot) -> u64| snapshot.live().fold(0, |sum: u64, seen| sum.saturating_add(of(seen.slot)));
    let (stored_pages, pool_total_size) = (sum(Slot::stored_pages), sum(Slot::pool_bytes));
    let process = |Seen { pid, slot }: Seen<'_>| Process {
        pid,
        name: name_of(pid),
        managed: slot.is_managed(),
        resident_bytes: slot.resident_bytes(),
        pool_total_size: slot.pool_bytes(),
        stored_pages: slot.stored_pages(),
    };
    let now = counts(found);
    // A tree without a previous sample started since then.
    let then = before.map_or([0; 4], |before| before.counts);
    let rate = |at: usize| now[at].saturating_sub(then[at]) as f64 / seconds.max(1e-3);
    let faults = snapshot.fault_counts();
    let recent = before.map_or(faults, |before| since(&faults, &before.faults));
    Tree {
        pid: found.pid,
        program: found.program.clone(),
        paused: snapshot.live().any(|seen| seen.slot.is_pause_wanted() || seen.slot.is_paused()),
        ram_limit_bytes: settings.budget_bytes,
        ram_used_bytes: snapshot.total_bytes(),
        ram_peak_bytes: snapshot.total_peak_bytes(),
        ram_wanted_bytes: sum(Slot::wanted_bytes),
        compressor: plain(&settings.compressor),
        stored_pages,
        pool_total_size,
        compression_ratio: match pool_total_size {
            0 => 0.0,
            bytes => stored_pages as f64 * 4096.0 / bytes as f64,
        },
        staged_bytes: sum(Slot::staged_bytes),
        swap_limit_bytes: settings.swap_bytes,
        swap_pages: sum(Slot::disk_pages),
        swap_live_bytes: sum(Slot::disk_bytes),
        zswpwb: snapshot.sum(Counter::ZswpWb),
        disk_faults: snapshot.sum(Counter::DiskFaults),
        swap_bytes_written_per_second: rate(3),
        disk_fault_latency_total_us: latency(&snapshot.disk_fault_counts()),
        zswpout: now[0],
        zswpin: now[1],
        forms: snapshot.forms().into_iter().map(|(name, pages)| (plain(&name), pages)).collect(),
        faults: now[2],
        zswpout_per_second: rate(0),
        zswpin_per_second: rate(1),
        faults_per_second: rate(2),
        fault_latency_us: latency(&recent),
        fault_latency_total_us: latency(&faults),
        processes: snapshot.live().map(process).collect(),
    }
}

fn since(now: &[u64; BUCKETS], before: &[u64; BUCKETS]) -> [u64; BUCKETS] {
    std::array::from_fn(|bucket| now[bucket].saturating_sub(before[bucket]))
}

fn latency(counts: &[u64; BUCKETS]) -> Option<Latency> {
    let us = |fraction| percentile_ns(counts, fraction) as f64 / 1000.0;
    counts.iter().any(|count| *count > 0).then(|| Latency { p50: us(0.5), p99: us(0.99) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_latencies_are_of_the_time_between_two_looks() {
        let settings = ledger::Settings {
            budget_bytes: 1 << 30,
            compressor: "lz4".into(),
            forms: vec!["same".into(), "lz4".into()],
            ..ledger::Settings::default()
        };
        let mut keeper = ledger::Keeper::create(&settings, 1).unwrap();
        keeper.claim(std::process::id()).unwrap();
        let ledger = keeper.ledger();
        let slot = ledger.slot(0);
        let look = || {
            let mut snapshot = ledger::Snapshot::default();
            let sight = ledger::Sight::read(keeper.board_file()).unwrap();
            snapshot.add(sight, keeper.ledger_file()).unwrap();
            RunningTree { tree: 1, pid: 5, holder: 5, program: vec!["sort".into()], snapshot }
        };
        slot.add(Counter::ZswpOut, 1000);
        slot.add_form(1, 1000);
        slot.faults().record(1_000_000);
        ledger.publish(0, 500, 100, 200, 1);
        let first = look();
        let tree = &trees(&[first], &[], 1.0)[0];
        assert_eq!((tree.zswpout_per_second, tree.compression_ratio), (1000.0, 40.96));
        assert_eq!(
            (tree.ram_used_bytes, tree.ram_wanted_bytes, tree.staged_bytes),
            (500, 500 - 100 + 4096, 200)
        );
        assert!(tree.forms.iter().eq([(&"lz4".to_owned(), &1000), (&"same".to_owned(), &0)]));
        assert!(tree.fault_latency_us.unwrap().p50 > 800.0);

        let before = Before::of(&look());
        slot.add(Counter::ZswpOut, 300);
        slot.add(Counter::ZswpIn, 30);
        slot.faults().record(1000);
        let tree = &trees(&[look()], &[before], 2.0)[0];
        assert_eq!((tree.zswpout, tree.zswpout_per_second, tree.zswpin_per_second), (1300, 150.0, 15.0));
        assert!(tree.fault_latency_us.unwrap().p99 < 2.0, "the old fault is not recent");
        assert!(tree.fault_latency_total_us.unwrap().p99 > 800.0);
        assert_eq!(tree.processes[0].pid, std::process::id());
        assert!(!tree.paused);
        slot.want_pause(true);
        assert!(trees(&[look()], &[], 1.0)[0].paused);
        slot.want_pause(false);
        let quiet = trees(&[look()], &[Before::of(&look())], 1.0);
        assert_eq!((quiet[0].fault_latency_us, quiet[0].faults_per_second), (None, 0.0));
    }
}
