//! The limits in docs/user/limits.md: beyond each, a program continues, with a message.

mod support;

use support::{command, has, is_root, managed, workload, Ran, Scratch, CANNOT, PROGRAM};

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

/// Fills 100 MiB, and tells how many more could be mapped.
const FILL: &str = "import mmap\n\
                    block, maps = bytes(range(256)) * 4096, []\n\
                    try:\n  \
                      while True: maps.append(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))\n\
                    except OSError: pass\n\
                    print(len(maps))\n\
                    del maps[-20:]\n\
                    for m in maps[:100]: m[:] = block\n\
                    assert all(m[:] == block for m in maps[:100])\n";

/// Regression: staging did not fit into the agent's share, so that the program ran unmanaged.
#[test]
fn a_hard_limit_on_address_space_leaves_a_program_managed_and_three_quarters_of_it() {
    if !has("python3") || !has("setpriv") || !is_root("give up CAP_SYS_RESOURCE") {
        return;
    }
    let scratch = Scratch::new("limits-address-space");
    let report = scratch.text("report.json");
    let limited = |words: &[&str]| {
        let begin = [
            "setpriv",
            "--bounding-set",
            "-sys_resource",
            "sh",
            "-c",
            "ulimit -v 512000 && exec \"$@\"",
            "sh",
        ];
        Ran::of(&mut command(&[&begin[..], words, &["python3", "-c", FILL]].concat()))
    };
    let mapped = |ran: &Ran| ran.assert_status(0).printed.trim().parse::<u64>().expect("a number");
    let bare = mapped(&limited(&[]));
    if !support::can_manage() {
        return;
    }
    let ran =
        limited(&[PROGRAM, "run", "-q", "--ram", "60M", "--report", &report, "--"]).with_report(&report);
    ran.assert_paged().assert_all_managed().assert_within_budget();
    assert!(mapped(&ran) + 512000 / 4 / 1024 >= bare, "{bare} MiB bare: {ran}");
}

/// Regression: such a program was in no figure, and the summary said that the budget was kept.
#[test]
fn the_memory_of_a_program_without_a_pager_counts() {
    // It stays until it has been looked at, several times a second.
    let script =
        format!("ulimit -n 15; ulimit -v 300000; exec python3 -c '{FILL}import time\ntime.sleep(4)\n'");
    let Some(ran) = managed("60M", &["-q"], &["sh", "-c", &script]) else { return };
    ran.assert_status(0);
    assert!(ran.text("unmanaged").contains("RLIMIT_NOFILE"), "{ran}");
    assert!(
        ran.number("ram_peak_bytes") > 90 << 20 && ran.number("over_limit_peak_bytes") > 30 << 20,
        "{ran}"
    );
}
