//! Programs of users other than root, and programs that become one.
//!
//! The supervisor opens files and agrees on features for a process that may not. Where it may not
//! either, the operation is not done: a fork without a report would give its child zeroes for
//! evicted pages.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{can_link_statically, can_manage, compile_with, has, managed, Scratch};

/// The files for another user: the workload, dynamic and static, and uzswap.
struct Public(PathBuf);

impl Public {
    /// Returns `None` and prints why if there is no other user to become.
    fn new(name: &str) -> Option<Public> {
        // SAFETY: takes nothing.
        if unsafe { libc::geteuid() } != 0 || !has("setpriv") {
            testkit::skip!("root", "only root can become another user, with setpriv(1)");
            return None;
        }
        if !can_manage() || !has("cc") {
            return None;
        }
        // Only root may reach the build directory.
        let directory = std::env::temp_dir().join(format!("uzswap-users-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        let public = Public(directory);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/traps.c");
        assert!(compile_with(&[], &source, &public.path("workload")));
        testkit::copy_program(env!("CARGO_BIN_EXE_uzswap"), public.path("uzswap"));
        Some(public)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn static_workload(&self) -> Option<String> {
        if !can_link_statically(&Scratch::new("users-static")) {
            return None;
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/traps.c");
        compile_with(&["-static"], &source, &self.path("static")).then(|| self.text("static"))
    }
}

impl Drop for Public {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns whether the device can be lent to a process that has lost its rights.
fn has_device() -> bool {
    let has = Path::new("/dev/userfaultfd").exists();
    if !has {
        testkit::skip!("userfaultfd", "no /dev/userfaultfd");
    }
    has
}

fn is_paged(name: &str, output: &std::process::Output, report: &Value) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""), "{name}: {report}");
    assert_eq!(report["unmanaged"], serde_json::json!([]), "{name}: {report}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{name}: nothing was evicted: {report}");
}

/// The program loads no preload object, since that user may not open the supervisor's path. So only
/// the kernel's report shows its forks, which only root may request.
#[test]
fn a_program_that_root_starts_as_another_user() {
    let Some(public) = Public::new("dropped") else { return };
    if !has_device() {
        return;
    }
    let mut workloads = vec![public.text("workload")];
    workloads.extend(public.static_workload());
    for workload in &workloads {
        for mode in ["plain", "fork", "raw_fork"] {
            let scratch = Scratch::new(&format!("users-dropped-{mode}"));
            let command = [&support::USER[..], &[workload, mode, "64"]].concat();
            let (output, report) = managed("40M", &scratch, &["-q"], &command);
            is_paged(&format!("{workload} {mode}"), &output, &report);
        }
    }
}

/// The process may no longer open the files that its children's pagers need.
#[test]
fn a_daemon_becomes_another_user_and_forks() {
    let Some(public) = Public::new("daemon") else { return };
    if !has_device() {
        return;
    }
    let scratch = Scratch::new("users-daemon");
    let (output, report) = managed("40M", &scratch, &["-q"], &[&public.text("workload"), "drop_fork", "64"]);
    is_paged("drop_fork", &output, &report);
    // The evicted pages came in once, when it gave up root, and none for forks.
    let pages = 64 << 8;
    assert!(report["brought_in"].as_u64().unwrap() < pages, "paging ended for a fork: {report}");
}

/// Runs the workload under an ordinary user's uzswap with access to the device; returns the report.
fn as_ordinary_user(public: &Public, uzswap: &str, workload: &str, mode: &str) -> Option<Value> {
    let report = public.text(&format!("{mode}.json"));
    let command = ["run", "-q", "--ram", "40M", "--report", &report, "--", workload, mode, "64"];
    let output = support::as_user(&public.0, uzswap, &command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""), "{workload} {mode}");
    Some(serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap())
}

#[test]
fn an_ordinary_user_s_programs() {
    let Some(public) = Public::new("ordinary") else { return };
    if !has_device() || !has("unshare") {
        return;
    }
    for mode in ["plain", "threads", "fork", "raw_fork"] {
        let Some(report) = as_ordinary_user(&public, &public.text("uzswap"), &public.text("workload"), mode)
        else {
            return;
        };
        assert!(report["zswpout"].as_u64().unwrap() > 1000, "{mode}: {report}");
        assert_eq!(report["unmanaged"], serde_json::json!([]), "{mode}: {report}");
    }
}

/// Regression: its children read zeroes for its evicted pages.
#[test]
fn a_static_program_without_fork_reports_is_unmanaged() {
    let Some(public) = Public::new("unseen") else { return };
    if !has_device() || !has("unshare") {
        return;
    }
    let Some(workload) = public.static_workload() else { return };
    let Some(report) = as_ordinary_user(&public, &public.text("uzswap"), &workload, "fork") else { return };
    assert_eq!(report["zswpout"], 0, "{report}");
    let why = report["unmanaged"][0].as_str().unwrap_or_default();
    assert!(why.contains("its forks cannot be seen") && why.contains("setcap"), "{report}");
}

/// The file has CAP_SYS_PTRACE: forks of static programs are reported, and dynamic programs find
/// the object.
#[test]
fn an_ordinary_user_s_programs_where_the_file_has_a_capability() {
    let Some(public) = Public::new("capable") else { return };
    let Some(capable) = support::capable(&public.0).filter(|_| has_device()) else { return };
    let mut workloads = vec![public.text("workload")];
    workloads.extend(public.static_workload());
    for workload in &workloads {
        for mode in ["plain", "threads", "fork", "raw_fork"] {
            let Some(report) = as_ordinary_user(&public, &capable, workload, mode) else { return };
            assert!(report["zswpout"].as_u64().unwrap() > 1000, "{workload} {mode}: {report}");
            assert_eq!(report["unmanaged"], serde_json::json!([]), "{workload} {mode}: {report}");
        }
    }
}

/// The process that a user starts has no capability of its file, is dumpable, and passes on the
/// variables that the loader removes from privileged programs.
#[test]
fn nothing_of_a_capability_is_left_in_the_process_that_has_it() {
    let Some(public) = Public::new("rights") else { return };
    let Some(capable) = support::capable(&public.0).filter(|_| has_device()) else { return };
    let script = "echo $TMPDIR $LD_LIBRARY_PATH; grep -E '^(Cap(Prm|Eff|Amb)|NoNewPrivs)' /proc/$PPID/status
        test -r /proc/$PPID/environ && ls /proc/$PPID/fd > /dev/null && echo open";
    let wrapped = format!("TMPDIR=/somewhere LD_LIBRARY_PATH=/nowhere exec {capable} \"$@\"");
    let command = ["-c", &wrapped, "sh", "run", "-q", "--ram", "64M", "--", "sh", "-c", script];
    let Some(output) = support::as_user(&public.0, "sh", &command) else { return };
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let none = "0000000000000000";
    let expected = format!(
        "/somewhere /nowhere\nCapPrm:\t{none}\nCapEff:\t{none}\nCapAmb:\t{none}\nNoNewPrivs:\t0\nopen\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}
