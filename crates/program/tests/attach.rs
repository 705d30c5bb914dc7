//! A program cannot harm the supervisor while the agent is brought into its processes.

mod support;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{
    as_user, capable, is_alive, is_root, managed, run, set_mode, signal, workload_with, Ran, Scratch, Started,
};

/// The workload and a setuid root copy of it; `None` where setuid programs cannot be made.
struct Race {
    directory: Scratch,
    program: String,
    setuid: String,
}

impl Race {
    fn new() -> Option<Race> {
        let workload = workload_with("race", &["-static"]).filter(|_| is_root("make a setuid program"))?;
        let directory = Scratch::public("race");
        let (program, setuid) = (directory.text("race"), directory.text("race-setuid"));
        testkit::copy_program(workload, &program);
        testkit::copy_program(workload, &setuid);
        set_mode(&setuid, 0o4755);
        // An ordinary user becomes root by it, unless the file system forbids that.
        let tried = Ran::of(Command::new(&setuid).uid(65534).gid(65534));
        if tried.status != Some(0) {
            testkit::skip!("root", "no setuid programs here: {}", tried.said);
            return None;
        }
        Some(Race { directory, program, setuid })
    }
}

fn seconds() -> String {
    std::env::var("UZSWAP_TEST_RACE_SECONDS").unwrap_or_else(|_| "0".to_owned())
}

/// The agent reached none of the setuid programs, but the process that stayed unchanged.
fn none_is_reached(ran: &Ran) {
    ran.assert_status(0).assert_prints(&[" found 0 reached 1"]);
}

/// Root's supervisor may reach into every process, but must skip one that becomes setuid.
#[test]
fn processes_that_become_setuid_under_roots_supervisor() {
    let Some(race) = Race::new() else { return };
    let command = [&*race.program, "drive", &race.setuid, "25", &seconds()];
    let Some(ran) = managed("400M", &["-q"], &command) else { return };
    none_is_reached(&ran);
    assert!(ran.text("unmanaged").contains("race-setuid: it is setuid or setgid"), "{ran}");
}

/// The same with an ordinary user's supervisor, whose file has a capability.
#[test]
fn processes_that_become_setuid_under_a_users_supervisor() {
    let Some(race) = Race::new() else { return };
    let Some(capable) = capable(&race.directory) else { return };
    let command =
        ["run", "-q", "--ram", "400M", "--", &race.program, "drive", &race.setuid, "25", &seconds()];
    let Some(ran) = as_user(&race.directory, &capable, &command) else { return };
    none_is_reached(&ran);
}

/// The process gave up root and is not dumpable for its new user.
#[test]
fn a_process_that_hides_from_its_user_is_left_alone() {
    let Some(race) = Race::new() else { return };
    let Some(ran) = managed("400M", &["-q"], &[&race.program, "hidden"]) else { return };
    ran.assert_status(0);
    assert!(ran.text("unmanaged").contains("it may not be looked into"), "{ran}");
}

/// Reads of the process's code block for ever. The supervisor still serves the tree: it forwards a
/// signal, another static program is managed, and the run ends.
#[test]
fn a_process_that_answers_no_read_of_its_memory_delays_no_other() {
    let Some(race) = Race::new() else { return };
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
    let mut run = Started::new(&mut run("400M", &["-q"], &["bash", "-c", &script]));
    assert_eq!(run.line(), "read", "its memory is looked into");
    let begin = Instant::now();
    for _ in 0..3 {
        signal(run.pid(), libc::SIGUSR1);
        // bash handles the signal when its read returns, several times a second.
        assert_eq!(run.line(), "signalled");
    }
    run.tell("race\n");
    assert_eq!(run.line(), "rounds 0 found 0 reached 1");
    // Far above the time on a busy machine, far below a hang.
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    run.tell("end\n");
    run.end().assert_status(0);
}

/// Small static processes have no agent that would end them: the program's child, an orphan, one
/// without an environment, a stopped one. An outside process with that environment survives.
#[test]
fn a_killed_supervisors_tree_ends_and_no_other_process() {
    let Some(race) = Race::new() else { return };
    let program = &race.program;
    let script = format!(
        "echo $UZSWAP_SOCKET; echo $$; {program} wait & ({program} wait &); env -i {program} wait &
        {program} wait & sleep 1; kill -STOP $!; echo all; wait"
    );
    let mut run = Started::new(&mut run("400M", &["-q"], &["bash", "-c", &script]));
    let socket = run.line();
    let lines = std::iter::from_fn(|| run.next_line()).take_while(|line| line != "all");
    let pids: Vec<u32> = lines.map(|line| line.parse().unwrap()).collect();
    assert_eq!(pids.len(), 5, "{pids:?}");
    let mut innocent = Command::new(program);
    let mut innocent =
        innocent.arg("wait").env("UZSWAP_SOCKET", socket).stdout(Stdio::null()).spawn().unwrap();
    // The supervisor looks at least four times a second.
    std::thread::sleep(Duration::from_secs(2));
    run.kill();
    let begin = Instant::now();
    while pids.iter().any(|pid| is_alive(*pid)) && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
    let is_spared = innocent.try_wait().unwrap().is_none();
    innocent.kill().unwrap();
    innocent.wait().unwrap();
    assert!(left.is_empty() && is_spared, "left {left:?}, spared {is_spared}");
}
