//! Programs that are unlike others to the kernel: by their threads, their limits, their times.

#[allow(dead_code)]
mod support;
#[path = "support/tree.rs"]
mod tree;
#[path = "support/ways.rs"]
mod ways;

use std::sync::OnceLock;

use support::{workload_in, Scratch};
use ways::{as_bare, assert_paged};

/// The workload, or `None` where nothing can be managed or compiled.
fn workload() -> Option<&'static str> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("process-workload");
        workload_in(&scratch, "process").map(|workload| (scratch, workload))
    });
    workload.as_ref().map(|(_, program)| program.as_str())
}

/// /proc/PID/statm of a first thread that has ended says 0, and the budget was not kept.
#[test]
fn a_first_thread_that_ends_keeps_its_budget() {
    let Some(workload) = workload() else { return };
    for mode in ["leader_ends_early", "leader_ends_late"] {
        let reports = as_bare(mode, "60M", &[workload, mode]);
        assert_paged(mode, &reports);
        for (way, report) in reports {
            let peak = report["ram_peak_bytes"].as_u64().unwrap();
            assert!(peak > 50 << 20, "{mode}, {way}: a peak of {} MiB of 96", peak >> 20);
        }
    }
}
