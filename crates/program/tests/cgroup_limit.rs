//! The cgroup memory limit that programs read: runtimes size their heaps by it.

mod support;

use std::fs::read_to_string;
use std::path::PathBuf;

use support::{can_manage, has, managed, run, workload, Ran, Scratch};

const MIB: u64 = 1 << 20;

/// The file of this process's own limit and its content; `None` without cgroups.
fn own_limit() -> Option<(PathBuf, String)> {
    let Some(path) = support::own_limit() else {
        testkit::skip!("cgroup", "there is no control group for memory");
        return None;
    };
    let text = read_to_string(&path).unwrap_or_default().trim().to_owned();
    Some((path, text))
}

#[test]
fn every_reader_sees_the_limit() {
    let Some((path, real)) = own_limit() else { return };
    let Some(program) = workload("limit") else { return };
    let run = |options: &[&str]| {
        let scratch = Scratch::new("limit");
        let mut run = run("32M", &[&["-q"], options].concat(), &[program, path.to_str().unwrap()]);
        support::printed(run.current_dir(scratch.path("")))
    };
    let lines = |limit: &str| {
        format!(
            "open {limit}\nopen64 {limit} cloexec\nopenat {limit} cloexec\nopenat64 {limit}\nfopen {limit}\n\
             fopen64 {limit}\nmade 640\n"
        )
    };
    if real.parse::<u64>().is_ok_and(|limit| limit <= 16 * 32 * MIB) {
        testkit::skip!("cgroup", "the limit here is {real}");
    } else {
        assert_eq!(run(&[]), lines(&(16 * 32 * MIB).to_string()));
        assert_eq!(run(&["--cgroup-limit", "100M"]), lines(&(100 * MIB).to_string()));
    }
    if real.parse::<u64>().is_ok() {
        assert_eq!(run(&["--cgroup-limit", "real"]), lines(&real));
    }
}

/// DuckDB limits its memory to 80 % of the cgroup's limit. With the limit that other programs read
/// it would never spill.
#[test]
fn a_database_that_spills_reads_the_budget() {
    let Some((path, real)) = own_limit() else { return };
    let Some(program) = workload("limit") else { return };
    if !can_manage() || real.parse::<u64>().is_ok_and(|limit| limit <= 16 * 32 * MIB) {
        return;
    }
    let shown = |options: &[&str]| {
        let scratch = Scratch::new("spilling");
        let database = scratch.text("duckdb");
        testkit::copy_program(program, &database);
        let command = [&database, path.to_str().unwrap()];
        let mut run = run("32M", &[&["-q"], options].concat(), &command);
        support::printed(run.current_dir(scratch.path(""))).lines().next().unwrap().to_owned()
    };
    assert_eq!(shown(&[]), format!("open {}", 32 * MIB));
    assert_eq!(shown(&["--cgroup-limit", "100M"]), format!("open {}", 100 * MIB));
}

#[test]
fn a_thread_that_opens_can_be_cancelled() {
    let Some(program) = workload("limit") else { return };
    let scratch = Scratch::new("cancelled");
    for way in ["open", "fopen", "system"] {
        let Some(ran) = managed("32M", &["-q"], &[program, &scratch.text(way), way]) else { return };
        ran.assert_status(0);
        assert_eq!(ran.printed, "cancelled\n", "{ran}");
    }
}

