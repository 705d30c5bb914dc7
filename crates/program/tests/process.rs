//! Programs with unusual threads, limits or times. Comments on tests tell the former failure.

#[allow(dead_code)]
mod support;
#[path = "support/tree.rs"]
mod tree;
#[path = "support/ways.rs"]
mod ways;

use std::sync::OnceLock;

use support::{workload_in, Scratch};
use ways::{as_bare, as_bare_under, assert_paged, WAYS};

/// For 96 MiB that compress to 54 MiB: 60 MiB left hardly anything for pages in use.
const BUDGET: &str = "76M";

fn workload() -> Option<&'static str> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("process-workload");
        workload_in(&scratch, "process").map(|workload| (scratch, workload))
    });
    workload.as_ref().map(|(_, program)| program.as_str())
}

/// /proc/PID/statm of an ended first thread shows 0, and the budget was not kept.
#[test]
fn a_first_thread_that_ends_keeps_its_budget() {
    let Some(workload) = workload() else { return };
    for mode in ["leader_ends_early", "leader_ends_late"] {
        let reports = as_bare(mode, BUDGET, &[workload, mode]);
        assert_paged(mode, &reports);
        for (way, report) in reports {
            let peak = report["ram_peak_bytes"].as_u64().unwrap();
            assert!(peak > 66 << 20, "{mode}, {way}: a peak of {} MiB of 96", peak >> 20);
        }
    }
}

/// The message about it needed a descriptor.
#[test]
fn few_descriptors_are_named_where_they_are_too_few() {
    let Some(workload) = workload() else { return };
    for most in ["0", "3", "4", "8", "16"] {
        for (way, report) in as_bare("few", BUDGET, &[workload, "few_descriptors", most]) {
            let unmanaged = report["unmanaged"].to_string();
            let is_managed = report["zswpout"].as_u64().unwrap() > 1000;
            assert!(is_managed || unmanaged.contains("RLIMIT_NOFILE"), "{most}, {way}: {unmanaged}");
            assert!(is_managed || most != "16", "{way}: {unmanaged}");
        }
    }
}

/// The agent's memory counted with the program's: every mmap() failed.
#[test]
fn a_limit_on_memory_is_the_program_s() {
    let Some(workload) = workload() else { return };
    for mode in ["address_limit", "data_limit"] {
        let reports = as_bare(mode, BUDGET, &[workload, mode]);
        assert_paged(mode, &reports);
    }
}

#[test]
fn a_limit_of_before_leaves_the_program_managed() {
    let Some(workload) = workload() else { return };
    for (name, limit) in
        [("soft", "ulimit -S -v 4000000 -d 3000000"), ("hard", "ulimit -v 4000000 -d 3000000")]
    {
        let reports = as_bare_under(Some(limit), &WAYS, name, BUDGET, &[workload, "limits_before"]);
        assert_paged(name, &reports);
    }
}
