//! Pagers broken on request (debug builds): the process ends with a message and never hangs.

mod support;

use std::time::Duration;

use support::tree::watch;
use support::{command, printed, run, workload, Ran, Scratch};

fn workload_that_breaks() -> Option<&'static str> {
    if !cfg!(debug_assertions) {
        testkit::skip!("build", "only builds with assertions break on request");
        return None;
    }
    workload("broken")
}

fn breaks(point: &str, command: &[&str]) -> Ran {
    let scratch = Scratch::new("broken");
    let report = scratch.text("report.json");
    let mut run = run("40M", &["-q", "--report", &report], command);
    let ran = watch(run.env("UZSWAP_BREAK", point), Duration::from_secs(120));
    assert!(ran.status.is_some(), "it hung: {ran}");
    ran.with_report(report)
}

fn names(ran: &Ran, words: &[&str]) {
    let failure = ran.report["failures"][0].as_str().unwrap_or_else(|| panic!("no failure: {ran}"));
    assert!(ran.said.contains(failure), "{ran}");
    for word in words {
        assert!(failure.contains(word), "{failure:?} says {word:?}");
    }
}

#[test]
fn a_panic_in_any_thread_ends_the_program_with_a_message() {
    let Some(workload) = workload_that_breaks() else { return };
    for (point, words) in [
        ("publish", ["crates/agent/src/accounts.rs:", "a test wanted it: Publish"]),
        ("fault", ["crates/agent/src/accounts.rs:", "a test wanted it: Fault"]),
        ("store:200", ["crates/agent/src/accounts.rs:", "a test wanted it: Store"]),
        ("memory", ["the limit of its memory", "70368744177664 bytes could not be had"]),
    ] {
        let ran = breaks(point, &[workload, "fill", "64"]);
        names(ran.assert_status(125), &["the program is ended", words[0], words[1]]);
        assert_eq!(ran.number("exit_status"), 125, "{ran}");
    }
}

#[test]
fn the_end_of_a_child_is_its_parents_affair() {
    let Some(workload) = workload_that_breaks() else { return };
    let script = format!("{workload} fill 64; test $? = 137 && exit 3");
    let ran = breaks("fault", &["sh", "-c", &script]);
    names(ran.assert_status(3), &["a test wanted it: Fault"]);
}

#[test]
fn a_panic_needs_nothing_of_the_thread_that_made_the_pager() {
    let Some(workload) = workload_that_breaks() else { return };
    let scratch = Scratch::new("library");
    let library = scratch.text("library.so");
    // Larger than the loader's spare room, so the storage comes from the heap.
    let text = "__thread char storage[100000]; char *touch(void) { storage[5] = 1; return storage; }\n";
    printed(&mut command(&["cc", "-shared", "-fPIC", "-o", &library, &scratch.write("library.c", text)]));
    // Paged thread-local storage with a paged table: a handler that used it would wait for itself.
    for point in ["fault", "fault:3000", "store:100"] {
        let ran = breaks(point, &[workload, "child", "64", &library]);
        names(ran.assert_status(0), &["a test wanted it"]);
    }
}
