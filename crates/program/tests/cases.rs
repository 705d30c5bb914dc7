//! Regressions: minimal programs that once failed under uzswap, with the failure in a comment.

mod support;

use support::{as_bare_under, is_root, tests, workload, workload_with, Ran, WAYS};

fn survives(mode: &str, ram: &str) -> Option<Ran> {
    paged_as_bare(ram, &[workload("cases")?, mode])
}

/// Repeats a comparison until pages were evicted: a short program may end before paging begins.
fn paged_as_bare(ram: &str, command: &[&str]) -> Option<Ran> {
    for round in 0.. {
        let ran = as_bare_under(None, &WAYS[..1], ram, command).pop()?;
        if round == 9 || ran.number("zswpout") > 1000 {
            ran.assert_paged();
            return Some(ran);
        }
    }
    None
}

fn keeps_its_budget(mode: &str, ram: &str) {
    let Some(ran) = survives(mode, ram) else { return };
    ran.assert_within_budget();
}

tests! {
    /// Both queues were full of faults, the event behind them was not read, and calls returned
    /// EAGAIN.
    fn five_hundred_threads_fault_at_once() = survives("crowd", "121M");
    /// The pager's threads kept the process alive.
    fn the_last_thread_ends_by_itself() = {
        survives("last_thread", "90M");
        survives("only_thread", "60M");
        survives("locked_last_thread", "90M")
    };
    /// Source and target of a move shared a block, whose lock was taken twice.
    fn evicted_pages_move_within_their_block() = survives("near", "50M");
    /// Pieces were registered in part, so the kernel did not merge them, and mremap returned
    /// EFAULT.
    fn pieces_that_the_kernel_merges_stay_one_mapping() = survives("pieces", "50M");
    /// Another thread mapped the old place of the first of two moved mappings, and that was moved,
    /// too.
    fn a_move_leaves_another_thread_s_mapping_in_place() = survives("gaps", "60M");
    /// The agent's files were mapped there later, and a program that used the address again
    /// (MAP_FIXED) replaced them.
    fn freed_memory_stays_free() = survives("freed", "60M");
    /// The kernel filled new pages before it reported the move, without which no fill was possible.
    fn locked_memory_grows_and_moves() = survives("locked_growth", "40M");
    /// An executable heap, as SBCL's, stayed in memory: 180 MiB in a budget of 130 MiB.
    fn a_heap_that_may_be_executed_keeps_its_budget() = {
        keeps_its_budget("executable", "60M");
        survives("executable_fork", "60M")
    };
    /// The kernel does not fault in pages at a thread's end, so it missed held robust mutexes.
    fn robust_mutexes_of_threads_that_end() = survives("robust", "60M");
    /// Ran more than fifty times slower.
    fn a_deep_stack_of_a_thread() = survives("deep", "120M");
    /// Main threads' stacks were never evicted.
    fn a_deep_stack_of_the_main_thread_keeps_its_budget() = keeps_its_budget("main_stack", "60M");
    /// A range has at most one userfaultfd, and the pager's was there.
    fn a_userfaultfd_of_the_program_s_own() = survives("own_userfaultfd", "60M");
    /// The frame received another page while the pipe still held it.
    fn pipes_keep_the_bytes_that_were_vmspliced() = survives("vmsplice", "50M");
    /// MADV_GUARD_INSTALL raises no event, so evicted pages came back after the guards were
    /// removed.
    fn formerly_guarded_pages_are_zeroes() = survives("guards", "50M");
    /// uzswap stopped with its program and did not notice that the program was continued.
    fn a_program_that_is_stopped_and_continued_alone() = survives("stopped", "60M");
}

/// mprotect ran at eight calls a second, and the report blamed memory touched too fast.
#[test]
fn a_write_barrier_of_thousands_of_mappings() {
    let Some(ran) = survives("barrier", "60M") else { return };
    assert!(ran.text("over_limit_reason").contains("read-only"), "{ran}");
}

/// The kernel skipped or refused evicted pages: zeroes, or an error.
#[test]
fn pages_that_a_program_moves_itself_come_along() {
    let Some(program) = workload("own_moves") else { return };
    for how in ["all", "holes"] {
        paged_as_bare("60M", &[program, how]);
        // The new pager had released nothing, and was taken for the old one.
        if is_root("give up root") {
            paged_as_bare("100M", &[program, how, "root"]);
        }
    }
}

/// Data was discarded before the kernel refused to guard it, and unmapped before it refused to move
/// the rest. Paging ended before the kernel refused to lock. Unreadable paths were read.
#[test]
fn calls_that_the_kernel_refuses_change_nothing() {
    let Some(program) = workload("refused") else { return };
    let Some(ran) = paged_as_bare("40M", &[program]) else { return };
    let peak = ran.number("ram_peak_bytes") >> 20;
    assert!(peak < 70, "paging has ended: a peak of {peak} MiB in 40");
}

/// The pager's threads had too small a copy of the static thread-local block.
#[test]
fn static_thread_local_storage_of_any_size() {
    for kib in [64, 1024] {
        let Some(program) = workload_with("tls", &[&format!("-DSTATIC_TLS={}", kib << 10)]) else { return };
        paged_as_bare("50M", &[program]).unwrap();
    }
}

/// mremap moved evicted incompressible pages, which changed; the pager retried the rest endlessly.
#[test]
fn a_bytearray_that_grows_by_random_bytes() {
    let script = "
import hashlib, random
source, data = random.Random(1), bytearray()
for _ in range(150):
    data += source.randbytes(1 << 20)
print(hashlib.sha256(data).hexdigest())
";
    as_bare_under(None, &WAYS[..1], "60M", &["python3", "-c", script]);
}
