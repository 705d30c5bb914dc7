//! Address spaces that outlive their processes, children that outlive their parents, and trees that
//! outlive their program. Comments on tests tell the former failure.

mod support;

use std::process::Command;

use support::{is_alive, signal, tests, wait_until, workload, Ran, Scratch, Started, WAYS};

/// Runs a mode of the workload with each of these sets of options; returns its output and uzswap's
/// messages.
fn run(option_sets: &[&[&str]], mode: &str, rounds: u32) -> Vec<Ran> {
    let Some(workload) = workload("lives") else { return Vec::new() };
    let run = |options: &&[&str]| {
        let options = [&["-q"], *options].concat();
        let ran = Ran::of(&mut support::run("24M", &options, &[workload, mode, &rounds.to_string()]));
        ran.assert_status(0);
        ran
    };
    option_sets.iter().map(run).collect()
}

fn is_right_in(option_sets: &[&[&str]], mode: &str, rounds: u32) {
    for ran in run(option_sets, mode, rounds) {
        assert_eq!(ran.printed, "right\n".repeat(rounds as usize), "{ran}");
    }
}

fn is_right(mode: &str, rounds: u32) {
    is_right_in(&WAYS, mode, rounds);
}

fn is_right_however_it_ends(mode: &str, hows: &[&str], rounds: u32) {
    is_right(&format!("{mode}-{}", hows[0]), rounds);
    hows[1..].iter().for_each(|how| is_right_in(&WAYS[..1], &format!("{mode}-{how}"), rounds));
}

/// The agent begins only once a program is no longer young.
#[test]
fn a_program_that_changes_at_once_is_managed() {
    let Some(workload) = workload("young") else { return };
    for mode in ["plain", "leader", "fork", "exec", "rights", "limit", "threads"] {
        let Some(ran) = support::managed("24M", &["-q"], &[workload, mode]) else { return };
        ran.assert_status(0);
        assert_eq!(ran.printed, "right\n", "{mode}: {ran}");
        assert!(ran.number("zswpout") > 1000, "{mode}: {ran}");
    }
}