/// Other groups show their actual limits: managers of groups need them.
#[test]
fn it_is_shown_for_the_own_group_alone() {
    let Some((path, _)) = own_limit() else { return };
    if !can_manage() {
        return;
    }
    let other = path.parent().unwrap().join(format!("uzswap-test-{}", std::process::id()));
    if std::fs::create_dir(&other).is_err() {
        return testkit::skip!("cgroup", "no control group can be made");
    }
    let file = other.join(path.file_name().unwrap());
    let bare = read_to_string(&file);
    let limit = |options: &[&str], command: &[&str]| -> Ran {
        managed("32M", &[&["-q"], options].concat(), command).expect("it can be managed")
    };
    let name = file.to_str().unwrap();
    let there = limit(&[], &["cat", name]);
    let script = format!("echo $$ > {}/cgroup.procs && cat {name}", other.display());
    let inside = limit(&[], &["sh", "-c", &script]);
    // A lower limit stays, unless the user asked for another.
    let can_lower = std::fs::write(&file, "67108864").is_ok();
    let lower = limit(&[], &["sh", "-c", &script]);
    let asked = limit(&["--cgroup-limit", "100M"], &["sh", "-c", &script]);
    std::fs::remove_dir(&other).unwrap();
    let Ok(bare) = bare else {
        return testkit::skip!("cgroup", "groups have no memory limit here");
    };
    let shows = |ran: &Ran, limit: u64| {
        assert_eq!(ran.assert_status(0).printed.trim(), limit.to_string(), "{ran}");
    };
    assert_eq!(there.assert_status(0).printed, bare);
    shows(&inside, 16 * 32 * MIB);
    assert_eq!(inside.number("cgroup_limit_bytes"), 16 * 32 * MIB);
    if can_lower {
        shows(&lower, 64 * MIB);
        shows(&asked, 100 * MIB);
    }
}

/// A limit that cannot be raised above the value that Node and HotSpot believe.
#[test]
fn runtimes_believe_it() {
    let Some((_, real)) = own_limit() else { return };
    if !can_manage() || real.parse::<u64>().is_ok_and(|limit| limit <= 16 * 64 * MIB) {
        return;
    }
    let ask = |command: &[&str], options: &[&str]| {
        support::printed(&mut run("64M", &[&["-q"], options].concat(), command))
    };
    if has("node") {
        let script = "console.log(v8.getHeapStatistics().heap_size_limit)";
        let limit = |options: &[&str]| ask(&["node", "-e", script], options).trim().parse::<u64>().unwrap();
        let (shown, real) = (limit(&[]), limit(&["--cgroup-limit", "real"]));
        assert!((256 * MIB..700 * MIB).contains(&shown) && shown < real, "{shown}, {real} without");
    }
    if has("java") {
        let command = ["java", "-Xshare:off", "-XX:+PrintFlagsFinal", "-version"];
        let heap = |options: &[&str]| {
            let flags = ask(&command, options);
            let line = flags.lines().find(|line| line.contains(" MaxHeapSize ")).expect("the flag is listed");
            line.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap()
        };
        assert_eq!(heap(&[]), 256 * MIB);
        assert!(heap(&["--cgroup-limit", "real"]) > 256 * MIB);
    }
}

/// Makes a group inside of this process's own with a limit of 96 MiB; `None` where that is refused.
fn limited_group(name: &str) -> Option<Group> {
    let (path, _) = own_limit()?;
    let group = path.parent().unwrap().join(format!("uzswap-{name}-{}", std::process::id()));
    let is_made = std::fs::create_dir(&group).is_ok();
    let made = Group(group);
    let is_limited = is_made && std::fs::write(made.0.join(path.file_name().unwrap()), "100663296").is_ok();
    if !is_limited {
        testkit::skip!("cgroup", "no limited control group can be made");
        return None;
    }
    Some(made)
}

struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_kill_for_want_of_memory_is_explained() {
    if !can_manage() {
        return;
    }
    let Some(group) = limited_group("killed") else { return };
    let script = "import os; data = [os.urandom(1 << 20) for _ in range(300)]";
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
    let run = [support::PROGRAM, "run", "--ram", "400M", "--", "python3", "-c", script];
    let ran = Ran::of(support::command(&["sh", "-c", &enter, "sh"]).args(run));
    if ran.said.contains("the supervisor was killed") {
        return testkit::skip!("cgroup", "the kernel chose the supervisor: {ran}");
    }
    ran.assert_status(128 + libc::SIGKILL).assert_says(&[
        "the program was killed by SIGKILL\n",
        "the kernel's OOM killer killed 1 process of the memory cgroup, whose limit is 96 MiB: --ram 64M or less",
    ]);
    // A kill without OOM has another sender.
    let ran = Ran::of(&mut support::run("64M", &[], &["sh", "-c", "kill -KILL $$"]));
    ran.assert_status(128 + libc::SIGKILL)
        .assert_says(&["the program was killed by SIGKILL; sent by a process"]);
}
