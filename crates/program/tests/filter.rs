//! Programs whose seccomp filter permits no pager: they and their children have every byte.

mod support;

use support::{managed, workload_in, Scratch};

/// Regressions: _exit() called getpid(), for which the filter killed it. The agent's threads
/// outlived the program's last one. A new thread asked for its word by prctl(). A query about
/// filters counted as setting one, so paging ended.
#[test]
fn a_program_with_a_strict_filter_ends_as_it_would_and_a_refused_one_changes_nothing() {
    let scratch = Scratch::new("filter-strict");
    let Some(workload) = workload_in(&scratch, "filter") else { return };
    for how in ["probe", "exit", "return", "thread", "killed"] {
        let command = [&*workload, how, "64"];
        let (output, report) = managed("40M", &scratch, &["-q"], &command);
        let said = String::from_utf8_lossy(&output.stderr);
        let status = if how == "killed" { 128 + 31 } else { 0 };
        assert_eq!(output.status.code(), Some(status), "{how}: {said} {report}");
        assert!(!said.contains("paging ends"), "{how}: {said}");
        assert!(report["over_limit_peak_bytes"].as_u64().unwrap() < 8 << 20, "{how}: {report}");
    }
}

#[test]
fn filters_that_kill_for_what_a_pager_does() {
    let scratch = Scratch::new("filter");
    let Some(workload) = workload_in(&scratch, "filter") else { return };
    for how in ["prctl", "seccomp", "threads", "alone", "locked"] {
        let command = [&*workload, how, "64"];
        let (output, report) = managed("40M", &scratch, &["-q"], &command);
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(2) => testkit::skip!("kernel", "no filter can be set here ({how})"),
            Some(7) => testkit::skip!("mlock", "memory cannot be locked here ({how})"),
            code => assert_eq!(code, Some(0), "{how}: {said} {report}"),
        }
        assert!(report["zswpout"].as_u64().unwrap() > 1000, "{how}: nothing was evicted: {report}");
        // Only a filter for all threads ends paging, with a message.
        let for_all = how.starts_with("threads") || how.starts_with("alone");
        assert_eq!(said.contains("seccomp filter"), for_all, "{how}: {said}");
        assert_eq!(said.contains("mlockall()"), how.starts_with("locked"), "{how}: {said}");
    }
}
