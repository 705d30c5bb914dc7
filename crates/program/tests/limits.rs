//! The limits in docs/user/limits.md: beyond each, a program continues, with a message.

mod support;

use support::{managed, workload, CANNOT};

/// The ledger has 1,024 places: further processes run unmanaged.
#[test]
fn two_thousand_processes_at_once() {
    let Some(workload) = workload("crowd") else { return };
    let beyond = "more processes at a time than the ledger has room for";
    // Each process says hello when its control thread runs, and some may have ended by then.
    let is_reported = ["1", "5", "25"].iter().any(|seconds| {
        let ran = managed("2G", &["-q"], &[workload, "2000", seconds]).expect("there is a workload");
        ran.assert_status(0);
        assert_eq!(ran.printed, "2000 right\n", "{ran}");
        ran.text("unmanaged").contains(beyond)
    });
    assert!(is_reported);
}

/// Regression: the message blamed memory touched faster than pages could leave.
#[test]
fn memory_that_cannot_leave_is_named_as_the_reason() {
    let Some(workload) = workload("immovable") else { return };
    let Some(ran) = managed("24M", &[], &[workload]) else { return };
    if ran.status == CANNOT {
        return testkit::skip!("kernel", "protection keys cannot be had on this machine");
    }
    ran.assert_status(0);
    assert_eq!(ran.printed, "right\n", "{ran}");
    assert!(ran.number("immovable_pages") > 2000, "{ran}");
    let reason = ran.report["over_limit_reason"].as_str().unwrap_or_default();
    assert!(reason.contains("locked or under a protection key"), "{reason}");
    assert!(ran.said.contains(reason) && !ran.said.contains("--swap"), "{ran}");
}
