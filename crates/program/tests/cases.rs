//! Regressions: minimal programs that once failed under uzswap, with the failure in a comment.

#[allow(dead_code)]
mod support;
#[path = "support/tree.rs"]
mod tree;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use support::{can_manage, compile_with, has, uzswap, workload_in, Scratch};
use tree::{watch, Ended};

const CANNOT: i32 = 77;

/// Runs a command bare and under uzswap with the same output and status 0; returns the report.
///
/// Under uzswap it may take 20 times as long plus 20 s. A longer run counts as a hang.
fn as_bare(name: &str, ram: &str, command: &[&str]) -> Option<Value> {
    let scratch = Scratch::new(&format!("cases-{name}"));
    let directory = |name: &str| {
        let directory = scratch.path(name);
        std::fs::create_dir(&directory).unwrap();
        directory
    };
    let limit = Duration::from_secs(120);
    let bare = watch(Command::new(command[0]).args(&command[1..]), &directory("bare"), limit);
    if bare.status.and_then(|status| status.code()) == Some(CANNOT) {
        testkit::skip!("kernel", "{name} cannot be done on this machine");
        return None;
    }
    assert!(bare.status.is_some_and(|status| status.success()), "{name}, bare: {}", told(&bare));
    let report = scratch.path("report.json");
    let mut run = uzswap();
    run.args(["run", "--ram", ram, "--report"]).arg(&report).arg("--").args(command);
    let ended = watch(&mut run, &directory("managed"), bare.took * 20 + Duration::from_secs(20));
    assert!(ended.status.is_some_and(|status| status.success()), "{name}: {}", told(&ended));
    assert_eq!(ended.output, bare.output, "{name}: {}", ended.errors);
    let text = std::fs::read_to_string(&report).unwrap_or_else(|error| panic!("{name}: {error}"));
    let report: Value = serde_json::from_str(&text).expect("the report is JSON");
    println!("{name}: {:?}, bare {:?}, peak {}", ended.took, bare.took, report["ram_peak_bytes"]);
    Some(report)
}

fn told(ended: &Ended) -> String {
    let status = ended.status.map_or_else(|| "hangs".into(), |status| status.to_string());
    format!("{status} after {:?}\n{}{}", ended.took, ended.output, ended.errors)
}

fn survives(mode: &str, ram: &str) -> Option<Value> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("cases");
        workload_in(&scratch, "cases").map(|workload| (scratch, workload))
    });
    let (_, program) = workload.as_ref()?;
    paged_as_bare(mode, ram, &[program, mode])
}

/// Repeats [`as_bare`] until pages were evicted: a short program may end before paging begins.
fn paged_as_bare(name: &str, ram: &str, command: &[&str]) -> Option<Value> {
    let mut report = Value::Null;
    for _ in 0..10 {
        report = as_bare(name, ram, command)?;
        if report["zswpout"].as_u64().unwrap() > 1000 {
            return Some(report);
        }
    }
    panic!("{name}: nothing was evicted: {report}");
}

/// The budget may be exceeded briefly by 3 % and 8 MiB.
fn keeps_its_budget(mode: &str, ram: &str) {
    let Some(report) = survives(mode, ram) else { return };
    let (limit, peak) =
        (report["ram_limit_bytes"].as_u64().unwrap(), report["ram_peak_bytes"].as_u64().unwrap());
    let most = limit + limit * 3 / 100 + (8 << 20);
    assert!(peak <= most, "{mode}: a peak of {} MiB in {} MiB", peak >> 20, limit >> 20);
}

/// Both queues were full of faults, the event behind them was not read, and calls returned EAGAIN.
#[test]
fn five_hundred_threads_fault_at_once() {
    survives("crowd", "121M");
}

/// The pager's threads kept the process alive.
#[test]
fn the_last_thread_ends_by_itself() {
    survives("last_thread", "90M");
    survives("only_thread", "60M");
    survives("locked_last_thread", "90M");
}

/// Source and target of a move shared a block, whose lock was taken twice.
#[test]
fn evicted_pages_move_within_their_block() {
    survives("near", "50M");
}

/// Pieces were registered in part, so the kernel did not merge them, and mremap returned EFAULT.
#[test]
fn pieces_that_the_kernel_merges_stay_one_mapping() {
    survives("pieces", "50M");
}

