//! A process killed while it forks: its children have every byte, or are ended with a message.

mod support;

use support::{managed, workload};

#[test]
fn children_of_a_process_that_is_killed_in_the_middle_of_a_fork() {
    let Some(workload) = workload("orphans") else { return };
    let Some(ran) = managed("40M", &["-q"], &[workload, "16"]) else { return };
    ran.assert_paged();
    let ended = ran.said.lines().filter(|line| line.contains("a forked child is ended")).count();
    assert!(ran.printed.ends_with(&format!(" ended {ended}\n")), "{ran}");
}
