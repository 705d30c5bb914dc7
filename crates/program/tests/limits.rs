//! The limits in docs/user/limits.md: beyond each, a program continues, with a message.

#[allow(dead_code)]
mod support;

use support::{managed, workload_in, Scratch};

const CANNOT: i32 = 77;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The ledger has 1,024 places: further processes run unmanaged.
#[test]
fn two_thousand_processes_at_once() {
    let scratch = Scratch::new("crowd");
    let Some(workload) = workload_in(&scratch, "crowd") else { return };
    let beyond = "more processes at a time than the ledger has room for";
    // Each process says hello when its control thread runs, and some may have ended by then.
    let is_reported = ["1", "5", "25"].iter().any(|seconds| {
        let (output, report) = managed("2G", &scratch, &["-q"], &[&workload, "2000", seconds]);
        let (said, printed) = (text(&output.stderr), text(&output.stdout));
        assert_eq!((output.status.code(), printed.as_str()), (Some(0), "2000 right\n"), "{said}");
        report["unmanaged"].to_string().contains(beyond)
    });
    assert!(is_reported);
}

/// Regression: the message blamed memory touched faster than pages could leave.
#[test]
fn memory_that_cannot_leave_is_named_as_the_reason() {
    let scratch = Scratch::new("immovable");
    let Some(workload) = workload_in(&scratch, "immovable") else { return };
    let (output, report) = managed("24M", &scratch, &[], &[&workload]);
    let said = text(&output.stderr);
    if output.status.code() == Some(CANNOT) {
        testkit::skip!("kernel", "protection keys cannot be had on this machine");
        return;
    }
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "right\n"), "{said}");
    assert!(report["immovable_pages"].as_u64() > Some(2000), "{report}");
    let reason = report["over_limit_reason"].as_str().unwrap_or_default();
    assert!(reason.contains("locked or under a protection key"), "{reason}");
    assert!(said.contains(reason) && !said.contains("--swap"), "{said}");
}
