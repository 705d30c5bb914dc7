//! A process killed while it forks: its children have every byte, or are ended with a message.

mod support;

use support::{managed, workload_in, Scratch};

#[test]
fn children_of_a_process_that_is_killed_in_the_middle_of_a_fork() {
    let scratch = Scratch::new("orphans");
    let Some(workload) = workload_in(&scratch, "orphans") else { return };
    let (output, report) = managed("40M", &scratch, &["-q"], &[&workload, "16"]);
    let (said, printed) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout).into_owned());
    assert_eq!(output.status.code(), Some(0), "{said} {report}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "nothing was evicted: {report}");
    let ended = said.lines().filter(|line| line.contains("a forked child is ended")).count();
    assert!(printed.ends_with(&format!(" ended {ended}\n")), "{printed}{said}");
}
