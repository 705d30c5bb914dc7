//! Accesses of the kernel, or of another process, to a program's memory, in which paging must not
//! show. Comments on tests tell the former failure.

mod support;

use support::{as_bare_under, own_limit, tests, workload_with, WAYS};

/// Pushes the strings before it onto pages that are not in use.
const PADDING_BYTES: usize = 30_000;

/// Runs a mode bare and in all managed ways; `pages` says whether pages must have been evicted.
fn is_as_bare(mode: &str, argument: &str, pages: bool) {
    // Symbols are bound at the start: lazy binding takes kilobytes of stack.
    let Some(program) = workload_with("kernel", &["-Wl,-z,now"]) else { return };
    let command = [program, mode, argument, &"x".repeat(PADDING_BYTES)];
    for ran in as_bare_under(Some("export KERNEL_TEST='in the environment'"), &WAYS, "60M", &command) {
        if pages {
            ran.assert_paged();
        }
    }
}

fn limit_file() -> String {
    own_limit().unwrap_or_else(|| "/sys/fs/cgroup/memory.max".into()).to_str().unwrap().to_owned()
}

tests! {
    /// The top of the first stack was evicted, and ps, pgrep -f and killall did not find the
    /// process.
    fn arguments_and_environment_stay_readable() = is_as_bare("words", "and-words-of-its-own", true);
    /// The word's page was evicted when the thread ended, and the joining thread blocked for ever.
    fn words_that_are_cleared_are_anywhere() = is_as_bare("cleared", "", true);
    /// Their pages were locked in memory, which the program could undo.
    fn robust_mutexes_do_not_depend_on_locked_memory() = is_as_bare("robust", "", true);
    /// Buffers of up to 8 KiB lay on the stack.
    fn calls_of_handlers_with_small_stacks() = is_as_bare("small_stack", &limit_file(), true);
    /// Writing the file with the shown limit raised SIGXFSZ.
    fn a_program_that_may_write_no_byte_of_a_file() = is_as_bare("no_files", &limit_file(), false);
    /// The structure was read before the kernel could refuse it.
    fn structures_that_cannot_be_read_are_refused() = is_as_bare("bad_pointers", "", true);
    /// Threads whose names began with "uzswap" counted as the pager's.
    fn threads_may_have_any_name() = is_as_bare("names", "", true);
    /// The system call was made outside of a cancellation point.
    fn a_thread_that_waits_in_vmsplice_can_be_cancelled() = is_as_bare("cancelled", "", false);
    /// The kernel returns an error for evicted pages.
    fn a_program_reads_and_writes_its_own_memory_as_a_file() = is_as_bare("own_memory", "", true);
    fn signals_come_to_stacks_that_are_out() = is_as_bare("signal_stacks", "", true);
}
