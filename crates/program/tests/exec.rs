//! Programs that start others with an environment of their own: managed where that is possible.

mod support;

use support::{can_unshare, has, managed, tests, uzswap_with, workload, Ran, Scratch, PROGRAM};

/// Runs a command whose child fills 64 MiB in 40 MiB: the child must be paged and succeed.
fn child_is_managed(command: &[&str]) {
    let Some(ran) = managed("40M", &["-q"], command) else { return };
    ran.assert_quiet().assert_paged().assert_all_managed();
}

/// Runs a command whose child must stay unmanaged: it runs without a message.
fn child_is_left_alone(command: &[&str]) -> Ran {
    let ran = managed("40M", &["-q"], command).expect("there is a workload");
    ran.assert_quiet();
    ran
}

fn can_isolate() -> bool {
    can_unshare(&["-n", "-fp", "--mount-proc"])
}

fn is_managed_after(modes: &str) {
    let Some(workload) = workload("exec") else { return };
    modes.split(' ').for_each(|mode| child_is_managed(&[workload, mode, "64"]));
}

tests! {
    fn every_way_to_start_a_program_with_an_environment_of_its_own() = is_managed_after(
        "execve execle execle_long execvpe fexecve execveat syscall syscall_at vfork posix_spawn posix_spawnp"
    );
    fn every_way_to_start_a_program_after_clearing_the_environment() =
        is_managed_after("execl execl_long execlp execv execvp system popen environ none");
}

#[test]
fn large_environments_on_small_stacks_and_a_programs_own_preload() {
    let Some(workload) = workload("exec") else { return };
    is_managed_after("many small_stack clone preloads");
    // Too large to be completed on the stack: passed on unchanged, and the program runs unmanaged.
    child_is_left_alone(&[workload, "thousands", "4"]);
}

#[test]
fn a_foreign_environment_stays_unchanged() {
    let Some(workload) = workload("exec") else { return };
    let ran = child_is_left_alone(&[workload, "strange", "63"]);
    assert_eq!(ran.number("zswpout"), 0, "{ran}");
}

#[test]
fn a_failed_exec_returns_with_its_error() {
    let Some(workload) = workload("exec") else { return };
    uzswap_with(&["run", "-q", "--ram", "40M", "--", workload, "missing", "4"]).assert_status(7);
}

#[test]
fn shells_env_python_and_node_with_clean_environments() {
    let Some(workload) = workload("exec") else { return };
    child_is_managed(&["env", "-i", "MARK=1", "WANT_ENTRIES=7", workload, "work", "64"]);
    let script = format!("unset LD_PRELOAD UZSWAP_SOCKET; MARK=1 {workload} work 64; exit $?");
    for shell in ["sh", "bash", "dash"] {
        child_is_managed(&[shell, "-c", &script]);
    }
    if has("python3") {
        for more in ["", ", start_new_session=True", ", close_fds=False"] {
            let script = format!(
                "import subprocess as s, sys; sys.exit(s.run(['{workload}', 'work', '64'], env={{'MARK': '1'}}{more}).returncode)"
            );
            child_is_managed(&["python3", "-c", &script]);
        }
        let script =
            format!("import os, sys; sys.exit(os.spawnve(os.P_WAIT, '{workload}', ['x', 'work', '64'], {{'MARK': '1'}}))");
        child_is_managed(&["python3", "-c", &script]);
    }
    if has("node") {
        let script = format!(
            "process.exit(require('child_process').spawnSync('{workload}', ['work', '64'], {{env: {{MARK: '1'}}}}).status)"
        );
        child_is_managed(&["node", "-e", &script]);
    }
}

