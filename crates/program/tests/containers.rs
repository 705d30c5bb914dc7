//! Podman's containers, root's and a user's, with and without the device, under default profiles.

#[allow(dead_code)]
mod support;

use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use support::{can_manage, compile_with, has};

const USER: &str = "uzswap-containers";
const WITH_DEVICE: &str = "--device";
const WITH_FORKS: &str = "--cap-add=SYS_PTRACE";

/// A directory open to all users: a root directory with this machine's programs, a device node that
/// any user may open, uzswap, and the workload.
struct Containers {
    directory: PathBuf,
    runtime: &'static str,
    is_rootless: bool,
}

impl Containers {
    fn new(name: &str, is_rootless: bool) -> Option<Containers> {
        // SAFETY: takes nothing.
        if unsafe { libc::geteuid() } != 0 {
            testkit::skip!("root", "only root can make device nodes and users");
            return None;
        }
        if !can_manage() || !has("podman") || !has("cc") {
            return None;
        }
        let directory = std::env::temp_dir().join(format!("uzswap-containers-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut containers = Containers { directory, runtime: "", is_rootless };
        for name in ["proc", "dev", "sys", "run", "tmp", "etc", "mnt", "usr", "var/tmp", "runtime"] {
            std::fs::create_dir_all(containers.path(&format!("root/{name}"))).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), containers.path(&format!("root/{name}"))).unwrap();
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/traps.c");
        std::fs::create_dir(containers.path("work")).unwrap();
        assert!(compile_with(&[], &source, &containers.path("work/workload")));
        testkit::copy_program(env!("CARGO_BIN_EXE_uzswap"), containers.path("work/uzswap"));
        for name in [".", "work", "root", "root/etc", "root/run", "root/tmp", "root/var/tmp"] {
            let everybody = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(containers.path(name), everybody).unwrap();
        }
        if !containers.make_node() || is_rootless && !containers.make_user() {
            return None;
        }
        containers.runtime = containers.runtime_that_works()?;
        Some(containers)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes a separate node, so that other users of this machine cannot reach the device.
    fn make_node(&self) -> bool {
        let devices = std::fs::read_to_string("/proc/misc").unwrap_or_default();
        let number = devices.lines().find_map(|line| line.strip_suffix(" userfaultfd"));
        let Some(number) = number.map(str::trim) else {
            testkit::skip!("userfaultfd", "no /dev/userfaultfd");
            return false;
        };
        let node = self.path("node");
        let made = Command::new("mknod").args(["-m", "666"]).arg(&node).args(["c", "10", number]).status();
        let opens = std::fs::OpenOptions::new().read(true).write(true).open(node).is_ok();
        if !opens {
            testkit::skip!("kernel", "a node of the device cannot be made, or not opened: {made:?}");
        }
        opens
    }

    fn make_user(&self) -> bool {
        if !has("useradd") || !has("newuidmap") {
            return false;
        }
        // Remove the user that a killed test left behind.
        let _ = Command::new("userdel").args(["--remove", USER]).output();
        let home = self.path("home");
        let made = Command::new("useradd").args(["--create-home", "--home-dir"]).arg(home).arg(USER).output();
        let is_made = made.as_ref().is_ok_and(|output| output.status.success());
        if !is_made {
            testkit::skip!("root", "no user can be made: {made:?}");
            return false;
        }
        let given = Command::new("chown").arg(USER).arg(self.path("root/runtime")).status();
        given.is_ok_and(|status| status.success())
    }

    fn runtime_that_works(&mut self) -> Option<&'static str> {
        let mut said = String::new();
        for runtime in ["crun", "runc"] {
            self.runtime = runtime;
            let output = self.run(&[], &["true"]);
            if output.status.success() {
                return Some(runtime);
            }
            said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        }
        testkit::skip!("container", "podman makes no containers here: {said}");
        None
    }

    /// Runs a command in a new container. [`WITH_DEVICE`] in the options adds this test's node.
    fn run(&self, options: &[&str], command: &[&str]) -> Output {
        let mut podman = match self.is_rootless {
            true => {
                let mut podman = Command::new("setpriv");
                podman.args(["--reuid", USER, "--regid", USER, "--init-groups", "podman"]);
                podman.env("HOME", self.path("home")).env("XDG_RUNTIME_DIR", self.path("root/runtime"));
                podman
            }
            false => Command::new("podman"),
        };
        podman.current_dir(&self.directory).args([
            "--runtime",
            self.runtime,
            "run",
            "--rm",
            "--network=none",
        ]);
        // Some machines' default limits for containers exceed the permitted ones.
        podman.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--volume=/usr:/usr:ro"]);
        podman.arg(format!("--volume={}:/mnt", self.path("work").display()));
        for option in options {
            match *option {
                WITH_DEVICE => {
                    podman.arg(format!("--device={}:/dev/userfaultfd", self.path("node").display()))
                }
                option => podman.arg(option),
            };
        }
        podman.arg("--rootfs").arg(self.path("root")).args(command).output().expect("podman starts")
    }

    fn check(&self, options: &[&str]) -> Value {
        let output = self.run(options, &["/mnt/uzswap", "check", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    fn pages(&self, options: &[&str], mode: &str) -> Value {
        let run = "/mnt/uzswap run -q --ram 24M --report /mnt/report.json -- /mnt/workload";
        let command: Vec<&str> = run.split(' ').chain([mode, "40"]).collect();
        let output = self.run(options, &command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{mode} with {options:?}: {said}");
        let report = self.path("work/report.json");
        let text = std::fs::read_to_string(&report).expect("a report");
        let _ = std::fs::remove_file(report);
        let report: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(report["unmanaged"], serde_json::json!([]), "{mode} with {options:?}: {report}");
        assert!(report["zswpout"].as_u64().unwrap() > 1000, "{mode} with {options:?}: {report}");
        report
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        if self.is_rootless {
            // Podman leaves a process of the user behind, which makes userdel fail.
            let _ = Command::new("pkill").args(["-KILL", "-u", USER]).status();
            for _ in 0..50 {
                let gone = Command::new("userdel").args(["--remove", USER]).output();
                if gone.is_ok_and(|output| output.status.success()) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn row<'a>(check: &'a Value, name: &str) -> &'a Value {
    let rows = check["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name}: {check}"))
}

fn fix<'a>(check: &'a Value, name: &str) -> &'a str {
    row(check, name)["fix"].as_str().unwrap_or_else(|| panic!("{name} is there: {check}"))
}

#[test]
fn root_s_containers() {
    let Some(containers) = Containers::new("root", false) else { return };
    let closed = containers.check(&[]);
    assert!(fix(&closed, "userfaultfd").contains("podman run --device /dev/userfaultfd"), "{closed}");
    let output = containers.run(&[], &["/mnt/uzswap", "run", "--ram", "40M", "--", "true"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(125) && said.contains("a container of Podman"), "{said}");

    let open = containers.check(&[WITH_DEVICE]);
    assert_eq!(row(&open, "userfaultfd")["ok"], true, "{open}");
    assert!(fix(&open, "feature EVENT_FORK").contains("--cap-add SYS_PTRACE"), "{open}");
    assert_eq!(containers.check(&[WITH_DEVICE, WITH_FORKS])["ok"], true);

    for mode in ["plain", "fork"] {
        containers.pages(&[WITH_DEVICE], mode);
        containers.pages(&[WITH_DEVICE, "--user=1000"], mode);
    }
    let report = containers.pages(&[WITH_DEVICE, WITH_FORKS], "fork");
    assert_eq!(report["brought_in"], 0, "paging did not end for a fork: {report}");
}

#[test]
fn an_ordinary_user_s_containers() {
    let Some(containers) = Containers::new("rootless", true) else { return };
    let closed = containers.check(&[]);
    assert!(fix(&closed, "userfaultfd").contains("setfacl"), "{closed}");
    let open = containers.check(&[WITH_DEVICE]);
    assert_eq!(row(&open, "userfaultfd")["ok"], true, "{open}");
    assert!(fix(&open, "feature EVENT_FORK").starts_with("none"), "{open}");
    for mode in ["plain", "fork"] {
        containers.pages(&[WITH_DEVICE], mode);
        containers.pages(&[WITH_DEVICE, "--user=1000"], mode);
    }
}
