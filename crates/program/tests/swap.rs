//! `uzswap run --swap`: programs whose data do not fit compressed, and failing disks.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use support::{managed, uzswap, workload_in, Scratch};

/// MiB of the workload's data, and its budget.
const DATA: &str = "96";
const RAM: &str = "40M";

fn workload() -> Option<&'static str> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("swap-workload");
        workload_in(&scratch, "swap").map(|workload| (scratch, workload))
    });
    workload.as_ref().map(|(_, program)| program.as_str())
}

/// Returns a directory for swap files on a disk; prints if there is none.
fn on_disk(scratch: &Scratch) -> Option<String> {
    let directory = scratch.path("swap");
    std::fs::create_dir_all(&directory).unwrap();
    let file = std::fs::File::open(&directory).unwrap();
    match sys::files::memory_file_system(&file).unwrap() {
        None => Some(directory.to_str().unwrap().to_owned()),
        Some(kind) => {
            testkit::skip!("disk", "{} is in memory ({kind})", directory.display());
            None
        }
    }
}

struct Ran {
    status: Option<i32>,
    said: String,
    report: serde_json::Value,
}

impl Ran {
    fn number(&self, name: &str) -> u64 {
        self.report
            .pointer(name)
            .and_then(serde_json::Value::as_u64)
            .unwrap_or_else(|| panic!("{name}: {}", self.report))
    }

    fn assert_well(&self, mode: &str) {
        assert_eq!(self.status, Some(0), "{mode}: {}", self.said);
        assert!(self.number("/zswpwb") > 1000, "{mode}: nothing went to disk: {}", self.report);
        assert_eq!(self.number("/swap/reads_failed"), 0, "{mode}");
        assert_eq!(self.report["failures"], serde_json::json!([]), "{mode}");
    }

    fn assert_within_budget(&self, mode: &str) {
        let (limit, peak) = (self.number("/ram_limit_bytes"), self.number("/ram_peak_bytes"));
        assert!(peak <= limit + limit * 3 / 100 + (8 << 20), "{mode}: {peak} of {limit}: {}", self.said);
    }
}

