//! ps, pgrep, pkill, killall, top and systemctl show and find a managed process with evicted pages
//! as they do a bare one.

#[allow(dead_code)]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use support::{has, uzswap, workload_in, Scratch};

/// Fifteen characters: the longest name that the kernel keeps whole.
const NAME: &str = "uzswap-toolee-x";
const MARK: &str = "a-word-that-no-other-process-has";
/// Pushes strings of the arguments onto pages that are not in use.
const PADDING_BYTES: usize = 12_000;

struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    pid: String,
}

impl Running {
    fn start(mut command: Command, program: &str) -> Self {
        command.arg(program).args([MARK, &"x".repeat(PADDING_BYTES), "its last argument"]);
        command.env("TOOLS_TEST", MARK).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut running = Running { child, output, pid: String::new() };
        running.pid = running.line();
        running
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn shown(&self) -> Vec<(String, String)> {
        let pid = &*self.pid;
        let mut tools: Vec<Vec<&str>> = vec![
            vec!["ps", "-ww", "-o", "comm=", "-p", pid],
            vec!["ps", "-ww", "-o", "args=", "-p", pid],
            vec!["ps", "-ww", "-o", "user=,ni=,sid=,tty=,cls=,pri=", "-p", pid],
            vec!["ps", "eww", "-o", "args=", "-p", pid],
            vec!["pgrep", "-l", "-x", NAME],
            vec!["top", "-b", "-n", "1", "-w", "512", "-p", pid],
            vec!["top", "-b", "-n", "1", "-c", "-w", "512", "-p", pid],
        ];
        tools.retain(|tool| has(tool[0]));
        let shown = tools.into_iter().map(|tool| (tool.join(" ").replace(pid, "PID"), self.ask(&tool)));
        shown.collect()
    }

    /// Returns a tool's output without values that differ between any two processes.
    fn ask(&self, tool: &[&str]) -> String {
        let output = Command::new(tool[0]).args(&tool[1..]).env("COLUMNS", "512").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let text = match tool[0] {
            "top" => {
                let line = text.lines().find(|line| line.trim_start().starts_with(&self.pid));
                let words: Vec<&str> = line.unwrap_or_default().split_ascii_whitespace().skip(11).collect();
                words.join(" ")
            }
            _ => text,
        };
        // Omit the variables of the environment that `run` and shells set.
        let differs = ["UZSWAP_", "LD_PRELOAD=", "_="];
        let arguments = text.find("its last argument").map_or(0, |at| at + "its last argument".len());
        let (arguments, environment) = text.split_at(arguments);
        let mut words: Vec<&str> = arguments.split_ascii_whitespace().collect();
        let is_common = |word: &&str| word.contains('=') && !differs.iter().any(|own| word.starts_with(own));
        if tool.contains(&"eww") {
            let mut common: Vec<&str> = environment.split_ascii_whitespace().filter(is_common).collect();
            common.sort_unstable();
            words.extend(common);
        } else {
            words.extend(environment.split_ascii_whitespace());
        }
        words.join(" ").replace(&self.pid, "PID")
    }

    fn end(mut self) {
        self.is_told_and_ends();
    }

    fn is_told_and_ends(&mut self) {
        for (tool, answers) in [
            (&["pkill", "-USR1", "-x", NAME][..], "told"),
            (&["killall", "-USR1", NAME], "told"),
            (&["pkill", "-USR1", "-P", &self.parent(), "-f", MARK], "told"),
        ] {
            if has(tool[0]) {
                assert!(Command::new(tool[0]).args(&tool[1..]).status().unwrap().success(), "{tool:?}");
                assert_eq!(self.line(), answers, "{tool:?}");
            }
        }
        assert!(Command::new("pkill").args(["-TERM", "-x", NAME]).status().unwrap().success());
        assert_eq!(self.line(), "right");
        assert!(self.child.wait().unwrap().success());
    }

    fn parent(&self) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A surviving child would block readers of its output.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn tools_show_and_find_a_managed_process_as_a_bare_one() {
    let scratch = Scratch::new("tools");
    let Some(program) = workload_in(&scratch, "tools") else { return };
    if !has("ps") || !has("pkill") {
        return;
    }
    let named = scratch.path(NAME);
    std::fs::rename(&program, &named).unwrap();
    let named = named.to_str().unwrap();
    let bare = Running::start(Command::new("env"), named);
    let expected = bare.shown();
    assert!(expected.iter().any(|(_, text)| text.contains("its last argument")), "{expected:?}");
    assert!(expected.iter().any(|(_, text)| text.contains(&format!("TOOLS_TEST={MARK}"))), "{expected:?}");
    bare.end();
    for options in [&[][..], &["--swap", "256M"]] {
        let mut run = uzswap();
        run.args(["run", "-q", "--ram", "20M"]).args(options).arg("--");
        let managed = Running::start(run, named);
        let found = Command::new("pgrep").args(["-f", MARK]).output().unwrap();
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        assert!(found.lines().any(|line| line == managed.pid), "{found}");
        for ((tool, expected), (_, shown)) in expected.iter().zip(managed.shown()) {
            assert!(shown == *expected, "{tool}, {options:?}:\n{shown}\ninstead of\n{expected}");
        }
        managed.end();
    }
}

#[test]
fn systemctl_shows_a_managed_service_as_a_bare_one() {
    let runs = Command::new("systemctl").arg("is-system-running").output();
    let runs =
        runs.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if !["running", "degraded"].contains(&&*runs) || !has("systemd-run") {
        testkit::skip!("tool", "systemd does not run here: {runs}");
        return;
    }
    let scratch = Scratch::new("systemctl");
    let Some(program) = workload_in(&scratch, "tools") else { return };
    let unit = format!("uzswap-tools-test-{}", std::process::id());
    let mut start = Command::new("systemd-run");
    start.args(["--unit", &unit, env!("CARGO_BIN_EXE_uzswap"), "run", "-q", "--ram", "20M", "--"]);
    assert!(start.args([&program, MARK]).status().unwrap().success());
    let line = format!("{program} {MARK}");
    let is_seen = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let output =
            Command::new("systemctl").args(["status", "--full", "--no-pager", &unit]).output().unwrap();
        // The service itself, and below it the program with its own command line.
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().any(|shown| shown.ends_with(&line) && !shown.contains("uzswap run"))
    });
    let _ = Command::new("systemctl").args(["stop", &unit]).status();
    assert!(is_seen, "{line}");
}
