//! Programs of users other than root, and programs that become one.
//!
//! The supervisor opens files and agrees on features for a process that may not. Where it may not
//! either, the operation is not done: a fork without a report would give its child zeroes for
//! evicted pages.

mod support;

use support::{
    as_user, capable, has, has_device, is_root, managed, workload, workload_with, Ran, Scratch, PROGRAM, USER,
};

/// A directory for other users with the workload, dynamic and static, and uzswap; `None` without
/// another user to become.
fn public() -> Option<(Scratch, Vec<String>)> {
    if !is_root("become another user") || !has("setpriv") || !has_device() {
        return None;
    }
    let public = Scratch::public("users");
    let copy = |program: &str, name: &str| {
        testkit::copy_program(program, public.path(name));
        public.text(name)
    };
    let mut workloads = vec![copy(workload("traps")?, "workload")];
    workloads.extend(workload_with("traps", &["-static"]).map(|program| copy(program, "static")));
    copy(PROGRAM, "uzswap");
    Some((public, workloads))
}

/// The program loads no preload object, since that user may not open the supervisor's path. So only
/// the kernel's report shows its forks, which only root may request.
#[test]
fn a_program_that_root_starts_as_another_user() {
    let Some((_public, workloads)) = public() else { return };
    for workload in &workloads {
        for mode in ["plain", "fork", "raw_fork"] {
            let command = [&USER[..], &[workload, mode, "64"]].concat();
            let Some(ran) = managed("40M", &["-q"], &command) else { return };
            ran.assert_quiet().assert_paged().assert_all_managed();
        }
    }
}

/// The process may no longer open the files that its children's pagers need.
#[test]
fn a_daemon_becomes_another_user_and_forks() {
    let Some((_public, workloads)) = public() else { return };
    let Some(ran) = managed("40M", &["-q"], &[&workloads[0], "drop_fork", "64"]) else { return };
    ran.assert_quiet().assert_paged().assert_all_managed();
    // The evicted pages came in once, when it gave up root, and none for forks.
    let pages = 64 << 8;
    assert!(ran.number("brought_in") < pages, "paging ended for a fork: {ran}");
}

/// Runs the workload under an ordinary user's uzswap with access to the device.
fn as_ordinary_user(public: &Scratch, uzswap: &str, workload: &str, mode: &str) -> Option<Ran> {
    let report = public.text(&format!("{mode}.json"));
    let command = ["run", "-q", "--ram", "40M", "--report", &report, "--", workload, mode, "64"];
    let ran = as_user(public, uzswap, &command)?.with_report(report);
    ran.assert_quiet();
    Some(ran)
}

fn are_managed(public: &Scratch, uzswap: &str, workloads: &[String]) {
    for workload in workloads {
        for mode in ["plain", "threads", "fork", "raw_fork"] {
            let Some(ran) = as_ordinary_user(public, uzswap, workload, mode) else { return };
            ran.assert_paged().assert_all_managed();
        }
    }
}

#[test]
fn an_ordinary_user_s_programs() {
    let Some((public, workloads)) = public() else { return };
    are_managed(&public, &public.text("uzswap"), &workloads[..1]);
}

/// Regression: its children read zeroes for its evicted pages.
#[test]
fn a_static_program_without_fork_reports_is_unmanaged() {
    let Some((public, workloads)) = public() else { return };
    let Some(workload) = workloads.get(1) else { return };
    let Some(ran) = as_ordinary_user(&public, &public.text("uzswap"), workload, "fork") else { return };
    assert_eq!(ran.number("zswpout"), 0, "{ran}");
    let why = ran.text("unmanaged");
    assert!(why.contains("its forks cannot be seen") && why.contains("setcap"), "{ran}");
}

/// The file has CAP_SYS_PTRACE: forks of static programs are reported, and dynamic programs find
/// the object.
#[test]
fn an_ordinary_user_s_programs_where_the_file_has_a_capability() {
    let Some((public, workloads)) = public() else { return };
    let Some(capable) = capable(&public) else { return };
    are_managed(&public, &capable, &workloads);
}

/// The process that a user starts has no capability of its file, is dumpable, and passes on the
/// variables that the loader removes from privileged programs.
#[test]
fn nothing_of_a_capability_is_left_in_the_process_that_has_it() {
    let Some((public, _)) = public() else { return };
    let Some(capable) = capable(&public) else { return };
    let script = "echo $TMPDIR $LD_LIBRARY_PATH; grep -E '^(Cap(Prm|Eff|Amb)|NoNewPrivs)' /proc/$PPID/status
        test -r /proc/$PPID/environ && ls /proc/$PPID/fd > /dev/null && echo open";
    let wrapped = format!("TMPDIR=/somewhere LD_LIBRARY_PATH=/nowhere exec {capable} \"$@\"");
    let command = ["-c", &wrapped, "sh", "run", "-q", "--ram", "64M", "--", "sh", "-c", script];
    let Some(ran) = as_user(&public, "sh", &command) else { return };
    assert_eq!(ran.said, "");
    let none = "0000000000000000";
    let expected = format!(
        "/somewhere /nowhere\nCapPrm:\t{none}\nCapEff:\t{none}\nCapAmb:\t{none}\nNoNewPrivs:\t0\nopen\n"
    );
    assert_eq!(ran.printed, expected);
}
