//! Programs that are hard on their pager: they must read every byte that they wrote.

mod support;

use support::{managed, Ran};
use sys::capabilities;

/// Runs one mode of the workload over 64 MiB.
fn workload(mode: &str, ram: &str, options: &[&str]) -> Option<Ran> {
    managed(ram, options, &[support::workload("traps")?, mode, "64"])
}

fn can_watch_forks() -> bool {
    capabilities::has(capabilities::SYS_PTRACE)
}

/// As [`survives`], for modes that fork without the C library.
fn survives_bare_forks(mode: &str, options: &[&str]) {
    match can_watch_forks() {
        true => survives(mode, options),
        false => testkit::skip!("capability", "no CAP_SYS_PTRACE: forks past the C library are not reported"),
    }
}

fn survives(mode: &str, options: &[&str]) {
    let Some(ran) = workload(mode, "40M", options) else { return };
    ran.assert_paged();
}

/// What each mode does is in `tests/workloads/traps.c`.
#[test]
fn every_byte_is_what_was_written() {
    for mode in [
        "plain",
        "direct",
        "threads",
        "fork",
        "fork_apart",
        "discard",
        "remap",
        "kernel",
        "close",
        "sparse",
        "huge",
        "locked",
        "stacks",
        "churn",
    ] {
        survives(mode, &[]);
    }
    survives("plain", &["--verify", "--compressor", "zstd:1"]);
    survives("fork_exec", &["--verify"]);
}

#[test]
fn pages_read_in_descending_order_come_in_runs_too() {
    let [Some(forward), Some(backward)] = ["forward", "backward"].map(|mode| workload(mode, "40M", &[]))
    else {
        return;
    };
    let [(up, pages), (down, _)] = [forward, backward].map(|ran| {
        ran.assert_status(0);
        (ran.number("faults"), ran.number("zswpin"))
    });
    // Without streams that descend each page is a fault: 87,613 of them, and 1,286 upwards.
    assert!(pages > 10_000 && down < 3 * up.max(pages / 64), "{down} faults downwards, {up} upwards");
}

#[test]
fn emulated_accelerators_also_when_they_fail() {
    let with = |name| ["--verify", "--compressor", name];
    survives("fork", &with("deflate-iaa-dynamic:generation=2"));
    // A hundred or more lost completions, page faults and hardware errors.
    survives("threads", &with("deflate-iaa:faults=lost:.001/page:.1/hardware:.01,patience_ms=2"));
    let Some(ran) = workload("plain", "40M", &with("deflate-iaa:emulate")) else { return };
    ran.assert_paged();
    assert_eq!(ran.report["emulated"], true, "{ran}");
    assert_eq!(ran.said.matches("emulated devices").count(), 1, "{ran}");
}

#[test]
fn a_fork_leaves_everything_where_it_is() {
    fork_in_place("auto");
}

/// Emulated devices are copied with the process's memory.
#[test]
fn a_fork_leaves_everything_where_it_is_with_emulated_devices() {
    fork_in_place("deflate-iaa:emulate");
    fork_in_place("deflate-iaa-dynamic:devices=2,queues=2,run=poll");
}

fn fork_in_place(compressor: &str) {
    let options = ["--verify", "--compressor", compressor];
    let Some(ran) = workload("fork_full", "32M", &options) else { return };
    ran.assert_status(0);
    let budget = 32 << 20;
    // Where the kernel does not report forks or cannot move pages, everything comes in.
    if can_watch_forks() {
        assert_eq!(ran.number("brought_in"), 0, "{ran}");
        let peak = ran.said.split("peak_kib ").nth(1).and_then(|text| text.split_ascii_whitespace().next());
        let peak: u64 = peak.unwrap().parse().unwrap();
        assert!(peak * 1024 < budget + budget * 15 / 100 + (32 << 20), "{peak} KiB of {budget} bytes");
    }
}

#[test]
fn a_fork_past_the_c_library_never_reads_zeroes() {
    survives_bare_forks("raw_fork", &[]);
}

/// Regression: the end of another thread's bare-forked child counted as that of the awaited one.
#[test]
fn forks_of_several_threads_at_once() {
    survives_bare_forks("forks_at_once", &["--verify"]);
}

#[test]
fn own_handlers_for_segv_and_bus_still_work() {
    let Some(ran) = workload("segv", "40M", &[]) else { return };
    ran.assert_status(42);
}

#[test]
fn random_data_exceeds_the_budget_and_is_said_so() {
    let Some(ran) = workload("random", "32M", &[]) else { return };
    ran.assert_status(0).assert_says(&["the budget was exceeded by up to"]);
    assert!(ran.number("reject_compress_poor") > 0, "{ran}");
}
