//! Pagers broken on request (debug builds): the process ends with a message and never hangs.

mod support;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use support::{can_manage, compile, uzswap, Scratch};

struct Workload {
    program: String,
    library: String,
    _scratch: Scratch,
}

fn workload() -> Option<&'static Workload> {
    static WORKLOAD: OnceLock<Option<Workload>> = OnceLock::new();
    if !can_manage() {
        return None;
    }
    if !cfg!(debug_assertions) {
        testkit::skip!("build", "only builds with assertions break on request");
        return None;
    }
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("broken-workload");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/broken.c");
        let (target, library) = (scratch.path("broken"), scratch.path("library.so"));
        if !compile(&source, &target) {
            return None;
        }
        // Larger than the loader's spare room, so the storage comes from the heap.
        let text = "__thread char storage[100000]; char *touch(void) { storage[5] = 1; return storage; }\n";
        let source = scratch.write("library.c", text);
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
        assert!(built.unwrap().success());
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        Some(Workload { program: text(&target), library: text(&library), _scratch: scratch })
    });
    workload.as_ref()
}

fn breaks(point: &str, command: &[&str]) -> (Output, serde_json::Value) {
    let scratch = Scratch::new(&format!("broken-{point}-{}", command.concat().len()));
    let report = scratch.path("report.json");
    let mut run = Command::new("timeout");
    run.arg("120").arg(uzswap().get_program()).args(["run", "-q", "--ram", "40M", "--report"]).arg(&report);
    let output = run.arg("--").args(command).env("UZSWAP_BREAK", point).output().expect("timeout(1) starts");
    assert_ne!(output.status.code(), Some(124), "{point}: it hung");
    let text = std::fs::read_to_string(&report).unwrap_or_else(|_| "null".into());
    (output, serde_json::from_str(&text).expect("the report is JSON"))
}

fn names(output: &Output, report: &serde_json::Value, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    let failure = report["failures"][0].as_str().unwrap_or_else(|| panic!("a failure in {report}; {said}"));
    assert!(said.contains(failure), "{said:?} has {failure:?}");
    for word in words {
        assert!(failure.contains(word), "{failure:?} says {word:?}");
    }
}

#[test]
fn a_panic_in_any_thread_ends_the_program_with_a_message() {
    let Some(workload) = workload() else { return };
    for (point, words) in [
        ("publish", ["crates/agent/src/accounts.rs:", "a test wanted it: Publish"]),
        ("fault", ["crates/agent/src/accounts.rs:", "a test wanted it: Fault"]),
        ("store:200", ["crates/agent/src/accounts.rs:", "a test wanted it: Store"]),
        ("memory", ["the limit of its memory", "70368744177664 bytes could not be had"]),
    ] {
        let (output, report) = breaks(point, &[&workload.program, "fill", "64"]);
        assert_eq!(output.status.code(), Some(125), "{point}: {report}");
        names(&output, &report, &["the program is ended", words[0], words[1]]);
        assert_eq!(report["exit_status"], 125, "{report}");
    }
}

#[test]
fn the_end_of_a_child_is_its_parents_affair() {
    let Some(workload) = workload() else { return };
    let script = format!("{} fill 64; test $? = 134 && exit 3", workload.program);
    let (output, report) = breaks("fault", &["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(3), "{report}");
    names(&output, &report, &["a test wanted it: Fault"]);
}

#[test]
fn a_panic_needs_nothing_of_the_thread_that_made_the_pager() {
    // Paged thread-local storage with a paged table: a handler that used it would wait for itself.
    let Some(workload) = workload() else { return };
    for point in ["fault", "fault:3000", "store:100"] {
        let (output, report) = breaks(point, &[&workload.program, "child", "64", &workload.library]);
        assert_eq!(output.status.code(), Some(0), "{point}: {report}");
        names(&output, &report, &["a test wanted it"]);
    }
}
