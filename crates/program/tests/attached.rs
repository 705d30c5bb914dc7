//! `uzswap attach`: programs that ran before get a pager, keep their bytes, and outlive it.

mod support;

use std::process::Command;

use support::group::Group;
use support::{
    as_user, can_manage, command, has, is_alive, is_root, signal, wait_until, workload_with, Ran, Scratch,
    Started, PROGRAM,
};

/// Builds a list of 80 MiB. For each line of input, prints its sum; for `fork`, a child does.
const SUMS: &str = "import os, sys\n\
    pages = [bytes([i % 251]) * 1000 for i in range(80_000)]\n\
    print(os.getpid(), flush=True)\n\
    for line in sys.stdin:\n    \
        if line == 'fork\\n':\n        \
            child = os.fork()\n        \
            if child:\n            \
                os.waitpid(child, 0)\n            \
                continue\n    \
        print(sum(page[5] + page[-1] for page in pages), flush=True)\n    \
        if line == 'fork\\n': os._exit(0)\n";
/// The sum of [`SUMS`].
const SUM: u64 = {
    let (mut sum, mut page) = (0, 0);
    while page < 80_000 {
        sum += 2 * (page % 251);
        page += 1;
    }
    sum
};

fn may_attach() -> bool {
    has("python3") && can_manage() && is_root("page processes that run already")
}

fn sums() -> Started {
    let mut program = Started::new(&mut command(&["python3", "-c", SUMS]));
    program.line();
    program
}

fn attach(pid: u32, more: &[&str]) -> Started {
    let (pid, ram) = (pid.to_string(), ["--ram", "48M"]);
    let ram = if more.contains(&"--ram") { &[] } else { &ram[..] };
    Started::new(&mut command(&[&[PROGRAM, "attach"], ram, more, &[&pid]].concat()))
}

fn resident_mib(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() >> 8
}

fn wait_until_paged(pid: u32) {
    wait_until("pages leave", || resident_mib(pid) < 70);
}

fn asserts_sum(program: &mut Started, line: &str) {
    program.tell(line);
    assert_eq!(program.line(), SUM.to_string());
}

fn children(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap()
}

fn stat_state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

/// Attached and left five times, each time another way.
#[test]
fn a_program_is_paged_and_goes_on_without_a_pager() {
    if !may_attach() {
        return;
    }
    let mut program = sums();
    let pid = program.pid();
    for round in 0..5 {
        let attached = attach(pid, &[]);
        wait_until_paged(pid);
        asserts_sum(&mut program, "again\n");
        asserts_sum(&mut program, "fork\n");
        match round % 3 {
            0 => assert!(signal(attached.pid(), libc::SIGINT)),
            1 => assert!(signal(attached.pid(), libc::SIGTERM)),
            _ => {
                Ran::of(&mut command(&[PROGRAM, "detach", &pid.to_string()])).assert_status(0);
            }
        }
        let ran = attached.end();
        ran.assert_status(0).assert_says(&["peak", "of 48 MiB"]);
        assert!(resident_mib(pid) > 80, "all pages are in");
        assert_eq!(children(pid), "", "it keeps no child of uzswap's");
        asserts_sum(&mut program, "again\n");
        asserts_sum(&mut program, "fork\n");
    }
    program.end().assert_status(0);
}

#[test]
fn a_program_ends_while_it_is_attached_to() {
    if !may_attach() {
        return;
    }
    let scratch = Scratch::new("attached");
    let report = scratch.text("report.json");
    let mut program = sums();
    let attached = attach(program.pid(), &["--report", &report]);
    wait_until_paged(program.pid());
    asserts_sum(&mut program, "fork\n");
    program.end().assert_status(0);
    let ran = attached.end().with_report(report);
    ran.assert_status(0);
    assert!(ran.number("zswpout") > 1000, "{ran}");
    assert!(ran.text("program").contains("python3"), "{ran}");
}

