//! `uzswap run --swap`: programs whose data do not fit compressed, and failing disks.

mod support;

use std::path::Path;

use support::{
    children_of, is_alive, managed, on_disk, run, tests, uzswap_with, wait_until, workload, Ran, Scratch,
    Started,
};

/// MiB of the workload's data, and its budget.
const DATA: &str = "96";
const RAM: &str = "40M";

fn assert_well(ran: &Ran) {
    ran.assert_status(0).assert_no_failure();
    assert!(ran.number("zswpwb") > 1000, "nothing went to disk: {ran}");
    assert_eq!(ran.number("swap/reads_failed"), 0, "{ran}");
}

/// Runs the workload with a swap file of this size.
fn with_swap(ram: &str, swap: &str, options: &[&str], arguments: &[&str]) -> Option<Ran> {
    let workload = workload("swap")?;
    let scratch = Scratch::new("swap");
    let directory = on_disk(&scratch)?;
    let options = [&["--swap", swap, "--swap-dir", &directory], options].concat();
    managed(ram, &options, &[&[workload], arguments].concat())
}

#[test]
fn incompressible_pages_go_to_disk_and_come_back() {
    let Some(ran) = with_swap(RAM, "512M", &[], &["plain", DATA]) else { return };
    assert_well(&ran);
    ran.assert_within_budget();
    assert!(ran.number("swap/disk_faults") > 100, "{ran}");
    assert!(ran.number("swap/disk_pages_in") >= ran.number("swap/disk_faults"));
    assert!(ran.number("swap/bytes_written") >= 4096 * ran.number("zswpwb"));
    assert!(ran.number("ram_wanted_peak_bytes") >= 96 << 20, "{ran}");
    assert!(ran.said.contains("pages to disk"), "{ran}");
}

fn goes_well(options: &[&str], modes: &[&str]) {
    for mode in modes {
        let Some(ran) = with_swap(RAM, "512M", options, &[mode, DATA]) else { return };
        assert_well(&ran);
        if *mode == "plain" {
            ran.assert_within_budget();
        }
    }
}

tests! {
    fn every_load_verified_without_encryption() =
        goes_well(&["--verify", "--swap-plain", "--compressor", "lz4"], &["plain"]);
    fn discarded_and_moved_with_pages_on_disk() = goes_well(&["--verify"], &["churn"]);
    fn parent_and_child_both_keep_pages_on_disk() = goes_well(&[], &["fork", "raw_fork", "generations"]);
    fn a_new_program_in_an_old_process_begins_with_an_empty_file() = goes_well(&[], &["exec"]);
}

#[test]
fn several_processes_at_once_share_the_file_and_its_limit() {
    let Some(ran) = with_swap("96M", "400M", &[], &["many", "256", "16"]) else { return };
    assert_well(&ran);
    assert!(ran.number("swap/used_peak_bytes") <= 400 << 20, "{ran}");
}

#[test]
fn a_swap_file_that_is_too_small_leaves_pages_in_memory_and_says_so() {
    let Some(ran) = with_swap(RAM, "16M", &[], &["plain", DATA]) else { return };
    ran.assert_status(0).assert_says(&["the swap file is full", "--swap"]);
    assert!(ran.number("swap/no_space") > 0 && ran.number("swap/used_peak_bytes") <= 16 << 20, "{ran}");
}

#[test]
fn without_a_swap_file_the_end_of_a_run_that_exceeded_its_budget_names_it() {
    let Some(workload) = workload("swap") else { return };
    let Some(ran) = managed(RAM, &[], &[workload, "plain", DATA]) else { return };
    ran.assert_status(0).assert_says(&["the budget was exceeded", "--swap SIZE"]);
    assert_eq!((&ran.report["swap"], ran.number("zswpwb")), (&serde_json::Value::Null, 0));
}

#[test]
fn a_directory_in_memory_is_refused_with_the_reason() {
    if !Path::new("/dev/shm").is_dir() {
        return testkit::skip!("disk", "no /dev/shm");
    }
    let shared = ["run", "--ram", "1G", "--swap", "1G", "--swap-dir", "/dev/shm", "--", "true"];
    uzswap_with(&shared).assert_status(125).assert_says(&["tmpfs", "/dev/shm", "in memory"]);
    let missing = ["run", "--swap", "1G", "--swap-dir", "/no/such/dir", "--", "true"];
    uzswap_with(&missing).assert_status(125).assert_says(&["/no/such/dir"]);
}

fn open_files(pid: u32, directory: &str) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with(directory)).count()
}

#[test]
fn nothing_is_left_when_anybody_is_killed() {
    let Some(workload) = workload("swap") else { return };
    let scratch = Scratch::new("swap-killed");
    let Some(directory) = on_disk(&scratch) else { return };
    let options = ["-q", "--swap", "512M", "--swap-dir", &directory];
    let mut run = Started::new(&mut run(RAM, &options, &[workload, "hold", DATA]));
    assert_eq!(run.line(), "filled");
    let supervisor = children_of(run.pid())[0];
    assert!(open_files(supervisor, &directory) > 0, "the supervisor holds the file");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "which has no name");
    let children = children_of(supervisor);
    run.kill();
    // The tree ends with its supervisor, and the file with the last process.
    wait_until("the tree ends", || {
        children.iter().all(|pid| open_files(*pid, &directory) == 0 && !is_alive(*pid))
    });
}
