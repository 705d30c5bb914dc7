//! Inspecting a managed process: `uzswap pause` and `uzswap resume`.

#[allow(dead_code)]
mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use support::{can_manage, has, uzswap, Scratch};

/// Prints its process id and an address, and the content there on request.
const SCRIPT: &str = "
import ctypes, os, sys
data = [bytes([n % 251]) * 4096 for n in range(24000)]
print(os.getpid(), id(data[7]), flush=True)
sys.stdin.readline()
print(sum(part[9] for part in data), flush=True)
sys.stdin.readline()
";

#[test]
fn a_paused_process_can_be_read_and_goes_on() {
    if !can_manage() || !has("python3") {
        return;
    }
    let mut run = uzswap();
    run.args(["run", "-q", "--ram", "50M", "--", "python3", "-c", SCRIPT]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let (pid, at) = first.split_once(' ').unwrap();
    let at: u64 = at.parse().unwrap();

    let paused = uzswap().args(["pause", pid, "--json"]).output().unwrap();
    assert!(paused.status.success(), "{}", String::from_utf8_lossy(&paused.stderr));
    assert!(String::from_utf8_lossy(&paused.stdout).contains("\"paused\":true"));
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut bytes = vec![0; 4096];
    memory.read_exact_at(&mut bytes, at + 40).expect("every page is in");
    assert!(bytes[..4000].iter().all(|byte| *byte == 7));
    if has("gdb") {
        let script = format!("x/1xb {}", at + 40);
        let gdb = Command::new("gdb").args(["-p", pid, "-batch", "-ex", &script]).output().unwrap();
        let text = String::from_utf8_lossy(&gdb.stdout).into_owned();
        assert!(text.contains("0x07"), "{text}");
    } else {
        testkit::skip!("tool", "gdb is not installed");
    }
    let resumed = uzswap().args(["resume", &child.id().to_string()]).output().unwrap();
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    assert!(String::from_utf8_lossy(&resumed.stdout).contains("resumed"));

    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"\n").unwrap();
    let expected: u64 = (0..24000u64).map(|n| n % 251).sum();
    assert_eq!(lines.next().unwrap().unwrap(), expected.to_string());
    stdin.write_all(b"\n").unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_process_that_is_not_managed_is_named() {
    let answer = uzswap().args(["pause", "1"]).output().unwrap();
    assert_eq!(answer.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&answer.stderr).contains("no managed process 1"));
}

struct Job {
    run: Child,
    program: u32,
    /// The address of 4096 bytes of value 7.
    at: u64,
    input: ChildStdin,
    _output: BufReader<ChildStdout>,
}