/// Its memory is another from then on: nothing of the one before is waited for.
#[test]
fn a_program_that_executes_another_is_paged_and_left() {
    if !may_attach() {
        return;
    }
    let script = format!(
        "import os, sys; x = bytes(30 << 20); print(1, flush=True); sys.stdin.readline(); \
        os.execvp('python3', ['python3', '-c', {SUMS:?}])"
    );
    let mut program = Started::new(&mut command(&["python3", "-c", &script]));
    program.line();
    let attached = attach(program.pid(), &[]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    program.tell("go\n");
    program.line();
    wait_until_paged(program.pid());
    asserts_sum(&mut program, "again\n");
    assert!(signal(attached.pid(), libc::SIGTERM));
    attached.end().assert_status(0);
    asserts_sum(&mut program, "again\n");
    program.end().assert_status(0);
}

/// The program does not end for its helper's sake, and its budget still holds.
#[test]
fn a_program_outlives_a_killed_supervisor() {
    if !may_attach() {
        return;
    }
    let mut program = sums();
    let mut attached = attach(program.pid(), &[]);
    wait_until_paged(program.pid());
    attached.kill();
    for line in ["again\n", "fork\n", "again\n"] {
        asserts_sum(&mut program, line);
    }
    wait_until_paged(program.pid());
    // The pager is a child of the program, which shows the same arguments.
    let agent = children(program.pid()).trim().parse().unwrap();
    for pid in [program.pid(), agent] {
        attach(pid, &[]).end().assert_status(125).assert_says(&["has a pager already"]);
    }
    program.end().assert_status(0);
}

/// It is attached to, paged and left without running, and leaves no process behind.
#[test]
fn a_stopped_program_is_paged_and_left() {
    if !may_attach() {
        return;
    }
    let mut program = sums();
    let pid = program.pid();
    signal(pid, libc::SIGSTOP);
    wait_until("it stops", || stat_state(pid) == 'T');
    let attached = attach(pid, &[]);
    wait_until_paged(pid);
    assert_eq!(stat_state(pid), 'T');
    signal(attached.pid(), libc::SIGINT);
    attached.end().assert_status(0);
    assert!(resident_mib(pid) > 80, "all pages are in");
    assert_eq!((children(pid).as_str(), stat_state(pid)), ("", 'T'));
    signal(pid, libc::SIGCONT);
    asserts_sum(&mut program, "again\n");
    program.end().assert_status(0);
}

/// Its threads keep their registers, whenever that happens.
#[test]
fn a_program_outlives_a_supervisor_that_is_killed_while_it_attaches() {
    if !may_attach() {
        return;
    }
    for round in 0..40 {
        let mut program = Started::new(&mut command(&["cat"]));
        let pid = program.pid();
        program.tell("before\n");
        program.line();
        let mut attached = attach(pid, &[]);
        // It is held for some hundred microseconds.
        while stat_state(pid) != 't' && children(pid).is_empty() && is_alive(attached.pid()) {}
        std::thread::sleep(std::time::Duration::from_micros(round * 25));
        attached.kill();
        program.tell("after\n");
        assert_eq!(program.line(), "after");
        program.end().assert_status(0);
    }
}

/// The agent must not stay in it.
#[test]
fn a_program_is_left_before_its_pager_has_begun() {
    if !may_attach() {
        return;
    }
    let mut program = Started::new(&mut command(&["cat"]));
    let pid = program.pid();
    program.tell("before\n");
    program.line();
    for round in 0..20 {
        let attached = attach(pid, &["-q"]);
        while children(pid).is_empty() && is_alive(attached.pid()) {}
        std::thread::sleep(std::time::Duration::from_micros(round * 200));
        assert!(signal(attached.pid(), libc::SIGINT));
        attached.end().assert_status(0);
        assert_eq!(children(pid), "", "it keeps no child of uzswap's");
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        assert!(!maps.contains("uzswap"), "it keeps no memory of uzswap's: {maps}");
        program.tell("again\n");
        assert_eq!(program.line(), "again");
    }
    program.end().assert_status(0);
}

/// Wants 360 MiB, and waits for a line once it has as much as it is told.
const ROWS: &str = "import sys\n\
    def mib(): return int(open('/proc/self/statm').read().split()[1]) // 256\n\
    rows, told = [], False\n\
    for n in range(1_900_000):\n    \
        rows.append((n, n * 0.5, b'row %d of many' % n))\n    \
        if not told and n % 1000 == 0 and mib() >= int(sys.argv[1]):\n        \
            told = True\n        \
            print('full', flush=True)\n        \
            sys.stdin.readline()\n\
    print(sum(row[0] for row in rows), sum(len(row[2]) for row in rows), flush=True)\n";

/// With 3 % of its cgroup's memory left: bare it is killed, attached to it finishes.
#[test]
fn a_program_with_little_memory_left_finishes() {
    const LIMIT_MIB: u64 = 256;
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if !may_attach() || swaps.lines().count() > 1 {
        return;
    }
    let Some(group) = Group::new("attached").and_then(|group| group.limited(LIMIT_MIB << 20)) else { return };
    // Some of its resident memory is files that others have, too.
    let full = (LIMIT_MIB - 2).to_string();
    let job = ["python3", "-c", ROWS, &full];
    let expected = {
        let mut whole = Started::new(&mut command(&["python3", "-c", ROWS, "100000"]));
        whole.line()
    };
    let mut bare = group.run(&job);
    assert_eq!(bare.line(), "full");
    bare.tell("go\n");
    assert_eq!(bare.next_line(), None);
    assert_eq!(bare.end().status, None, "it is killed");
    let mut program = group.run(&job);
    assert_eq!(program.line(), "full");
    let attached = attach(program.pid(), &["--ram", "200M"]);
    wait_until("pages leave", || resident_mib(program.pid()) < LIMIT_MIB - 20);
    program.tell("go\n");
    assert_eq!(program.line(), expected);
    program.end().assert_status(0);
    attached.end().assert_status(0);
}

/// The supervisor's address and its descriptors are the tree's own, as under `run`.
#[test]
fn other_processes_are_left_alone() {
    if !may_attach() {
        return;
    }
    let (mut program, mut relative) = (sums(), sums());
    let attached = attach(program.pid(), &[]);
    wait_until_paged(program.pid());
    asserts_sum(&mut relative, "again\n");
    assert!(resident_mib(relative.pid()) > 80);
    signal(attached.pid(), libc::SIGTERM);
    attached.end().assert_status(0);
    asserts_sum(&mut program, "again\n");
    assert!(is_alive(relative.pid()));
}

#[test]
fn a_process_that_cannot_be_attached_to_is_named_with_the_reason() {
    if !may_attach() {
        return;
    }
    let refused = |pid: &str, why: &str| {
        let ran = Ran::of(&mut command(&[PROGRAM, "attach", "--ram", "48M", pid]));
        ran.assert_status(125).assert_says(&[why]);
    };
    refused("999999999", "999999999");
    refused("no-number", "no-number");
    // A seccomp filter, after which nothing may be called that it does not know.
    let mut program = Started::new(Command::new("python3").args([
        "-c",
        "import ctypes, os, sys\n\
         pages = [bytes(1000) for i in range(80_000)]\n\
         libc = ctypes.CDLL(None)\n\
         libc.prctl(38, 1, 0, 0, 0)\n\
         code = ctypes.create_string_buffer(b'\\x06\\0\\0\\0\\0\\0\\xff\\x7f')\n\
         class Program(ctypes.Structure): _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_void_p)]\n\
         print(libc.prctl(22, 2, ctypes.byref(Program(1, ctypes.addressof(code))), 0, 0), flush=True)\n\
         sys.stdin.read()",
    ]));
    assert_eq!(program.line(), "0");
    refused(&program.pid().to_string(), "a seccomp filter of its own");
    program.end().assert_status(0);
    let script = format!(
        "import ctypes, sys; print(ctypes.CDLL(None).syscall({}, {}) > 2, flush=True); sys.stdin.read()",
        libc::SYS_userfaultfd,
        libc::O_CLOEXEC
    );
    let mut program = Started::new(&mut command(&["python3", "-c", &script]));
    assert_eq!(program.line(), "True");
    refused(&program.pid().to_string(), "a userfaultfd of its own");
    program.end().assert_status(0);
    // A run has its own supervisor.
    let Some(mut run) = started_run() else { return };
    let pid = run.line();
    refused(&pid, "belongs to `uzswap run`");
    run.tell("end\n");
    run.end().assert_status(0);
}

fn started_run() -> Option<Started> {
    let script = "echo $$; read line";
    can_manage()
        .then(|| Started::new(&mut command(&[PROGRAM, "run", "-q", "--ram", "48M", "bash", "-c", script])))
}

/// By the number of its `uzswap attach`, too, as a run by its `uzswap run`.
#[test]
fn an_attached_program_is_listed_and_paused() {
    if !may_attach() {
        return;
    }
    let mut program = sums();
    let attached = attach(program.pid(), &[]);
    wait_until_paged(program.pid());
    let listed = Ran::of(&mut command(&[PROGRAM, "top", "--once", "--interval", "0.05"]));
    listed.assert_status(0).assert_prints(&[&format!(" attached {} ", program.pid())]);
    let own = attached.pid().to_string();
    let paused = Ran::of(&mut command(&[PROGRAM, "pause", &own, "--", "echo", "{}"]));
    paused.assert_status(0).assert_prints(&[&format!("{}\n", program.pid())]);
    asserts_sum(&mut program, "again\n");
    program.end().assert_status(0);
    let ran = attached.end();
    ran.assert_status(0).assert_says(&["peak"]);
    assert!(!ran.said.contains("of CPU"), "the kernel tells the CPU time to the parent alone: {ran}");
}

/// It takes CAP_SYS_PTRACE, also for the user's own processes.
#[test]
fn an_ordinary_user_may_not() {
    if !may_attach() {
        return;
    }
    let public = Scratch::public("attached");
    testkit::copy_program(PROGRAM, public.path("uzswap"));
    let own = std::process::id().to_string();
    let Some(ran) = as_user(&public, &public.text("uzswap"), &["attach", "--ram", "48M", &own]) else {
        return;
    };
    ran.assert_status(125).assert_says(&["CAP_SYS_PTRACE"]);
}

/// Attaching and leaving disturb no change of the address space.
#[test]
fn a_busy_static_program_is_attached_to_again_and_again() {
    let Some(workload) = workload_with("traps", &["-static"]).filter(|_| may_attach()) else { return };
    for mode in ["churn", "threads", "remap", "fork"] {
        let program = Started::new(&mut command(&[workload, mode, "64"]));
        let pid = program.pid();
        for _ in 0..3 {
            if !is_alive(pid) {
                break;
            }
            let attached = attach(pid, &["-q"]);
            std::thread::sleep(std::time::Duration::from_millis(300));
            signal(attached.pid(), libc::SIGTERM);
            attached.end();
        }
        program.end().assert_status(0);
    }
}
