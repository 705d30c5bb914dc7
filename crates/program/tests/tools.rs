//! ps, pgrep, pkill, killall, top and systemctl show and find a managed process with evicted pages
//! as they do a bare one.

mod support;

use std::process::Command;

use support::{command, has, printed, run, workload, Ran, Scratch, Started, PROGRAM, WAYS};

/// Fifteen characters: the longest name that the kernel keeps whole.
const NAME: &str = "uzswap-toolee-x";
const MARK: &str = "a-word-that-no-other-process-has";
/// Pushes strings of the arguments onto pages that are not in use.
const PADDING_BYTES: usize = 12_000;

struct Running {
    started: Started,
    pid: String,
}

impl Running {
    fn start(mut command: Command) -> Self {
        command.args([MARK, &"x".repeat(PADDING_BYTES), "its last argument"]);
        let mut started = Started::new(command.env("TOOLS_TEST", MARK));
        let pid = started.line();
        Running { started, pid }
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
        let text = Ran::of(command(tool).env("COLUMNS", "512")).printed;
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

    fn assert_told_and_end(mut self) {
        for (tool, expected) in [
            (&["pkill", "-USR1", "-x", NAME][..], "told"),
            (&["killall", "-USR1", NAME], "told"),
            (&["pkill", "-USR1", "-P", &self.parent(), "-f", MARK], "told"),
        ] {
            if has(tool[0]) {
                printed(&mut command(tool));
                assert_eq!(self.started.line(), expected, "{tool:?}");
            }
        }
        printed(&mut command(&["pkill", "-TERM", "-x", NAME]));
        assert_eq!(self.started.line(), "right");
        self.started.end().assert_status(0);
    }

    fn parent(&self) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().to_owned()
    }
}

#[test]
fn tools_show_and_find_a_managed_process_as_a_bare_one() {
    let Some(program) = workload("tools").filter(|_| has("ps") && has("pkill")) else { return };
    let scratch = Scratch::new("tools");
    let named = &scratch.text(NAME);
    testkit::copy_program(program, named);
    let bare = Running::start(command(&["env", named]));
    let expected = bare.shown();
    assert!(expected.iter().any(|(_, text)| text.contains("its last argument")), "{expected:?}");
    assert!(expected.iter().any(|(_, text)| text.contains(&format!("TOOLS_TEST={MARK}"))), "{expected:?}");
    bare.assert_told_and_end();
    for way in WAYS {
        let managed = Running::start(run("20M", &[&["-q"], way].concat(), &[named]));
        let found = printed(&mut command(&["pgrep", "-f", MARK]));
        assert!(found.lines().any(|line| line == managed.pid), "{found}");
        for ((tool, expected), (_, shown)) in expected.iter().zip(managed.shown()) {
            assert!(shown == *expected, "{tool}, {way:?}:\n{shown}\ninstead of\n{expected}");
        }
        managed.assert_told_and_end();
    }
}

#[test]
fn systemctl_shows_a_managed_service_as_a_bare_one() {
    let runs = Command::new("systemctl").arg("is-system-running").output();
    let runs = runs.map_or_else(|_| Vec::new(), |output| output.stdout);
    if ![&b"running\n"[..], b"degraded\n"].contains(&&*runs) || !has("systemd-run") {
        return testkit::skip!("tool", "systemd does not run here");
    }
    let Some(program) = workload("tools") else { return };
    let unit = format!("uzswap-tools-test-{}", std::process::id());
    let start = ["systemd-run", "--unit", &unit, PROGRAM, "run", "-q", "--ram", "20M", "--", program, MARK];
    printed(&mut command(&start));
    let line = format!("{program} {MARK}");
    let is_seen = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let status = ["systemctl", "status", "--full", "--no-pager", &unit];
        // The service itself, and below it the program with its own command line.
        let text = Ran::of(&mut command(&status)).printed;
        text.lines().any(|shown| shown.ends_with(&line) && !shown.contains("uzswap run"))
    });
    let _ = Command::new("systemctl").args(["stop", &unit]).status();
    assert!(is_seen, "{line}");
}
