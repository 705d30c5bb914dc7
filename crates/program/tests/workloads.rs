//! Programs that are hard on their pager: they must read every byte that they wrote.

mod support;

use support::{managed, tests, Ran};
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

fn fork_in_place(compressors: &[&str]) {
    for compressor in compressors {
        let options = ["--verify", "--compressor", compressor];
        let Some(ran) = workload("fork_full", "32M", &options) else { return };
        ran.assert_status(0);
        // Where the kernel does not report forks or cannot move pages, everything comes in.
        if can_watch_forks() {
            assert_eq!(ran.number("brought_in"), 0, "{ran}");
            let peak = ran.said.split("peak_kib ").nth(1).and_then(|text| text.split_whitespace().next());
            let (peak, budget): (u64, _) = (peak.unwrap().parse().unwrap(), 32 << 20);
            assert!(peak * 1024 < budget + budget * 15 / 100 + (32 << 20), "{peak} KiB of {budget} bytes");
        }
    }
}

// What each mode does is in `tests/workloads/traps.c`.
tests! {
    fn sequential_random_and_rewritten_pages() = survives("plain", &[]);
    fn every_load_verified_with_zstd() = survives("plain", &["--verify", "--compressor", "zstd:1"]);
    fn pages_that_devices_read_and_write() = survives("direct", &[]);
    fn threads_that_write_while_pages_are_evicted() = survives("threads", &[]);
    fn forks_of_forks_have_their_own_bytes() = survives("fork", &[]);
    fn forks_under_threads_that_fault_allocate_and_unmap() = survives("fork_exec", &["--verify"]);
    fn forks_whose_child_could_have_no_pager_or_not_all_memory() = survives("fork_apart", &[]);
    fn a_fork_past_the_c_library_never_reads_zeroes() = survives_bare_forks("raw_fork", &[]);
    /// Regression: the end of another thread's bare-forked child counted as that of the awaited
    /// one.
    fn forks_of_several_threads_at_once() = survives_bare_forks("forks_at_once", &["--verify"]);
    fn discarded_unmapped_and_replaced_ranges_read_as_zeroes() = survives("discard", &[]);
    fn moved_grown_and_protected_ranges_keep_their_bytes() = survives("remap", &[]);
    fn the_kernel_reads_and_writes_evicted_memory() = survives("kernel", &[]);
    fn closing_every_descriptor_loses_nothing() = survives("close", &[]);
    fn giant_reservations_cost_nothing() = survives("sparse", &[]);
    fn huge_pages_are_split_under_their_writer() = survives("huge", &[]);
    fn locked_and_keyed_memory_and_the_heap_by_brk() = survives("locked", &[]);
    fn signal_stacks_and_thread_stacks_in_managed_memory() = survives("stacks", &[]);
    fn mappings_that_come_and_go_under_two_threads() = survives("churn", &[]);
    fn a_fork_leaves_everything_where_it_is() = fork_in_place(&["auto"]);
    /// Emulated devices are copied with the process's memory.
    fn a_fork_leaves_everything_where_it_is_with_emulated_devices() =
        fork_in_place(&["deflate-iaa:emulate", "deflate-iaa-dynamic:devices=2,queues=2,run=poll"]);
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
    assert_eq!(ran.report["processes"][0]["emulated"], true, "{ran}");
    let requests = ran.number("batches") + ran.number("decompress_batches");
    assert_eq!(
        (ran.number("emulated_batches"), ran.number("decompress_batches") > 0),
        (requests, true),
        "{ran}"
    );
    assert_eq!(ran.said.matches("emulated devices").count(), 1, "{ran}");
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