#[test]
fn programs_where_the_object_cannot_be_opened_run_without_it() {
    let Some(workload) = workload("exec") else { return };
    if !can_isolate() {
        return;
    }
    let inside = format!("export MARK=1; {workload} work 4 && env -i MARK=1 {workload} work 4");
    child_is_left_alone(&["unshare", "-fp", "--mount-proc", "sh", "-c", &inside]);
    child_is_left_alone(&["unshare", "-m", "sh", "-c", &format!("umount -l /proc && {inside}")]);
    // Another root with the same files except for /proc.
    let scratch = Scratch::new("exec-root");
    let root = scratch.text("root");
    let script = format!(
        "set -e; mkdir {0}; mount -t tmpfs none {0}
        cp {workload} {0}/workload
        for dir in bin lib lib64 usr; do test -e /$dir || continue; mkdir {0}/$dir; mount --bind /$dir {0}/$dir; done
        chroot {0} /bin/sh -c '{1}'",
        root,
        inside.replace(workload, "/workload")
    );
    child_is_left_alone(&["unshare", "-m", "sh", "-c", &script]);
    let program = scratch.text("setuid");
    let script = format!("cp {workload} {0}; chown 65534 {0}; chmod 4755 {0}; MARK=1 {0} work 4", program);
    child_is_left_alone(&["sh", "-c", &script]);
    child_is_left_alone(&["setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", "env -i true"]);
}

#[test]
fn processes_in_a_namespace_of_their_own_are_known_by_their_numbers_outside() {
    let Some(workload) = workload("exec") else { return };
    if can_isolate() {
        // The child is process 1 there. The object's path works, since /proc is the outer one.
        child_is_managed(&["unshare", "-fp", "sh", "-c", &format!("MARK=1 {workload} work 64")]);
    }
}

#[test]
fn a_run_inside_of_a_run_keeps_to_the_outer_budget() {
    let Some(workload) = workload("exec") else { return };
    let inner = format!("{PROGRAM} run --ram 1G --swap 64M --verify --");
    let commands = [
        format!("exec {inner} {workload} work 64"),
        format!("env -i MARK=1 {inner} {workload} execve 64"),
        format!("{inner} sh -c '{inner} {workload} work 64; exit $?'"),
        format!("unset LD_PRELOAD UZSWAP_SOCKET; {inner} {workload} work 64; exit $?"),
    ];
    for command in &commands {
        let ran = managed("40M", &["-q"], &["sh", "-c", &format!("export MARK=1; {command}")]).unwrap();
        ran.assert_paged().assert_within_budget().assert_all_managed().assert_no_failure();
        ran.assert_says(&["this is part of run", "its budget and options hold"]);
    }
    let count = "grep -c 'r-xp.*libuzswap' /proc/self/maps; exit 42";
    let ran = managed("1G", &["-q"], &[PROGRAM, "run", "-q", "sh", "-c", count]).unwrap();
    assert_eq!(ran.assert_status(42).printed, "1\n", "one object");
    let missing = managed("1G", &["-q"], &[PROGRAM, "run", "no-such-program"]).unwrap();
    missing.assert_status(127).assert_says(&["no-such-program: not found"]);
}

#[test]
fn a_report_of_a_run_inside_of_a_run_is_refused() {
    let scratch = Scratch::new("exec-nested-report");
    let report = scratch.text("inner.json");
    let nested = [PROGRAM, "run", "--report", &report, "--", "sh", "-c", "echo started"];
    let Some(ran) = managed("1G", &["-q"], &nested) else { return };
    ran.assert_status(125).assert_says(&["leave --report out"]);
    assert!(ran.printed.is_empty() && !scratch.path("inner.json").exists(), "{ran}");
}

#[test]
fn a_run_that_leaves_the_outer_one_is_named_and_pages_alone() {
    let Some(workload) = workload("exec") else { return };
    let scratch = Scratch::new("exec-nested");
    let report = scratch.text("inner.json");
    let alone = ["env", "UZSWAP_SOCKET=", PROGRAM, "run", "-q", "--ram", "40M", "--report", &report, "--"];
    let outer = managed("1G", &["-q"], &[&alone[..], &[workload, "execve", "64"]].concat()).unwrap();
    assert!(outer.text("unmanaged").contains("a run inside of this one"), "{outer}");
    outer.with_report(report).assert_paged();
}
