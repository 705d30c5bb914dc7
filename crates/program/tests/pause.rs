//! Inspecting a managed process: `uzswap pause` and `uzswap resume`.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;
use support::{
    can_manage, children_named, children_of, command, has, run, signal, uzswap, uzswap_with, Ran, Scratch,
    Started, PROGRAM,
};

/// Prints its process id and an address, and the content there on request.
const SCRIPT: &str = "
import ctypes, os, sys
data = [bytes([n % 251]) * 4096 for n in range(24000)]
print(os.getpid(), id(data[7]), flush=True)
sys.stdin.readline()
print(sum(part[9] for part in data), flush=True)
sys.stdin.readline()
";

struct Job {
    run: Started,
    front: String,
    program: String,
    /// The address of 4096 bytes of value 7.
    at: u64,
}

impl Job {
    fn start(options: &[&str]) -> Option<Self> {
        if !can_manage() || !has("python3") {
            return None;
        }
        let mut run = Started::new(&mut run("50M", options, &["python3", "-c", SCRIPT]));
        let line = run.line();
        let (program, at) = line.split_once(' ').unwrap();
        let (front, at) = (run.pid().to_string(), at.parse::<u64>().unwrap() + 40);
        Some(Job { run, front, program: program.to_owned(), at })
    }

    fn of_uzswap(&self) -> [String; 3] {
        let front = self.run.pid();
        let supervisor = children_of(front)[0];
        [front, supervisor, children_named(supervisor, "uzswap-guardian")[0]].map(|pid| pid.to_string())
    }

    fn top(&self, pid: &str) -> Value {
        uzswap_with(&["top", "--once", "--json", "--interval", "0.05", pid]).json()
    }

    /// The sum of its bytes is right, and it ends.
    fn end(mut self) -> Ran {
        self.run.tell("\n\n");
        let ran = self.run.end();
        let expected: u64 = (0..24000u64).map(|n| n % 251).sum();
        ran.assert_status(0);
        assert_eq!(ran.printed, format!("{expected}\n"));
        ran
    }
}

#[test]
fn a_paused_process_can_be_read_and_continues() {
    let Some(job) = Job::start(&["-q"]) else { return };
    uzswap_with(&["pause", &job.program, "--json"]).assert_status(0).assert_prints(&["\"paused\":true"]);
    let memory = File::open(format!("/proc/{}/mem", job.program)).unwrap();
    let mut bytes = vec![0; 4000];
    memory.read_exact_at(&mut bytes, job.at).expect("every page is in");
    assert!(bytes.iter().all(|byte| *byte == 7));
    if has("gdb") {
        let script = format!("x/1xb {}", job.at);
        Ran::of(&mut command(&["gdb", "-p", &job.program, "-batch", "-ex", &script]))
            .assert_prints(&["0x07"]);
    }
    uzswap_with(&["resume", &job.front]).assert_status(0).assert_prints(&["resumed"]);
    job.end();
}

#[test]
fn a_process_that_is_not_managed_is_named() {
    uzswap_with(&["pause", "1"]).assert_status(125).assert_says(&["no managed process 1"]);
}

#[test]
fn every_process_of_uzswap_s_own_means_the_program() {
    let Some(job) = Job::start(&["-q"]) else { return };
    let program = &job.program;
    for pid in job.of_uzswap() {
        let shown = job.top(&pid);
        assert_eq!((shown.as_array().unwrap().len(), &shown[0]["pid"]), (1, &job.run.pid().into()), "{pid}");
        assert_eq!(shown[0]["processes"][0]["pid"].to_string(), *program, "{shown}");
        for (verb, says) in [("pause", "paused"), ("resume", "resumed")] {
            let done = uzswap_with(&[verb, &pid]);
            assert_eq!(done.printed, format!("{program} {says}\n"), "{done}");
        }
        let echoed = uzswap_with(&["pause", &pid, "--", "echo", "{}"]);
        assert_eq!(echoed.printed, format!("{program}\n"));
        echoed.assert_says(&[&format!("taking its program, process {program} (python3)")]);
    }
    uzswap_with(&["top", "--once", "1"]).assert_status(125).assert_says(&["1 is in no run"]);
    job.end();
}

