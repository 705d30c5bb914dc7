//! Programs that are hard on their pager: they must read every byte that they wrote.

mod support;

use std::sync::OnceLock;

use support::{managed, workload_in, Scratch};
use sys::capabilities;

/// Runs one mode of the workload over 64 MiB in 40 MiB; returns its exit status, output and report.
fn workload(mode: &str, ram: &str, options: &[&str]) -> Option<(Option<i32>, String, serde_json::Value)> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("workload");
        workload_in(&scratch, "traps").map(|workload| (scratch, workload))
    });
    let (_, program) = workload.as_ref()?;
    let scratch = Scratch::new(&format!("{mode}-{}", options.len()));
    let (output, report) = managed(ram, &scratch, options, &[program, mode, "64"]);
    Some((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned(), report))
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
    let Some((status, said, report)) = workload(mode, "40M", options) else { return };
    assert_eq!(status, Some(0), "{mode}: {said}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{mode}: nothing was evicted: {report}");
}

#[test]
fn sequential_random_and_rewritten_pages() {
    survives("plain", &[]);
}

#[test]
fn pages_read_in_descending_order_come_in_runs_too() {
    let [Some(forward), Some(backward)] = ["forward", "backward"].map(|mode| workload(mode, "40M", &[]))
    else {
        return;
    };
    let [(up, pages), (down, _)] = [forward, backward].map(|(status, said, report)| {
        assert_eq!(status, Some(0), "{said}");
        (report["faults"].as_u64().unwrap(), report["zswpin"].as_u64().unwrap())
    });
    // Without streams that descend each page is a fault: 87,613 of them, and 1,286 upwards.
    assert!(pages > 10_000 && down < 3 * up.max(pages / 64), "{down} faults downwards, {up} upwards");
}

#[test]
fn every_load_verified_with_zstd() {
    survives("plain", &["--verify", "--compressor", "zstd:1"]);
}

#[test]
fn emulated_accelerators_also_when_they_fail() {
    let with = |name| ["--verify", "--compressor", name];
    survives("fork", &with("deflate-iaa-dynamic:generation=2"));
    // A hundred or more lost completions, page faults and hardware errors.
    survives("threads", &with("deflate-iaa:faults=lost:.001/page:.1/hardware:.01,patience_ms=2"));
    let Some((status, said, report)) = workload("plain", "40M", &with("deflate-iaa:emulate")) else { return };
    assert_eq!((status, &report["emulated"]), (Some(0), &true.into()), "{said}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "nothing was evicted: {report}");
    assert_eq!(said.matches("emulated devices").count(), 1, "{said}");
}

#[test]
fn pages_that_devices_read_and_write() {
    survives("direct", &[]);
}

#[test]
fn threads_that_write_while_pages_are_evicted() {
    survives("threads", &[]);
}

#[test]
fn forks_of_forks_have_their_own_bytes() {
    survives("fork", &[]);
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
    let Some((status, said, report)) = workload("fork_full", "32M", &options) else { return };
    assert_eq!(status, Some(0), "{said}");
    let budget = 32 << 20;
    let brought = report["brought_in"].as_u64().unwrap() * 4096;
    // Where the kernel does not report forks or cannot move pages, everything comes in.
    if can_watch_forks() {
        assert_eq!(brought, 0, "{report}");
        let peak: u64 = said
            .split("peak_kib ")
            .nth(1)
            .and_then(|text| text.split_ascii_whitespace().next())
            .and_then(|number| number.parse().ok())
            .unwrap();
        assert!(peak * 1024 < budget + budget * 15 / 100 + (32 << 20), "{peak} KiB of {budget} bytes");
    }
}

#[test]
fn forks_under_threads_that_fault_allocate_and_unmap() {
    survives("fork_exec", &["--verify"]);
}

#[test]
fn forks_whose_child_could_have_no_pager_or_not_all_memory() {
    survives("fork_apart", &[]);
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
fn discarded_unmapped_and_replaced_ranges_read_as_zeroes() {
    survives("discard", &[]);
}

#[test]
fn moved_grown_and_protected_ranges_keep_their_bytes() {
    survives("remap", &[]);
}

#[test]
fn the_kernel_reads_and_writes_evicted_memory() {
    survives("kernel", &[]);
}

#[test]
fn closing_every_descriptor_loses_nothing() {
    survives("close", &[]);
}

#[test]
fn giant_reservations_cost_nothing() {
    survives("sparse", &[]);
}

#[test]
fn huge_pages_are_split_under_their_writer() {
    survives("huge", &[]);
}

#[test]
fn locked_and_keyed_memory_and_the_heap_by_brk() {
    survives("locked", &[]);
}

#[test]
fn signal_stacks_and_thread_stacks_in_managed_memory() {
    survives("stacks", &[]);
}

#[test]
fn mappings_that_come_and_go_under_two_threads() {
    survives("churn", &[]);
}

#[test]
fn own_handlers_for_segv_and_bus_still_work() {
    let Some((status, said, _)) = workload("segv", "40M", &[]) else { return };
    assert_eq!(status, Some(42), "{said}");
}

#[test]
fn random_data_exceeds_the_budget_and_is_said_so() {
    let Some((status, said, report)) = workload("random", "32M", &[]) else { return };
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("the budget was exceeded by up to"), "{said}");
    assert!(report["reject_compress_poor"].as_u64().unwrap() > 0, "{report}");
}