/// Another thread mapped the old place of the first of two moved mappings, and that was moved, too.
#[test]
fn a_move_leaves_another_thread_s_mapping_in_place() {
    survives("gaps", "60M");
}

/// The kernel filled new pages before it reported the move, without which no fill was possible.
#[test]
fn locked_memory_grows_and_moves() {
    survives("locked_growth", "40M");
}

/// An executable heap, as SBCL's, stayed in memory: 180 MiB in a budget of 130 MiB.
#[test]
fn a_heap_that_may_be_executed_keeps_its_budget() {
    keeps_its_budget("executable", "60M");
    survives("executable_fork", "60M");
}

/// mprotect ran at eight calls a second, and the report blamed memory touched too fast.
#[test]
fn a_write_barrier_of_thousands_of_mappings() {
    let Some(report) = survives("barrier", "60M") else { return };
    let reason = report["over_limit_reason"].as_str().unwrap_or_default();
    assert!(reason.contains("read-only"), "{reason}");
}

/// The kernel does not fault in pages at a thread's end, so it missed held robust mutexes.
#[test]
fn robust_mutexes_of_threads_that_end() {
    survives("robust", "60M");
}

/// Ran more than fifty times slower.
#[test]
fn a_deep_stack_of_a_thread() {
    survives("deep", "120M");
}

/// Main threads' stacks were never evicted.
#[test]
fn a_deep_stack_of_the_main_thread_keeps_its_budget() {
    keeps_its_budget("main_stack", "60M");
}

/// A range has at most one userfaultfd, and the pager's was there.
#[test]
fn a_userfaultfd_of_the_program_s_own() {
    survives("own_userfaultfd", "60M");
}

/// The kernel skipped or refused evicted pages: zeroes, or an error.
#[test]
fn pages_that_a_program_moves_itself_come_along() {
    let scratch = Scratch::new("cases-own-moves");
    let Some(program) = workload_in(&scratch, "own_moves") else { return };
    for how in ["all", "holes"] {
        if paged_as_bare(&format!("own moves {how}"), "60M", &[&program, how]).is_none() {
            return;
        }
    }
}

/// Data was discarded before the kernel refused to guard it, and unmapped before it refused to move
/// the rest. Paging ended before the kernel refused to lock. Unreadable paths were read.
#[test]
fn what_the_kernel_refuses_changes_nothing() {
    let scratch = Scratch::new("cases-refused");
    let Some(program) = workload_in(&scratch, "refused") else { return };
    let Some(report) = paged_as_bare("refused", "40M", &[&program]) else { return };
    let peak = report["ram_peak_bytes"].as_u64().unwrap() >> 20;
    assert!(peak < 70, "paging has ended: a peak of {peak} MiB in 40");
}

/// The frame received another page while the pipe still held it.
#[test]
fn pipes_keep_the_bytes_that_were_vmspliced() {
    survives("vmsplice", "50M");
}

/// MADV_GUARD_INSTALL raises no event, so evicted pages came back after the guards were removed.
#[test]
fn what_was_guarded_is_zeroes() {
    survives("guards", "50M");
}

/// uzswap stopped with its program and did not notice that the program was continued.
#[test]
fn a_program_that_is_stopped_and_continued_alone() {
    survives("stopped", "60M");
}

/// The pager's threads had too small a copy of the static thread-local block.
#[test]
fn static_thread_local_storage_of_any_size() {
    if !can_manage() {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/tls.c");
    for kib in [64, 1024] {
        let scratch = Scratch::new(&format!("tls-{kib}"));
        let program = scratch.path("tls");
        if !compile_with(&[&format!("-DSTATIC_TLS={}", kib << 10)], &source, &program) {
            return;
        }
        paged_as_bare(&format!("tls {kib} KiB"), "50M", &[program.to_str().unwrap()]).unwrap();
    }
}

/// mremap moved evicted incompressible pages, which changed; the pager retried the rest endlessly.
#[test]
fn a_bytearray_that_grows_by_random_bytes() {
    if !can_manage() || !has("python3") {
        return;
    }
    let script = "
import hashlib, random
source, data = random.Random(1), bytearray()
for _ in range(150):
    data += source.randbytes(1 << 20)
print(hashlib.sha256(data).hexdigest())
";
    as_bare("bytearray", "60M", &["python3", "-c", script]);
}
