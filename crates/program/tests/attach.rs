//! A program cannot harm the supervisor while the agent is brought into its processes.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{can_link_statically, can_manage, compile_with, has, managed, uzswap, Scratch};

/// The workload and a setuid root copy of it; `None` where setuid programs cannot be made.
struct Race {
    directory: PathBuf,
    program: String,
    setuid: String,
}

impl Race {
    fn new(name: &str) -> Option<Race> {
        // SAFETY: takes nothing.
        if unsafe { libc::geteuid() } != 0 {
            testkit::skip!("root", "only root can make a setuid program");
            return None;
        }
        if !can_manage() || !has("cc") || !can_link_statically(&Scratch::new("race-static")) {
            return None;
        }
        // Other users may not reach the build directory.
        let directory = std::env::temp_dir().join(format!("uzswap-race-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
        let race = Race { program: path("race"), setuid: path("race-setuid"), directory: directory.clone() };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/race.c");
        assert!(compile_with(&["-static", "-pthread"], &source, Path::new(&race.program)));
        testkit::copy_program(&race.program, &race.setuid);
        std::fs::set_permissions(&race.setuid, std::fs::Permissions::from_mode(0o4755)).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        // An ordinary user becomes root by it, unless the file system forbids that.
        let tried = Command::new(&race.setuid).uid(65534).gid(65534).output().unwrap();
        if !tried.status.success() {
            testkit::skip!("root", "no setuid programs here: {}", String::from_utf8_lossy(&tried.stderr));
            return None;
        }
        Some(race)
    }
}

impl Drop for Race {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn seconds() -> String {
    std::env::var("UZSWAP_TEST_RACE_SECONDS").unwrap_or_else(|_| "0".to_owned())
}

/// The agent reached none of the setuid programs, but the process that stayed unchanged.
fn none_is_reached(output: &std::process::Output) {
    let (said, printed) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{said}{printed}");
    assert!(printed.contains(" found 0 reached 1"), "{printed}{said}");
}

/// Root's supervisor may reach into every process, but must skip one that becomes setuid.
#[test]
fn processes_that_become_setuid_under_roots_supervisor() {
    let Some(race) = Race::new("root") else { return };
    let scratch = Scratch::new("race-root");
    let (output, report) =
        managed("400M", &scratch, &["-q"], &[&race.program, "drive", &race.setuid, "25", &seconds()]);
    none_is_reached(&output);
    let refused = report["unmanaged"].to_string();
    assert!(refused.contains("race-setuid: it is setuid or setgid"), "{report}");
}

/// The same with an ordinary user's supervisor, whose file has a capability.
#[test]
fn processes_that_become_setuid_under_a_users_supervisor() {
    let Some(race) = Race::new("user") else { return };
    let Some(capable) = support::capable(&race.directory) else { return };
    let command =
        ["run", "-q", "--ram", "400M", "--", &race.program, "drive", &race.setuid, "25", &seconds()];
    let Some(output) = support::as_user(&race.directory, &capable, &command) else { return };
    none_is_reached(&output);
}

/// The process gave up root and is not dumpable for its new user.
#[test]
fn a_process_that_hides_from_its_user_is_left_alone() {
    let Some(race) = Race::new("hidden") else { return };
    let scratch = Scratch::new("race-hidden");
    let (output, report) = managed("400M", &scratch, &["-q"], &[&race.program, "hidden"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(report["unmanaged"].to_string().contains("it may not be looked into"), "{report}");
}

/// Reads of the process's code block for ever. The supervisor still serves the tree: it forwards a
/// signal, another static program is managed, and the run ends.
#[test]
fn a_process_that_answers_no_read_of_its_memory_delays_no_other() {
    let Some(race) = Race::new("slow") else { return };
    // The driver starts a process that waits until it has an agent.
    let script = format!(
        "trap 'echo signalled' USR1; {0} slow & slow=$!
        while word=; read -t 0.2 word || [ $? -gt 128 ]; do
            case $word in
            race) {0} drive {1} 0 0 ;;
            end) kill -9 $slow; exit 0 ;;
            esac
        done",
        race.program, race.setuid
    );
    let mut run = uzswap();
    run.args(["run", "-q", "--ram", "400M", "--", "bash", "-c", &script]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "read", "its memory is looked into");
    let begin = Instant::now();
    for _ in 0..3 {
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGUSR1) };
        // bash handles the signal when its read returns, several times a second.
        assert_eq!(lines.next().unwrap(), "signalled");
    }
    std::io::Write::write_all(&mut input, b"race\n").unwrap();
    assert_eq!(lines.next().unwrap(), "rounds 0 found 0 reached 1");
    // Far above the time on a busy machine, far below a hang.
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    std::io::Write::write_all(&mut input, b"end\n").unwrap();
    assert!(child.wait().unwrap().success());
}

/// Small static processes have no agent that would end them: the program's child, an orphan, one
/// without an environment, a stopped one. An outside process with that environment survives.
#[test]
fn a_killed_supervisors_tree_ends_and_no_other_process() {
    let Some(race) = Race::new("killed") else { return };
    let program = &race.program;
    let script = format!(
        "echo $UZSWAP_SOCKET; echo $$; {program} wait & ({program} wait &); env -i {program} wait &
        {program} wait & sleep 1; kill -STOP $!; echo all; wait"
    );
    let mut run = uzswap();
    run.args(["run", "-q", "--ram", "400M", "--", "bash", "-c", &script]).stdout(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let socket = lines.next().unwrap();
    let pids: Vec<String> = lines.take_while(|line| line != "all").collect();
    assert_eq!(pids.len(), 5, "{pids:?}");
    let mut innocent = Command::new(program);
    let mut innocent =
        innocent.arg("wait").env("UZSWAP_SOCKET", socket).stdout(Stdio::null()).spawn().unwrap();
    // The supervisor looks at least four times a second.
    std::thread::sleep(Duration::from_secs(2));
    child.kill().unwrap();
    child.wait().unwrap();
    let lives = |pid: &&String| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|text| !text.contains(") Z "))
    };
    let begin = Instant::now();
    while pids.iter().any(|pid| lives(&pid)) && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left: Vec<_> = pids.iter().filter(lives).collect();
    let is_spared = innocent.try_wait().unwrap().is_none();
    innocent.kill().unwrap();
    innocent.wait().unwrap();
    assert!(left.is_empty() && is_spared, "left {left:?}, spared {is_spared}");
}