#[test]
fn a_command_sees_all_of_a_process_that_pages_again_after_it() {
    let Some(job) = Job::start(&["-q"]) else { return };
    let program = &*job.program;
    let reads = format!(
        "import sys; f = open('/proc/' + sys.argv[1] + '/mem', 'rb'); f.seek({}); sys.exit(f.read(4000) != b'\\7' * 4000)",
        job.at
    );
    uzswap_with(&["pause", &job.front, "--", "python3", "-c", &reads, "{}"]).assert_status(0);
    for (script, status) in [("exit 7", 7), ("kill -TERM $$", 143)] {
        uzswap_with(&["pause", program, "--", "sh", "-c", script]).assert_status(status);
    }
    let missing = uzswap_with(&["pause", program, "--", "/no/such/program"]);
    missing.assert_status(127).assert_says(&["/no/such/program"]);
    // `pause` forwards a signal to the command, and the process continues afterwards.
    let script = "echo ready; exec sleep 60";
    let mut waits = Started::new(uzswap().args(["pause", program, "--", "sh", "-c", script]));
    assert_eq!(waits.line(), "ready");
    signal(waits.pid(), libc::SIGTERM);
    waits.end().assert_status(143);
    if has("gdb") {
        let script = format!("x/1xb {}", job.at);
        uzswap_with(&["pause", program, "--", "gdb", "-p", "{}", "-batch", "-ex", &script])
            .assert_prints(&["0x07"]);
    }
    // Processes that were paused before stay paused; otherwise all page again.
    let out = || job.top(program)[0]["stored_pages"].as_u64().unwrap();
    assert!((0..200).any(|_| out() > 5000), "pages leave again");
    uzswap_with(&["pause", program]);
    uzswap_with(&["pause", program, "--", "true"]);
    assert_eq!(out(), 0, "it stays paused");
    job.end();
}

#[test]
fn a_capture_names_missing_pages_and_has_all_of_a_paused_process() {
    let Some(job) = Job::start(&["-q"]) else { return };
    let scratch = Scratch::new("capture");
    let pages = |name: &str| std::fs::metadata(scratch.path(name)).unwrap().len() / 4096;
    for pid in job.of_uzswap().into_iter().chain([job.program.clone()]) {
        let captured = uzswap_with(&["pages", "capture", "--pid", &pid, "-o", &scratch.text("part")]);
        assert_eq!(captured.said.contains("taking its program"), pid != job.program, "{captured}");
        captured.assert_status(0).assert_says(&[" pages of process ", "uzswap pause"]);
        assert!((1..20000).contains(&pages("part")), "{} pages", pages("part"));
    }
    let capture = [PROGRAM, "pages", "capture", "--pid", "{}", "-o", &scratch.text("whole")];
    let whole = uzswap_with(&[&["pause", &job.front, "--"], &capture[..]].concat());
    whole.assert_status(0);
    assert!(!whole.said.contains("out of memory"), "{whole}");
    assert!(pages("whole") > 20000, "{} pages", pages("whole"));
    job.end();
    // An unmanaged process is captured as it is, with a message.
    let mut other = Started::new(uzswap().args(["top", "--json"]));
    other.next_line();
    let pid = other.pid().to_string();
    if Path::new("/proc").join(&pid).exists() {
        uzswap_with(&["pages", "capture", "--pid", &pid, "-o", &scratch.text("own")])
            .assert_says(&["uzswap itself"]);
    }
}

#[test]
fn the_end_says_that_a_run_was_paused() {
    for options in support::WAYS {
        let Some(job) = Job::start(options) else { return };
        uzswap_with(&["pause", &job.front]).assert_status(0);
        uzswap_with(&["resume", &job.front]).assert_status(0);
        let ran = job.end();
        ran.assert_says(&["the budget was exceeded", "paging was paused"]);
        assert!(!ran.said.contains("--swap"), "{ran}");
    }
}
