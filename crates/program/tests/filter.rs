//! Programs that set a seccomp filter under which no pager could work: every byte is right, in them and their children.

mod support;

use support::{managed, workload_in, Scratch};

#[test]
fn filters_that_kill_for_what_a_pager_does() {
    let scratch = Scratch::new("filter");
    let Some(workload) = workload_in(&scratch, "filter") else { return };
    for how in ["prctl", "seccomp", "threads", "alone"] {
        let (output, report) = managed("40M", &scratch, &["-q"], &[&workload, how, "64"]);
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(2) => println!("skipped: no filter can be set here ({how})"),
            code => assert_eq!(code, Some(0), "{how}: {said} {report}"),
        }
        assert!(report["zswpout"].as_u64().unwrap() > 1000, "{how}: nothing was evicted: {report}");
        // Paging ends with a filter for all threads only, and that is said.
        assert_eq!(said.contains("seccomp filter"), matches!(how, "threads" | "alone"), "{how}: {said}");
    }
}
