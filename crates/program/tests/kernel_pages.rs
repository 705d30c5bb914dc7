//! Accesses of the kernel, or of another process, to a program's memory, in which paging must not
//! show. Comments on tests tell the former failure.

mod support;
#[path = "support/tree.rs"]
mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use support::{can_manage, compile_with, uzswap, Scratch};
use tree::watch;

const CANNOT: i32 = 77;
/// Pushes the strings before it onto pages that are not in use.
const PADDING_BYTES: usize = 30_000;
const VARIABLE: (&str, &str) = ("KERNEL_TEST", "in the environment");

/// The workload, with symbols bound at its start: lazy binding takes kilobytes of stack.
fn workload() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<(Scratch, PathBuf)>> = OnceLock::new();
    let made = PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/kernel.c");
        let scratch = Scratch::new("kernel");
        let program = scratch.path("kernel");
        (can_manage() && compile_with(&["-Wl,-z,now"], &source, &program)).then_some((scratch, program))
    });
    made.as_ref().map(|(_, program)| program.as_path())
}

/// Runs a mode bare and in all managed ways; `pages` says whether pages must have been evicted.
fn is_as_bare(mode: &str, argument: &str, pages: bool) {
    let Some(program) = workload() else { return };
    let scratch = Scratch::new(&format!("kernel-{mode}"));
    let limit = Duration::from_secs(120);
    let padding = "x".repeat(PADDING_BYTES);
    let arguments = [mode, argument, &padding];
    let bare = Command::new(program).args(arguments).env(VARIABLE.0, VARIABLE.1).output().unwrap();
    if bare.status.code() == Some(CANNOT) {
        testkit::skip!("kernel", "{mode} cannot be done on this machine");
        return;
    }
    assert!(bare.status.success(), "{mode}, bare: {bare:?}");
    for (name, options) in [("pool", &[][..]), ("swap", &["--swap", "256M"])] {
        let directory = scratch.path(name);
        std::fs::create_dir(&directory).unwrap();
        let report = directory.join("report.json");
        let mut run = uzswap();
        run.env(VARIABLE.0, VARIABLE.1);
        run.args(["run", "-q", "--ram", "60M", "--report"]).arg(&report).args(options).arg("--");
        run.arg(program).args(arguments);
        let ended = watch(&mut run, &directory, limit);
        let status = ended.status.map_or_else(|| "hangs".to_owned(), |status| status.to_string());
        assert!(
            ended.status.is_some_and(|status| status.success()),
            "{mode}, {name}: {status}\n{}",
            ended.errors
        );
        let text = std::fs::read_to_string(&report).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(!pages || report["zswpout"].as_u64() > Some(1000), "{mode}, {name}: nothing went: {report}");
    }
}

fn limit_file() -> String {
    let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let first = membership.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            "" => Some(format!("/sys/fs/cgroup{group}/memory.max")),
            _ => controllers
                .split(',')
                .any(|name| name == "memory")
                .then(|| format!("/sys/fs/cgroup/memory{group}/memory.limit_in_bytes")),
        }
    });
    first.unwrap_or_else(|| "/sys/fs/cgroup/memory.max".to_owned())
}

/// The top of the first stack was evicted, and ps, pgrep -f and killall did not find the process.
#[test]
fn arguments_and_environment_stay_readable() {
    is_as_bare("words", "and-words-of-its-own", true);
}

/// The word's page was evicted when the thread ended, and the joining thread blocked for ever.
#[test]
fn words_that_are_cleared_are_anywhere() {
    is_as_bare("cleared", "", true);
}

/// Their pages were locked in memory, which the program could undo.
#[test]
fn robust_mutexes_do_not_depend_on_locked_memory() {
    is_as_bare("robust", "", true);
}

/// Buffers of up to 8 KiB lay on the stack.
#[test]
fn calls_of_handlers_with_small_stacks() {
    is_as_bare("small_stack", &limit_file(), true);
}

/// Writing the file with the shown limit raised SIGXFSZ.
#[test]
fn a_program_that_may_write_no_byte_of_a_file() {
    is_as_bare("no_files", &limit_file(), false);
}

/// The structure was read before the kernel could refuse it.
#[test]
fn structures_that_cannot_be_read_are_refused() {
    is_as_bare("bad_pointers", "", true);
}

/// Threads whose names began with "uzswap" counted as the pager's.
#[test]
fn threads_may_have_any_name() {
    is_as_bare("names", "", true);
}

/// The system call was made outside of a cancellation point.
#[test]
fn a_thread_that_waits_in_vmsplice_can_be_cancelled() {
    is_as_bare("cancelled", "", false);
}

/// The kernel returns an error for evicted pages.
#[test]
fn a_program_reads_and_writes_its_own_memory_as_a_file() {
    is_as_bare("own_memory", "", true);
}

#[test]
fn signals_come_to_stacks_that_are_out() {
    is_as_bare("signal_stacks", "", true);
}