tests! {
    /// The supervisor closed the last userfaultfd, and processes that shared the memory read
    /// zeroes.
    fn a_process_that_shares_memory_outlives_its_creator() =
        is_right_however_it_ends("share", &["kill", "exit", "_exit", "group", "return", "thread", "bare"], 1);
    /// The search for such processes came before the handlers.
    fn a_handler_of_quick_exit_makes_a_process_that_shares_memory() = is_right("share-quick", 1);
    /// The same, where another thread ends the process while one waits for its vfork child.
    fn a_child_of_vfork_outlives_its_creator() = {
        is_right_however_it_ends("vfork", &["kill", "_exit", "exit"], 1);
        is_right_however_it_ends("exec", &["kill", "_exit"], 1)
    };
    /// The parent's end took the control thread along before the child had taken over. The C
    /// library's daemon() ends the parent internally, where uzswap intercepts nothing.
    fn a_parent_that_ends_at_once_leaves_its_child_everything() = {
        is_right_however_it_ends("daemon", &["exit", "_exit", "group", "return", "thread", "quick"], 3);
        is_right_however_it_ends("daemon", &["libc", "bare", "kill"], 10)
    };
    fn a_child_lives_once_fork_has_returned_in_its_parent() = is_right("daemon-random", 24);
    fn handlers_fork_while_their_thread_forks() = is_right("handler", 1);
    /// The connection to the control thread was one of the descriptors that another thread closed.
    fn threads_close_all_descriptors_while_others_fork() = is_right("closing", 1);
    /// Half of the pages were the parent's: the child took its table for the kernel's copy.
    fn pages_wiped_by_a_bare_call_are_zeroes_in_the_child() = is_right("wiped", 1);
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
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Where kcmp(2) is refused, a single vfork() made everything come in at the end.
#[test]
fn a_child_of_vfork_that_has_ended_shares_nothing() {
    use std::os::unix::process::CommandExt;
    let Some(workload) = workload("lives") else { return };
    let scratch = Scratch::new("vforked");
    let path = scratch.text("report.json");
    let mut run = support::run("24M", &["-q", "--report", &path], &[workload, "vforked", "5"]);
    // SAFETY: makes system calls alone.
    unsafe { run.pre_exec(refuse_kcmp) };
    let ran = Ran::of(&mut run).with_report(path);
    assert_eq!(ran.printed, "right\n".repeat(5), "{ran}");
    ran.assert_all_managed();
    assert_eq!(ran.number("brought_in"), 0, "{ran}");
}

/// What a program that needs a page is told when its agent was killed.
const LOST: &str = "needs a page, and its pager";

/// A killed agent takes the store along: a process that needs a page is ended, with a message.
#[test]
fn pages_whose_agent_was_killed_are_never_zeroes() {
    for ran in run(&WAYS, "agent-kill", 1) {
        assert_eq!((&*ran.printed, ran.said.contains(LOST)), ("ended\n", true), "{ran}");
    }
}

/// Orphans had the supervisor for their parent.
#[test]
fn an_orphan_sees_the_parent_that_it_would_have() {
    let Some(workload) = workload("lives") else { return };
    let bare = support::printed(Command::new(workload).arg("parent"));
    for ran in run(&WAYS[..1], "parent", 1) {
        assert_eq!(ran.printed, bare, "{ran}");
    }
}

/// A child that had not said hello found no supervisor, and ended itself.
#[test]
fn young_children_outlive_the_program() {
    let Some(workload) = workload("lives") else { return };
    let scratch = Scratch::new("young");
    for script in [
        "(sleep 0.3; sh -c 'echo hi') & exit 3".to_owned(),
        format!("{workload} double 10 > /dev/null & (exec sleep 0.2; echo) & sh -c '(echo hi) &' ; exit 3"),
        "( (sleep 0.2; echo hi) & ) & exit 3".to_owned(),
    ] {
        for _ in 0..5 {
            let mut run = support::run("40M", &["-q"], &["sh", "-c", &script]);
            // Processes that outlive the program hold the pipes.
            let ran = Started::new(run.current_dir(scratch.path(""))).end();
            ran.assert_status(3);
            assert_eq!((&*ran.printed, &*ran.said), ("hi\n", ""), "{ran}");
        }
    }
}

/// The supervisor ends with the last process of its tree.
#[test]
fn the_supervisor_lives_as_long_as_its_tree() {
    let script = "sleep 1000 > /dev/null 2>&1 & echo $PPID $!";
    let Some(ran) = support::managed("40M", &["-q"], &["sh", "-c", script]) else { return };
    ran.assert_status(0);
    let [supervisor, left] =
        [0, 1].map(|at| ran.printed.split_whitespace().nth(at).unwrap().parse().unwrap());
    assert!(is_alive(supervisor) && is_alive(left), "{ran}");
    signal(left, libc::SIGTERM);
    wait_until("all end", || !is_alive(supervisor) && !is_alive(left));
}

/// Messages about a process that the program left behind went to /dev/null only.
#[test]
fn the_report_names_the_fate_of_processes_that_outlive_the_program() {
    let Some(workload) = workload("lives") else { return };
    let scratch = Scratch::new("late");
    let (report, elsewhere) = (scratch.text("report.json"), scratch.text("other.html"));
    let run = |script: &str| -> u32 {
        let options = ["-q", "--report", &report, "--report", &elsewhere];
        let ran = Ran::of(&mut support::run("24M", &options, &["sh", "-c", script]));
        ran.assert_status(3);
        ran.printed.trim().parse().unwrap()
    };
    let ends = |supervisor: u32| {
        wait_until("the supervisor ends", || !is_alive(supervisor));
        std::fs::read_to_string(&report).unwrap()
    };
    let late = format!("(sleep 0.3; {workload} agent-kill) > /dev/null 2>&1 & echo $PPID; exit 3");
    let supervisor = run(&late);
    let page = std::fs::read_to_string(&elsewhere).unwrap();
    let said: serde_json::Value = serde_json::from_str(&ends(supervisor)).unwrap();
    for key in ["failures", "said_after_end"] {
        assert!(said[key].to_string().contains(LOST), "{key}: {said}");
    }
    assert_eq!((said["exit_status"].as_u64(), page.contains(LOST)), (Some(3), false));
    assert!(std::fs::read_to_string(&elsewhere).unwrap().contains(LOST));
    // A file that another process has written since is kept.
    let supervisor = run(&late);
    std::fs::write(&report, "another run's").unwrap();
    assert_eq!(ends(supervisor), "another run's");
}
