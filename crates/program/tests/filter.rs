//! Programs whose seccomp filter permits no pager: they and their children have every byte.

mod support;

use support::{command, managed, workload, workload_with, Ran, Scratch, PROGRAM};

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
        assert_eq!(ran.number("brought_in"), 0, "the end of paging brings all pages in: {ran}");
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

/// Starts `words` under a filter of the launcher's, outside of the run or inside of it.
fn under(outside: Option<&str>, inside: &[&str]) -> Ran {
    let scratch = Scratch::new("filter-under");
    let report = scratch.text("report.json");
    let mut words: Vec<&str> = outside.map_or(vec![], |filter| vec![filter, "under"]);
    words.extend([PROGRAM, "run", "-q", "--ram", "40M", "--report", &report, "--"]);
    words.extend(inside);
    Ran::of(&mut command(&words)).with_report(report)
}

/// As in a container: all processes have had a filter from their start. Filters that the program
/// adds are told from it.
#[test]
fn a_filter_from_before_the_run_changes_nothing() {
    let Some(workload) = workload("filter") else { return };
    for how in ["probe", "prctl", "threads", "alone", "exit"] {
        let ran = under(Some(workload), &[workload, how, "64"]);
        if ran.status == Some(2) {
            return testkit::skip!("kernel", "no filter can be set here ({how})");
        }
        ran.assert_paged();
        assert_eq!(ran.said.contains("seccomp filter"), matches!(how, "threads" | "alone"), "{ran}");
        let is_named = ran.text("unmanaged").contains("seccomp filter of its own");
        // What these execute afterwards has a filter more.
        assert!(!is_named || matches!(how, "prctl" | "threads"), "{ran}");
    }
    // The supervisor injects the agent: it counts the filters.
    let Some(still) = workload_with("filter", &["-static"]) else { return };
    under(Some(workload), &[still, "prctl", "64"]).assert_paged();
}

/// The agent begins with its program, and so under a filter that an unseen launcher has set. A
/// launcher whose call is seen starts unmanaged programs, as filters may forbid what a pager needs.
#[test]
fn a_filter_that_a_launcher_sets_inside_of_the_run_binds_the_agent_too() {
    let Some(workload) = workload("filter") else { return };
    let ran = under(None, &[workload, "bare", workload, "prctl", "64"]);
    ran.assert_paged();
    let ran = under(None, &[workload, "under", workload, "work", "64"]);
    ran.assert_status(0);
    assert!(ran.text("unmanaged").contains("seccomp filter of its own"), "{ran}");
    let Some(still) = workload_with("filter", &["-static"]) else { return };
    let ran = under(None, &[workload, "bare", still, "work", "64"]);
    ran.assert_status(0);
    assert!(ran.text("unmanaged").contains("seccomp filter of its own"), "{ran}");
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