fn run_in(ram: &str, swap: &str, directory: &str, options: &[&str], arguments: &[&str]) -> Option<Ran> {
    let workload = workload()?;
    let scratch = Scratch::new(&format!("swap-run-{}", arguments.join("-")));
    let options = [&["--swap", swap, "--swap-dir", directory], options].concat();
    let (output, report) = managed(ram, &scratch, &options, &[&[workload], arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(Ran { status: output.status.code(), said, report })
}

fn run(options: &[&str], arguments: &[&str]) -> Option<Ran> {
    let scratch = Scratch::new(&format!("swap-{}-{}", arguments.join("-"), options.len()));
    run_in(RAM, "512M", &on_disk(&scratch)?, options, arguments)
}

#[test]
fn what_does_not_compress_goes_to_disk_and_comes_back() {
    let Some(ran) = run(&[], &["plain", DATA]) else { return };
    ran.assert_well("plain");
    ran.assert_within_budget("plain");
    assert!(ran.number("/swap/disk_faults") > 100, "{}", ran.report);
    assert!(ran.number("/swap/disk_pages_in") >= ran.number("/swap/disk_faults"));
    assert!(ran.number("/swap/bytes_written") >= 4096 * ran.number("/zswpwb"));
    assert!(ran.number("/ram_wanted_peak_bytes") >= 96 << 20, "{}", ran.report);
    assert!(ran.said.contains("pages to disk"), "{}", ran.said);
}

#[test]
fn every_load_verified_without_encryption() {
    let Some(ran) = run(&["--verify", "--swap-plain", "--compressor", "lz4"], &["plain", DATA]) else {
        return;
    };
    ran.assert_well("plain");
    ran.assert_within_budget("plain");
}

#[test]
fn discarded_and_moved_with_pages_on_disk() {
    let Some(ran) = run(&["--verify"], &["churn", DATA]) else { return };
    ran.assert_well("churn");
}

#[test]
fn parent_and_child_both_keep_what_is_on_disk() {
    for mode in ["fork", "raw_fork", "generations"] {
        let Some(ran) = run(&[], &[mode, DATA]) else { return };
        ran.assert_well(mode);
    }
}

#[test]
fn a_new_program_in_an_old_process_begins_with_an_empty_file() {
    let Some(ran) = run(&[], &["exec", DATA]) else { return };
    ran.assert_well("exec");
}

#[test]
fn several_processes_at_once_share_the_file_and_its_limit() {
    let scratch = Scratch::new("swap-many");
    let Some(directory) = on_disk(&scratch) else { return };
    let Some(ran) = run_in("96M", "400M", &directory, &[], &["many", "256", "16"]) else { return };
    ran.assert_well("many");
    assert!(ran.number("/swap/used_peak_bytes") <= 400 << 20, "{}", ran.report);
}

#[test]
fn a_swap_file_that_is_too_small_leaves_pages_in_memory_and_says_so() {
    let scratch = Scratch::new("swap-small");
    let Some(directory) = on_disk(&scratch) else { return };
    let Some(ran) = run_in(RAM, "16M", &directory, &[], &["plain", DATA]) else { return };
    assert_eq!(ran.status, Some(0), "{}", ran.said);
    assert!(
        ran.number("/swap/no_space") > 0 && ran.number("/swap/used_peak_bytes") <= 16 << 20,
        "{}",
        ran.report
    );
    assert!(ran.said.contains("the swap file is full") && ran.said.contains("--swap"), "{}", ran.said);
}

#[test]
fn without_a_swap_file_the_end_of_a_run_that_exceeded_its_budget_names_it() {
    let Some(workload) = workload() else { return };
    let scratch = Scratch::new("swap-none");
    let (output, report) = managed(RAM, &scratch, &[], &[workload, "plain", DATA]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("the budget was exceeded") && said.contains("--swap SIZE"), "{said}");
    assert_eq!((&report["swap"], &report["zswpwb"]), (&serde_json::Value::Null, &0.into()));
}

#[test]
fn a_directory_in_memory_is_refused_with_the_reason() {
    if !Path::new("/dev/shm").is_dir() {
        return testkit::skip!("disk", "no /dev/shm");
    }
    let output = uzswap()
        .args(["run", "--ram", "1G", "--swap", "1G", "--swap-dir", "/dev/shm", "--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("tmpfs") && said.contains("/dev/shm") && said.contains("in memory"), "{said}");
    let missing = ["run", "--swap", "1G", "--swap-dir", "/no/such/dir", "--", "true"];
    let output = uzswap().args(missing).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/dir"));
}

fn open_files(pid: u32, directory: &str) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with(directory)).count()
}

#[test]
fn nothing_is_left_when_anybody_is_killed() {
    let Some(workload) = workload() else { return };
    let scratch = Scratch::new("swap-killed");
    let Some(directory) = on_disk(&scratch) else { return };
    let mut run = uzswap()
        .args([
            "run",
            "-q",
            "--ram",
            RAM,
            "--swap",
            "512M",
            "--swap-dir",
            &directory,
            "--",
            workload,
            "hold",
            DATA,
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 7];
    std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(&line, b"filled\n");
    let children_of = |pid: u32| -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        text.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect()
    };
    let supervisor = children_of(run.id())[0];
    assert!(open_files(supervisor, &directory) > 0, "the supervisor holds the file");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "which has no name");
    let children = children_of(supervisor);
    Command::new("kill").args(["-9", &run.id().to_string()]).status().unwrap();
    run.wait().unwrap();
    // The tree ends with its supervisor, and the file with the last process.
    let give_up = Instant::now() + Duration::from_secs(60);
    while children.iter().any(|pid| open_files(*pid, &directory) > 0 || is_alive(*pid)) {
        assert!(Instant::now() < give_up, "a process of the tree lives on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
