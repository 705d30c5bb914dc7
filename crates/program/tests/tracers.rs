//! Tools that stop every thread of a managed process and read its memory.

mod support;

use support::{command, has, managed, run, workload, Started};

/// Regression: the tracer stopped the pager's threads and waited for them for ever.
#[test]
fn a_tracer_that_stops_all_threads_reads_evicted_pages() {
    let Some(workload) = workload("tracer") else { return };
    for options in [&["-q"][..], &["-q", "--swap", "256M"]] {
        let Some(ran) = managed("40M", options, &[workload, "96"]) else { return };
        match ran.status {
            Some(2) => testkit::skip!("ptrace", "no process can be traced here"),
            _ => _ = ran.assert_status(0).assert_paged(),
        }
    }
}

/// Fills memory, and sums it until its input ends.
const SUMS: &str = "import os, select, sys\n\
    pages = [bytes([i % 251]) * 1000 for i in range(60_000)]\n\
    print(os.getpid(), flush=True)\n\
    sums = set()\n\
    while not select.select([sys.stdin], [], [], 0)[0]:\n    \
        sums.add(sum(page[5] for page in pages))\n\
    print(len(sums), len(pages))";

/// strace stops all threads again and again; the program ends well after it.
#[test]
fn strace_follows_a_program_that_is_paged() {
    if !has("strace") || !has("python3") {
        testkit::skip!("tools", "strace and python3 are not installed");
        return;
    }
    let mut running = Started::new(&mut run("32M", &[], &["python3", "-c", SUMS]));
    let program = running.line();
    for _ in 0..3 {
        let mut strace = command(&["timeout", "2", "strace", "-f", "-o", "/dev/null", "-p"]);
        let traced = strace.arg(&program).output().unwrap();
        assert_eq!(traced.status.code(), Some(124), "{}", String::from_utf8_lossy(&traced.stderr));
    }
    running.tell("\n");
    let ran = running.end();
    ran.assert_status(0).assert_prints(&["1 60000"]);
}
