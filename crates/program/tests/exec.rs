//! Programs that start others with an environment of their own: managed where that is possible.

mod support;

use std::process::Command;
use std::sync::OnceLock;

use support::{has, managed, uzswap, workload_in, Scratch};

fn workload() -> Option<&'static str> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("exec-workload");
        workload_in(&scratch, "exec").map(|workload| (scratch, workload))
    });
    workload.as_ref().map(|(_, path)| path.as_str())
}

/// Runs a command whose child fills 64 MiB in 40 MiB: the child must be paged and succeed.
fn child_is_managed(name: &str, command: &[&str]) {
    let scratch = Scratch::new(&format!("exec-{name}"));
    let (output, report) = managed("40M", &scratch, &["-q"], command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""), "{name}: {report}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{name}: nothing was evicted: {report}");
    assert_eq!(report["unmanaged"], serde_json::json!([]), "{name}: {report}");
}

/// Runs a command whose child must stay unmanaged: it runs without a message.
fn child_is_left_alone(name: &str, command: &[&str]) -> serde_json::Value {
    let scratch = Scratch::new(&format!("alone-{name}"));
    let (output, report) = managed("40M", &scratch, &["-q"], command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""), "{name}: {report}");
    report
}

fn can_isolate() -> bool {
    let made = Command::new("unshare").args(["-n", "-fp", "--mount-proc", "true"]).output();
    let made = made.is_ok_and(|output| output.status.success());
    if !made {
        testkit::skip!("namespace", "no namespaces can be made");
    }
    made
}

#[test]
fn every_way_to_start_a_program_with_an_environment_of_its_own() {
    let Some(workload) = workload() else { return };
    for mode in [
        "execve",
        "execle",
        "execle_long",
        "execvpe",
        "fexecve",
        "execveat",
        "syscall",
        "syscall_at",
        "vfork",
        "posix_spawn",
        "posix_spawnp",
    ] {
        child_is_managed(mode, &[workload, mode, "64"]);
    }
}

#[test]
fn every_way_to_start_a_program_after_clearing_the_environment() {
    let Some(workload) = workload() else { return };
    for mode in ["execl", "execl_long", "execlp", "execv", "execvp", "system", "popen", "environ", "none"] {
        child_is_managed(mode, &[workload, mode, "64"]);
    }
}

#[test]
fn large_environments_on_small_stacks_and_a_programs_own_preload() {
    let Some(workload) = workload() else { return };
    for mode in ["many", "small_stack", "clone", "preloads"] {
        child_is_managed(mode, &[workload, mode, "64"]);
    }
    // Too large to be completed on the stack: passed on unchanged, and the program runs unmanaged.
    child_is_left_alone("thousands", &[workload, "thousands", "4"]);
}

#[test]
fn a_foreign_environment_stays_unchanged() {
    let Some(workload) = workload() else { return };
    let report = child_is_left_alone("strange", &[workload, "strange", "63"]);
    assert_eq!(report["zswpout"], 0, "{report}");
}

#[test]
fn a_failed_exec_returns_with_its_error() {
    let Some(workload) = workload() else { return };
    let scratch = Scratch::new("exec-missing");
    let (output, _) = managed("40M", &scratch, &["-q"], &[workload, "missing", "4"]);
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn shells_env_python_and_node_with_clean_environments() {
    let Some(workload) = workload() else { return };
    child_is_managed("env", &["env", "-i", "MARK=1", "WANT_ENTRIES=7", workload, "work", "64"]);
    let script = format!("unset LD_PRELOAD UZSWAP_SOCKET; MARK=1 {workload} work 64; exit $?");
    for shell in ["sh", "bash", "dash"] {
        if has(shell) {
            child_is_managed(shell, &[shell, "-c", &script]);
        }
    }
    if has("python3") {
        for more in ["", ", start_new_session=True", ", close_fds=False"] {
            let script = format!(
                "import subprocess as s, sys; sys.exit(s.run(['{workload}', 'work', '64'], env={{'MARK': '1'}}{more}).returncode)"
            );
            child_is_managed("python", &["python3", "-c", &script]);
        }
        let script =
            format!("import os, sys; sys.exit(os.spawnve(os.P_WAIT, '{workload}', ['x', 'work', '64'], {{'MARK': '1'}}))");
        child_is_managed("python-spawn", &["python3", "-c", &script]);
    }
    if has("node") {
        let script = format!(
            "process.exit(require('child_process').spawnSync('{workload}', ['work', '64'], {{env: {{MARK: '1'}}}}).status)"
        );
        child_is_managed("node", &["node", "-e", &script]);
    }
}

#[test]
fn programs_where_the_object_cannot_be_opened_run_without_it() {
    let Some(workload) = workload() else { return };
    if !can_isolate() {
        return;
    }
    let inside = format!("export MARK=1; {workload} work 4 && env -i MARK=1 {workload} work 4");
    child_is_left_alone("processes", &["unshare", "-fp", "--mount-proc", "sh", "-c", &inside]);
    child_is_left_alone("mounts", &["unshare", "-m", "sh", "-c", &format!("umount -l /proc && {inside}")]);
    // Another root with the same files except for /proc.
    let scratch = Scratch::new("exec-root");
    let root = scratch.path("root");
    let script = format!(
        "set -e; mkdir {0}; mount -t tmpfs none {0}
        cp {workload} {0}/workload
        for dir in bin lib lib64 usr; do test -e /$dir || continue; mkdir {0}/$dir; mount --bind /$dir {0}/$dir; done
        chroot {0} /bin/sh -c '{1}'",
        root.display(),
        inside.replace(workload, "/workload")
    );
    child_is_left_alone("root", &["unshare", "-m", "sh", "-c", &script]);
    let program = scratch.path("setuid");
    let script =
        format!("cp {workload} {0}; chown 65534 {0}; chmod 4755 {0}; MARK=1 {0} work 4", program.display());
    child_is_left_alone("setuid", &["sh", "-c", &script]);
    child_is_left_alone("user", &["setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", "env -i true"]);
}

#[test]
fn processes_in_a_namespace_of_their_own_are_known_by_their_numbers_outside() {
    let Some(workload) = workload() else { return };
    if can_isolate() {
        // The child is process 1 there. The object's path works, since /proc is the outer one.
        child_is_managed("pids", &["unshare", "-fp", "sh", "-c", &format!("MARK=1 {workload} work 64")]);
    }
}

#[test]
fn a_uzswap_under_uzswap_pages_its_programs_alone() {
    let Some(workload) = workload() else { return };
    let scratch = Scratch::new("exec-nested");
    let inner = scratch.path("inner.json");
    let (own, inner) =
        (uzswap().get_program().to_str().unwrap().to_owned(), inner.to_str().unwrap().to_owned());
    let count = "grep -c 'r-xp.*libuzswap' /proc/self/maps";
    let (output, _) =
        managed("1G", &scratch, &["-q"], &[&own, "run", "-q", "--ram", "1G", "--", "sh", "-c", count]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n", "one object");
    let command = [&own, "run", "-q", "--ram", "40M", "--report", &inner, "--", workload, "execve", "64"];
    let (output, outer) = managed("1G", &scratch, &["-q"], &command);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    // Regression: its memory was in no budget of the outer one, without a word.
    assert!(outer["unmanaged"].to_string().contains("a run inside of this one"), "{outer}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&inner).unwrap()).unwrap();
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{report}");
}
