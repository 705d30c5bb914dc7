//! Kernel facilities that access a program's memory from outside, or change a process's nature: the
//! result must equal the bare run's, with and without a swap file.

#[allow(dead_code)]
mod support;
#[path = "support/tree.rs"]
mod tree;
#[path = "support/ways.rs"]
#[allow(dead_code)]
mod ways;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use support::{can_manage, has, workload_in, Scratch};
use ways::{as_bare, as_bare_under, assert_paged, WAYS};

fn workload() -> Option<&'static str> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("facilities-workload");
        workload_in(&scratch, "facilities").map(|workload| (scratch, workload))
    });
    workload.as_ref().map(|(_, program)| program.as_str())
}

fn same(mode: &str) {
    let Some(workload) = workload() else { return };
    let reports = as_bare(mode, "60M", &[workload, mode]);
    assert_paged(mode, &reports);
    assert_managed(mode, &reports);
}

fn assert_managed(name: &str, reports: &[(&str, Value)]) {
    for (way, report) in reports {
        assert_eq!(report["unmanaged"], serde_json::json!([]), "{name}, {way}");
        assert_eq!(report["failures"], serde_json::json!([]), "{name}, {way}");
    }
}

#[test]
fn io_uring_with_registered_buffers() {
    same("uring");
    same("uring_direct");
}

#[test]
fn asynchronous_requests_of_the_kernel_and_of_the_c_library() {
    same("aio");
    same("posix_aio");
}

#[test]
fn pages_that_a_socket_sends_without_a_copy() {
    same("zerocopy");
}

#[test]
fn pipes_joined_by_tee_and_splice() {
    same("tee");
}

#[test]
fn addresses_without_randomness() {
    same("personality");
}

#[test]
fn a_command_line_in_another_place() {
    same("set_mm");
}

/// A program takes on root's rights, in a tree of root's and of another user's processes.
#[test]
fn a_setuid_program_in_a_tree() {
    let (Some(workload), true) = (workload(), has("setpriv")) else { return };
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        testkit::skip!("root", "only root can make a setuid program of root's");
        return;
    }
    // A directory that other users can read.
    let directory = std::env::temp_dir().join(format!("uzswap-setuid-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let program = directory.join("work");
    testkit::copy_program(workload, &program);
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    let program = program.to_str().unwrap();
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let reports = as_bare("setuid", "60M", &[&user[..], &[program, "work"]].concat());
    std::fs::remove_dir_all(&directory).unwrap();
    for (way, report) in reports {
        let is_named = report["unmanaged"].as_array().is_some_and(|all| !all.is_empty());
        let is_paged = report["zswpout"].as_u64().unwrap() > 1000;
        assert!(is_named || is_paged, "{way}: neither paged nor named: {report}");
    }
}

/// More concurrent processes than most trees have.
#[test]
fn three_hundred_processes_at_once() {
    let Some(workload) = workload() else { return };
    // Each process's agent takes a part of the budget.
    let reports = as_bare_under(None, &WAYS[..1], "many", "600M", &[workload, "many", "300"]);
    assert_managed("many", &reports);
}

/// A Go program with goroutines, garbage collection, and children by vfork and by a bare clone().
#[test]
fn a_go_program_that_forks_by_a_bare_clone() {
    if !can_manage() || !has("go") {
        return;
    }
    let scratch = Scratch::new("facilities-go");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/forks.go");
    let program = scratch.path("forks");
    let mut go = Command::new("go");
    go.env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "0").env("GOCACHE", scratch.path("cache"));
    let built = go.args(["build", "-o"]).arg(&program).arg(source).status().unwrap();
    assert!(built.success(), "the Go program compiles");
    let reports = as_bare("go", "90M", &[program.to_str().unwrap()]);
    assert_managed("go", &reports);
    for (way, report) in reports {
        assert!(report["zswpout"].as_u64().unwrap() > 1000, "{way}: nothing was evicted: {report}");
    }
}
