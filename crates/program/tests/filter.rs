//! Programs whose seccomp filter permits no pager: they and their children have every byte.

mod support;

use support::{managed, workload};

/// Regressions: _exit() called getpid(), for which the filter killed it. The agent's threads
/// outlived the program's last one. A new thread asked for its word by prctl(). A query about
/// filters counted as setting one, so paging ended.
#[test]
fn a_program_with_a_strict_filter_ends_as_it_would_and_a_refused_one_changes_nothing() {
    let Some(workload) = workload("filter") else { return };
    for how in ["probe", "exit", "return", "thread", "killed"] {
        let Some(ran) = managed("40M", &["-q"], &[workload, how, "64"]) else { return };
        ran.assert_status(if how == "killed" { 128 + 31 } else { 0 });
        assert!(!ran.said.contains("paging ends"), "{ran}");
        assert!(ran.number("over_limit_peak_bytes") < 8 << 20, "{ran}");
    }
}

#[test]
fn filters_that_kill_for_a_pagers_calls() {
    let Some(workload) = workload("filter") else { return };
    for how in ["prctl", "seccomp", "threads", "alone", "locked"] {
        let Some(ran) = managed("40M", &["-q"], &[workload, how, "64"]) else { return };
        match ran.status {
            Some(2) => testkit::skip!("kernel", "no filter can be set here ({how})"),
            Some(7) => testkit::skip!("mlock", "memory cannot be locked here ({how})"),
            _ => _ = ran.assert_status(0),
        }
        assert!(ran.number("zswpout") > 1000, "nothing was evicted: {ran}");
        // Only a filter for all threads ends paging, with a message.
        let for_all = how.starts_with("threads") || how.starts_with("alone");
        assert_eq!(ran.said.contains("seccomp filter"), for_all, "{ran}");
        assert_eq!(ran.said.contains("mlockall()"), how.starts_with("locked"), "{ran}");
    }
}

/// The filter ends the control threads of children, which have it from their birth: they end.
#[test]
fn forks_under_an_unseen_filter_that_ends_control_threads() {
    let Some(workload) = workload("filter") else { return };
    let Some(ran) = managed("40M", &["-q"], &[workload, "unseen", "64"]) else { return };
    match ran.status {
        Some(2) => testkit::skip!("kernel", "no filter can be set here"),
        _ => _ = ran.assert_status(4),
    }
}
