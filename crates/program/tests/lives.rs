//! Address spaces that outlive their processes, children that outlive their parents, and trees that
//! outlive their program. Comments on tests tell the former failure.

mod support;

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use support::{can_manage, has, uzswap, workload_in, Scratch};

const WAYS: [&[&str]; 2] = [&[], &["--swap", "256M"]];

fn workload() -> Option<&'static str> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("lives");
        workload_in(&scratch, "lives").map(|workload| (scratch, workload))
    });
    workload.as_ref().map(|(_, program)| program.as_str())
}

/// Runs a mode of the workload in these ways; returns its output and uzswap's messages.
fn run(ways: &[&[&str]], mode: &str, rounds: u32) -> Vec<(String, String)> {
    let Some(workload) = workload() else { return Vec::new() };
    let run = |options: &&[&str]| {
        let mut run = uzswap();
        run.args(["run", "-q", "--ram", "24M"]).args(*options);
        let output = run.args(["--", workload, mode, &rounds.to_string()]).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, said) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{mode} {options:?}: {printed}{said}");
        (printed, format!("{mode} {options:?}: {said}"))
    };
    ways.iter().map(run).collect()
}

fn is_right(mode: &str, rounds: u32) {
    for (printed, said) in run(&WAYS, mode, rounds) {
        assert_eq!(printed, "right\n".repeat(rounds as usize), "{said}");
    }
}

fn is_right_however_it_ends(mode: &str, hows: &[&str], rounds: u32) {
    is_right(&format!("{mode}-{}", hows[0]), rounds);
    for how in &hows[1..] {
        for (printed, said) in run(&WAYS[..1], &format!("{mode}-{how}"), rounds) {
            assert_eq!(printed, "right\n".repeat(rounds as usize), "{said}");
        }
    }
}

/// The supervisor closed the last userfaultfd, and processes that shared the memory read zeroes.
#[test]
fn a_process_that_shares_memory_outlives_its_creator() {
    is_right_however_it_ends("share", &["exit", "_exit", "group", "return", "thread"], 1);
}

/// The search for such processes came before the handlers.
#[test]
fn a_handler_of_quick_exit_makes_a_process_that_shares_memory() {
    is_right("share-quick", 1);
}

/// The same, where another thread ends the process while one waits for its vfork child.
#[test]
fn a_child_of_vfork_outlives_its_creator() {
    is_right_however_it_ends("vfork", &["_exit", "exit"], 1);
    is_right("exec-_exit", 1);
}