impl Job {
    fn start(options: &[&str]) -> Self {
        let mut run = uzswap();
        run.args(["run", "--ram", "50M"]).args(options).args(["--", "python3", "-c", SCRIPT]);
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut run = run.spawn().unwrap();
        let mut output = BufReader::new(run.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let (program, at) = line.trim_end().split_once(' ').unwrap();
        let (program, at) = (program.parse().unwrap(), at.parse::<u64>().unwrap() + 40);
        let input = run.stdin.take().unwrap();
        Job { run, program, at, input, _output: output }
    }

    fn of_uzswap(&self) -> [u32; 3] {
        let front = self.run.id();
        let children = |pid: u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            text.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<u32>>()
        };
        let supervisor = children(front)[0];
        let is_guardian = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "uzswap-guardian\n")
        };
        [front, supervisor, children(supervisor).into_iter().find(is_guardian).expect("a guardian")]
    }

    fn end(mut self) -> String {
        self.input.write_all(b"\n\n").unwrap();
        drop(self.input);
        let output = self.run.wait_with_output().unwrap();
        assert!(output.status.success());
        text(&output.stderr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn answer(arguments: &[&str]) -> Output {
    uzswap().args(arguments).output().unwrap()
}

#[test]
fn every_process_of_uzswap_s_own_means_the_program() {
    if !can_manage() || !has("python3") {
        return;
    }
    let job = Job::start(&["-q"]);
    let program = job.program.to_string();
    for pid in job.of_uzswap().map(|pid| pid.to_string()) {
        let shown = answer(&["top", "--once", "--json", "--interval", "0.05", &pid]);
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        assert_eq!((shown.as_array().unwrap().len(), &shown[0]["pid"]), (1, &job.run.id().into()), "{pid}");
        assert!(shown[0]["processes"][0]["pid"] == job.program, "{shown}");
        for (verb, says) in [("pause", "paused"), ("resume", "resumed")] {
            let done = answer(&[verb, &pid]);
            assert_eq!(
                text(&done.stdout),
                format!("{program} {says}\n"),
                "{verb} {pid}: {}",
                text(&done.stderr)
            );
        }
        let echoed = answer(&["pause", &pid, "--", "echo", "{}"]);
        assert_eq!(text(&echoed.stdout), format!("{program}\n"));
        assert!(text(&echoed.stderr).contains(&format!("taking its program, process {program} (python3)")));
    }
    let other = answer(&["top", "--once", "1"]);
    assert!(other.status.code() == Some(125) && text(&other.stderr).contains("1 is in no run"));
    job.end();
}

#[test]
fn a_command_sees_all_of_a_process_that_pages_again_after_it() {
    if !can_manage() || !has("python3") {
        return;
    }
    let job = Job::start(&["-q"]);
    let program = job.program.to_string();
    let reads = format!(
        "import sys; f = open('/proc/' + sys.argv[1] + '/mem', 'rb'); f.seek({}); sys.exit(f.read(4000) != b'\\7' * 4000)",
        job.at
    );
    let read = answer(&["pause", &job.run.id().to_string(), "--", "python3", "-c", &reads, "{}"]);
    assert_eq!(read.status.code(), Some(0), "{}", text(&read.stderr));
    for (script, status) in [("exit 7", 7), ("kill -TERM $$", 143)] {
        assert_eq!(answer(&["pause", &program, "--", "sh", "-c", script]).status.code(), Some(status));
    }
    let missing = answer(&["pause", &program, "--", "/no/such/program"]);
    assert!(missing.status.code() == Some(127) && text(&missing.stderr).contains("/no/such/program"));
    // `pause` forwards a signal to the command, and the process continues afterwards.
    let mut waits = uzswap();
    waits.args(["pause", &program, "--", "sh", "-c", "echo ready; exec sleep 60"]).stdout(Stdio::piped());
    let mut waits = waits.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(waits.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(waits.id() as i32, libc::SIGTERM) };
    assert_eq!(waits.wait().unwrap().code(), Some(143));
    if has("gdb") {
        let script = format!("x/1xb {}", job.at);
        let gdb = answer(&["pause", &program, "--", "gdb", "-p", "{}", "-batch", "-ex", &script]);
        assert!(text(&gdb.stdout).contains("0x07"), "{}{}", text(&gdb.stdout), text(&gdb.stderr));
    }
    // Processes that were paused before stay paused; otherwise all page again.
    let out = |pages: &dyn Fn(u64) -> bool| {
        let shown = answer(&["top", "--once", "--json", "--interval", "0.05", &program]);
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        pages(shown[0]["stored_pages"].as_u64().unwrap())
    };
    let waits_for = |pages: &dyn Fn(u64) -> bool| (0..200).any(|_| out(pages));
    assert!(waits_for(&|pages| pages > 5000), "pages leave again");
    answer(&["pause", &program]);
    answer(&["pause", &program, "--", "true"]);
    assert!(out(&|pages| pages == 0), "it stays paused");
    job.end();
}

#[test]
fn a_capture_says_what_it_lacks_and_has_all_of_a_paused_process() {
    if !can_manage() || !has("python3") {
        return;
    }
    let (job, scratch) = (Job::start(&["-q"]), Scratch::new("capture"));
    let pages = |name: &str| std::fs::metadata(scratch.path(name)).unwrap().len() / 4096;
    let path = |name: &str| scratch.path(name).to_str().unwrap().to_owned();
    for pid in job.of_uzswap().into_iter().chain([job.program]) {
        let captured = answer(&["pages", "capture", "--pid", &pid.to_string(), "-o", &path("part")]);
        let said = text(&captured.stderr);
        assert!(captured.status.success(), "{said}");
        assert_eq!(said.contains("taking its program"), pid != job.program, "{said}");
        assert!(said.contains(" pages of process ") && said.contains("uzswap pause"), "{said}");
        assert!((1..20000).contains(&pages("part")), "{} pages", pages("part"));
    }
    let front = job.run.id().to_string();
    let program = env!("CARGO_BIN_EXE_uzswap");
    let whole =
        answer(&["pause", &front, "--", program, "pages", "capture", "--pid", "{}", "-o", &path("whole")]);
    assert!(
        whole.status.success() && !text(&whole.stderr).contains("out of memory"),
        "{}",
        text(&whole.stderr)
    );
    assert!(pages("whole") > 20000, "{} pages", pages("whole"));
    job.end();
    // An unmanaged process is captured as it is, with a message.
    let mut other = uzswap();
    let mut other = other.args(["top", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    if Path::new(&format!("/proc/{}", other.id())).exists() {
        let own = answer(&["pages", "capture", "--pid", &other.id().to_string(), "-o", &path("own")]);
        assert!(text(&own.stderr).contains("uzswap itself"), "{}", text(&own.stderr));
    }
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn the_end_says_that_a_run_was_paused() {
    if !can_manage() || !has("python3") {
        return;
    }
    for options in [&[][..], &["--swap", "256M"]] {
        let job = Job::start(options);
        let front = job.run.id().to_string();
        assert!(answer(&["pause", &front]).status.success());
        assert!(answer(&["resume", &front]).status.success());
        let said = job.end();
        assert!(said.contains("the budget was exceeded") && said.contains("paging was paused"), "{said}");
        assert!(!said.contains("--swap"), "{said}");
    }
}
