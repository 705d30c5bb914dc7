//! Programs with unusual threads, limits or times. Comments on tests tell the former failure.

mod support;

use support::{as_bare, as_bare_under, workload, WAYS};

/// For 96 MiB that compress to 54 MiB: 60 MiB left hardly anything for pages in use.
const BUDGET: &str = "76M";

/// /proc/PID/statm of an ended first thread shows 0, and the budget was not kept.
#[test]
fn a_first_thread_that_ends_keeps_its_budget() {
    let Some(workload) = workload("process") else { return };
    for mode in ["leader_ends_early", "leader_ends_late"] {
        for ran in as_bare(BUDGET, &[workload, mode]) {
            let peak = ran.assert_paged().number("ram_peak_bytes");
            assert!(peak > 66 << 20, "a peak of {} MiB of 96: {ran}", peak >> 20);
        }
    }
}

/// The message about it needed a descriptor.
#[test]
fn few_descriptors_are_named_where_they_are_too_few() {
    let Some(workload) = workload("process") else { return };
    for most in ["0", "3", "4", "8", "16"] {
        for ran in as_bare(BUDGET, &[workload, "few_descriptors", most]) {
            let is_managed = ran.number("zswpout") > 1000;
            assert!(is_managed || ran.text("unmanaged").contains("RLIMIT_NOFILE"), "{ran}");
            assert!(is_managed || most != "16", "{ran}");
        }
    }
}

/// The agent's memory counted with the program's: every mmap() failed.
#[test]
fn a_limit_on_memory_is_the_program_s() {
    let Some(workload) = workload("process") else { return };
    for mode in ["address_limit", "data_limit"] {
        for ran in as_bare(BUDGET, &[workload, mode]) {
            ran.assert_paged();
        }
    }
}

#[test]
fn a_limit_set_before_the_start_leaves_the_program_managed() {
    let Some(workload) = workload("process") else { return };
    for limit in ["ulimit -S -v 4000000 -d 3000000", "ulimit -v 4000000 -d 3000000"] {
        for ran in as_bare_under(Some(limit), &WAYS, BUDGET, &[workload, "limits_before"]) {
            ran.assert_paged();
        }
    }
}
