//! Kernel facilities that access a program's memory from outside, or change a process's nature: the
//! result must equal the bare run's, with and without a swap file.

mod support;

use std::process::Command;

use support::{
    as_bare, as_bare_under, has, is_root, own, printed, set_mode, tests, workload, Scratch, USER, WAYS,
};

fn same(modes: &[&str]) {
    let Some(workload) = workload("facilities") else { return };
    for ran in modes.iter().flat_map(|mode| as_bare("60M", &[workload, mode])) {
        ran.assert_paged().assert_all_managed().assert_no_failure();
    }
}

tests! {
    fn io_uring_with_registered_buffers() = same(&["uring", "uring_direct"]);
    fn asynchronous_requests_of_the_kernel_and_of_the_c_library() = same(&["aio", "posix_aio"]);
    fn pages_that_a_socket_sends_without_a_copy() = same(&["zerocopy"]);
    fn pipes_joined_by_tee_and_splice() = same(&["tee"]);
    fn addresses_without_randomness() = same(&["personality"]);
    fn a_command_line_in_another_place() = same(&["set_mm"]);
}

/// A program takes on root's rights, in a tree of root's and of another user's processes.
#[test]
fn a_setuid_program_in_a_tree() {
    let Some(workload) = workload("facilities").filter(|_| is_root("make a setuid program of root's")) else {
        return;
    };
    let directory = Scratch::public("setuid");
    let program = directory.text("work");
    testkit::copy_program(workload, &program);
    set_mode(&program, 0o4755);
    for ran in as_bare("60M", &[&USER[..], &[&program, "work"]].concat()) {
        let is_named = ran.report["unmanaged"].as_array().is_some_and(|all| !all.is_empty());
        assert!(is_named || ran.number("zswpout") > 1000, "neither paged nor named: {ran}");
    }
}

/// More concurrent processes than most trees have.
#[test]
fn three_hundred_processes_at_once() {
    let Some(workload) = workload("facilities") else { return };
    // Each process's agent takes a part of the budget.
    for ran in as_bare_under(None, &WAYS[..1], "600M", &[workload, "many", "300"]) {
        ran.assert_all_managed().assert_no_failure();
    }
}

/// A Go program with goroutines, garbage collection, and children by vfork and by a bare clone().
#[test]
fn a_go_program_that_forks_by_a_bare_clone() {
    if !has("go") {
        return;
    }
    let scratch = Scratch::new("facilities-go");
    let program = scratch.text("forks");
    let mut go = Command::new("go");
    go.env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "0").env("GOCACHE", scratch.path("cache"));
    printed(go.args(["build", "-o", &program]).arg(own("tests/workloads/forks.go")));
    for ran in as_bare("90M", &[&program]) {
        ran.assert_paged().assert_all_managed().assert_no_failure();
    }
}
