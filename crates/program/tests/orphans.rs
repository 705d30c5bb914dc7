//! A process that is killed while it forks: its children have every byte, or are ended, which is said.

mod support;

use std::path::Path;

use support::{can_manage, compile, managed, Scratch};

#[test]
fn children_of_a_process_that_is_killed_in_the_middle_of_a_fork() {
    if !can_manage() {
        return;
    }
    let scratch = Scratch::new("orphans");
    let (source, guest) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/orphans.c"), scratch.path("orphans"));
    if !compile(&source, &guest) {
        return;
    }
    let (output, report) = managed("40M", &scratch, &["-q"], &[guest.to_str().unwrap(), "16"]);
    let (said, printed) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout).into_owned());
    assert_eq!(output.status.code(), Some(0), "{said} {report}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "nothing was evicted: {report}");
    let ended = said.lines().filter(|line| line.contains("a forked child is ended")).count();
    assert!(printed.ends_with(&format!(" ended {ended}\n")), "{printed}{said}");
}
