//! Forks of programs larger than their budget, and processes stopped or killed during a fork.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{managed, uzswap, workload_in, Scratch};

const WAYS: [&[&str]; 2] = [&[], &["--swap", "256M"]];
const CANNOT: i32 = 77;
const LIMIT: Duration = Duration::from_secs(240);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(scratch: &Scratch, way: &[&str], workload: &str, mode: &[&str]) -> Option<(Output, Value)> {
    let command: Vec<&str> = std::iter::once(workload).chain(mode.iter().copied()).collect();
    let (output, report) = managed("30M", scratch, way, &command);
    if output.status.code() == Some(CANNOT) {
        testkit::skip!("kernel", "{mode:?} cannot be done here");
        return None;
    }
    let said = text(&output.stderr);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(0), "right\n"),
        "{mode:?} {way:?}: {said}"
    );
    assert!(report["zswpout"].as_u64() > Some(1000), "{mode:?} {way:?}: {report}");
    Some((output, report))
}

/// Where the kernel reports forks, no evicted page comes in.
fn leaves_everything_out(report: &Value) -> bool {
    report["brought_in"] == 0
}

/// Regression: with fewer than 256 descriptors everything came in, 60 to 115 MB over the budget.
#[test]
fn few_descriptors_are_enough_for_forks() {
    let scratch = Scratch::new("forks-few");
    let Some(workload) = workload_in(&scratch, "forks") else { return };
    for way in WAYS {
        let Some((output, report)) = run(&scratch, way, &workload, &["few", "64"]) else { return };
        assert!(leaves_everything_out(&report), "{way:?}: {report} {}", text(&output.stderr));
    }
    // Too few for a child's pager: a message says so.
    let Some((output, _)) = run(&scratch, WAYS[0], &workload, &["few", "17"]) else { return };
    let said = text(&output.stderr);
    assert!(said.contains("RLIMIT_NOFILE"), "{said}");
}

/// Regression: everything came in, since a child's pager could not open its files.
#[test]
fn children_in_a_root_directory_without_proc_leave_everything_out() {
    let scratch = Scratch::new("forks-chroot");
    let Some(workload) = workload_in(&scratch, "forks") else { return };
    let root = scratch.path("root");
    std::fs::create_dir(&root).unwrap();
    for way in WAYS {
        let mode = ["chroot", root.to_str().unwrap()];
        let Some((output, report)) = run(&scratch, way, &workload, &mode) else { return };
        assert!(leaves_everything_out(&report), "{way:?}: {report} {}", text(&output.stderr));
    }
}

/// Regression: the child returned through a frame of syscall() on the other stack: SIGSEGV.
#[test]
fn a_stack_of_its_own_is_returned_on() {
    let scratch = Scratch::new("forks-stack");
    let Some(workload) = workload_in(&scratch, "forks") else { return };
    for way in WAYS {
        run(&scratch, way, &workload, &["stack"]);
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent_of = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if parent_of == Some(parent) {
            children.push(pid);
        }
    }
    children
}

fn signal(pid: u32, signal: &str) {
    let _ = Command::new("kill").args([signal, &pid.to_string()]).stderr(Stdio::null()).status();
}

struct Storm {
    run: std::process::Child,
    rounds: mpsc::Receiver<String>,
    supervisor: u32,
}

impl Storm {
    fn begin(way: &[&str], workload: &str, rounds: &str, how: &str) -> Storm {
        let mut run = uzswap();
        run.args(["run", "-q", "--ram", "30M"]).args(way);
        let mut run = run
            .args(["--", workload, "storm", rounds, how])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = BufReader::new(run.stdout.take().unwrap());
        let (told, heard) = mpsc::channel();
        std::thread::spawn(move || printed.lines().map_while(Result::ok).all(|line| told.send(line).is_ok()));
        let mut storm = Storm { run, rounds: heard, supervisor: 0 };
        assert_eq!(storm.next().as_deref(), Some("round"));
        storm.supervisor = *children_of(storm.run.id()).first().expect("the front has a supervisor");
        storm
    }

    fn next(&mut self) -> Option<String> {
        match self.rounds.recv_timeout(LIMIT) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
        }
    }

    fn family(&self) -> (Option<u32>, Option<u32>) {
        let has_name = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "forks")
        };
        let program = children_of(self.supervisor).into_iter().find(has_name);
        (program, program.and_then(|program| children_of(program).first().copied()))
    }

    fn end(mut self) -> (ExitStatus, String) {
        let until = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.run.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "hangs");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut said = String::new();
        self.run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status, said)
    }
}

/// Parent, child and supervisor are stopped and continued at random moments: every byte is right.
#[test]
fn a_process_that_is_stopped_during_a_fork_goes_on_afterwards() {
    let scratch = Scratch::new("forks-stopped");
    let Some(workload) = workload_in(&scratch, "forks") else { return };
    for way in WAYS {
        for how in ["fork", "bare"] {
            let mut storm = Storm::begin(way, &workload, "40", how);
            for turn in 0..9 {
                let (program, child) = storm.family();
                let Some(stopped) = [program, child, Some(storm.supervisor)][turn % 3] else { continue };
                signal(stopped, "-STOP");
                std::thread::sleep(Duration::from_millis(7 * turn as u64));
                signal(stopped, "-CONT");
                std::thread::sleep(Duration::from_millis(3));
            }
            let lines: Vec<String> = std::iter::from_fn(|| storm.next()).collect();
            let (status, said) = storm.end();
            assert_eq!(
                (status.code(), lines.last().map(String::as_str)),
                (Some(0), Some("right")),
                "{how} {way:?}: {said}"
            );
        }
    }
}

/// When the supervisor is killed during a fork, its whole tree ends.
#[test]
fn a_supervisor_that_is_killed_during_a_fork_takes_its_tree_along() {
    let scratch = Scratch::new("forks-killed");
    let Some(workload) = workload_in(&scratch, "forks") else { return };
    for (turn, way) in WAYS.into_iter().cycle().take(6).enumerate() {
        let how = ["fork", "bare"][turn % 2];
        let mut storm = Storm::begin(way, &workload, "1000000", how);
        std::thread::sleep(Duration::from_millis(5 * turn as u64));
        let (program, child) = storm.family();
        signal(storm.supervisor, "-KILL");
        // The pipe closes with the last process of the tree.
        let lines: Vec<String> = std::iter::from_fn(|| storm.next()).collect();
        assert!(lines.iter().all(|line| line == "round"), "{how} {way:?}: {lines:?}");
        let (status, said) = storm.end();
        assert!(!status.success() && !said.contains("reads as"), "{how} {way:?}: {status} {said}");
        let has_name = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(&workload))
        };
        let until = Instant::now() + LIMIT;
        while program.iter().chain(&child).any(has_name) {
            assert!(Instant::now() < until, "{how} {way:?}: something is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