/// Refuses kcmp(2) in this process and its children, as container runtimes do.
fn refuse_kcmp() -> std::io::Result<()> {
    let step =
        |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: u8::from(jt == 0), k };
    let (load, equals, back) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET,
    );
    let mut steps = [
        step(load, 0, 1),
        step(equals, libc::SYS_kcmp as u32, 0),
        step(back, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 1),
        step(back, libc::SECCOMP_RET_ALLOW, 1),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program has the given length.
    let answer = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Where kcmp(2) is refused, a single vfork() made everything come in at the end.
#[test]
fn a_child_of_vfork_that_has_ended_shares_nothing() {
    use std::os::unix::process::CommandExt;
    let Some(workload) = workload() else { return };
    let scratch = Scratch::new("vforked");
    let path = scratch.path("report.json");
    let mut run = uzswap();
    run.args(["run", "-q", "--ram", "24M", "--report"]).arg(&path).args(["--", workload, "vforked", "5"]);
    // SAFETY: makes system calls alone.
    unsafe { run.pre_exec(refuse_kcmp) };
    let output = run.output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, "right\n".repeat(5), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(report["unmanaged"], serde_json::json!([]), "{report}");
    assert!(report["over_limit_peak_bytes"].as_u64().unwrap() < 8 << 20, "{report}");
}

/// A killed creator takes its store along: a process that needs a page is ended, with a message.
#[test]
fn what_a_killed_creator_took_along_is_never_zeroes() {
    for mode in ["share-kill", "share-bare", "vfork-kill", "exec-kill"] {
        for (printed, said) in run(&WAYS, mode, 1) {
            // A process that needs none of the lost pages is right.
            let is_ended = said.contains("needs a page of memory that it shared with process");
            assert_eq!(printed, if is_ended { "ended\n" } else { "right\n" }, "{mode}: {said}");
        }
    }
}

/// The parent's end took the control thread along before the child had taken over. The C library's
/// daemon() ends the parent internally, where uzswap intercepts nothing.
#[test]
fn a_parent_that_ends_at_once_leaves_its_child_everything() {
    is_right_however_it_ends("daemon", &["exit", "_exit", "group", "return", "thread", "quick"], 3);
    is_right_however_it_ends("daemon", &["libc", "bare", "kill"], 20);
}

#[test]
fn a_child_lives_once_fork_has_returned_in_its_parent() {
    for (printed, said) in run(&WAYS, "daemon-random", 60) {
        assert_eq!(printed, "right\n".repeat(60), "{said}");
    }
}

#[test]
fn handlers_fork_while_their_thread_forks() {
    is_right("handler", 1);
}

/// The connection to the control thread was one of the descriptors that another thread closed.
#[test]
fn threads_close_all_descriptors_while_others_fork() {
    is_right("closing", 1);
}

/// Half of the pages were the parent's: the child took its table for the kernel's copy.
#[test]
fn what_is_wiped_by_a_bare_call_is_zeroes_in_the_child() {
    is_right("wiped", 1);
}

/// Orphans had the supervisor for their parent.
#[test]
fn an_orphan_sees_the_parent_that_it_would_have() {
    let Some(workload) = workload() else { return };
    let bare = Command::new(workload).arg("parent").output().unwrap().stdout;
    let bare = String::from_utf8(bare).unwrap();
    for (printed, said) in run(&WAYS[..1], "parent", 1) {
        assert_eq!(printed, bare, "{said}");
    }
}

/// A child that had not said hello found no supervisor, and ended itself.
#[test]
fn young_children_outlive_the_program() {
    if !can_manage() || !has("sh") {
        return;
    }
    let Some(workload) = workload() else { return };
    let scratch = Scratch::new("young");
    for (number, script) in [
        "(sleep 0.3; sh -c 'echo hi') & exit 3".to_owned(),
        format!("{workload} double 10 > /dev/null & (exec sleep 0.2; echo) & sh -c '(echo hi) &' ; exit 3"),
        "( (sleep 0.2; echo hi) & ) & exit 3".to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        for turn in 0..5 {
            let mut run = uzswap()
                .args(["run", "-q", "--ram", "40M", "--", "sh", "-c", &script])
                .current_dir(scratch.path(""))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            // Processes that outlive the program hold the pipes.
            let (mut printed, mut said) = (String::new(), String::new());
            run.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
            run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert_eq!(run.wait().unwrap().code(), Some(3), "{number} {turn}");
            assert_eq!((printed.as_str(), said.as_str()), ("hi\n", ""), "{number} {turn}");
        }
    }
}

/// The supervisor ends with the last process of its tree.
#[test]
fn the_supervisor_lives_as_long_as_its_tree() {
    if !can_manage() || !has("sh") {
        return;
    }
    let mut run = uzswap()
        .args(["run", "-q", "--ram", "40M", "--", "sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $PPID $!"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    run.stdout.take().unwrap().read_to_string(&mut line).unwrap();
    assert!(run.wait().unwrap().success());
    let [supervisor, left] = [0, 1].map(|at| line.split_whitespace().nth(at).unwrap());
    assert!(is_alive(supervisor) && is_alive(left), "{line}");
    assert!(Command::new("kill").arg(left).status().unwrap().success());
    let give_up = Instant::now() + Duration::from_secs(60);
    while is_alive(supervisor) || is_alive(left) {
        assert!(Instant::now() < give_up, "{line}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Messages about a process that the program left behind went to /dev/null only.
#[test]
fn the_report_says_what_became_of_processes_that_outlive_the_program() {
    let Some(workload) = workload() else { return };
    let scratch = Scratch::new("late");
    let (report, elsewhere) = (scratch.path("report.json"), scratch.path("other.html"));
    let run = |script: String| {
        let mut run = uzswap();
        run.args(["run", "-q", "--ram", "24M", "--report"]).arg(&report).arg("--report").arg(&elsewhere);
        let mut run = run.args(["--", "sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut supervisor = String::new();
        run.stdout.take().unwrap().read_to_string(&mut supervisor).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(3));
        supervisor.trim().to_owned()
    };
    let ends = |supervisor: &str| {
        let give_up = Instant::now() + Duration::from_secs(120);
        while is_alive(supervisor) {
            assert!(Instant::now() < give_up, "{supervisor}");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::read_to_string(&report).unwrap()
    };
    let lost = "needs a page of memory that it shared with process";
    let late = format!("(sleep 0.3; {workload} share-kill) > /dev/null 2>&1 & echo $PPID; exit 3");
    let supervisor = run(late.clone());
    let page = std::fs::read_to_string(&elsewhere).unwrap();
    let said: serde_json::Value = serde_json::from_str(&ends(&supervisor)).unwrap();
    for key in ["failures", "said_after_end"] {
        assert!(said[key].to_string().contains(lost), "{key}: {said}");
    }
    assert_eq!((said["exit_status"].as_u64(), page.contains(lost)), (Some(3), false));
    assert!(std::fs::read_to_string(&elsewhere).unwrap().contains(lost));
    // A file that another process has written since is kept.
    let supervisor = run(late);
    std::fs::write(&report, "another run's").unwrap();
    assert_eq!(ends(&supervisor), "another run's");
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
