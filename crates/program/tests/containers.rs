//! Podman's containers, root's and a user's, with and without the device, under default profiles.

mod support;

use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use support::{has, is_root, set_mode, workload, Ran, Scratch, PROGRAM};

const USER: &str = "uzswap-containers";
const WITH_DEVICE: &str = "--device";
const WITH_FORKS: &str = "--cap-add=SYS_PTRACE";

/// A directory open to all users: a root directory with this machine's programs, a device node that
/// any user may open, uzswap, and the workload.
struct Containers {
    directory: Scratch,
    runtime: &'static str,
    is_rootless: bool,
}

impl Containers {
    fn new(is_rootless: bool) -> Option<Containers> {
        let workload =
            workload("traps").filter(|_| is_root("make device nodes and users") && has("podman"))?;
        let directory = Scratch::public("containers");
        for name in ["proc", "dev", "sys", "run", "tmp", "etc", "mnt", "usr", "var/tmp", "runtime"] {
            directory.directory(&format!("root/{name}"));
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), directory.path(&format!("root/{name}"))).unwrap();
        }
        directory.directory("work");
        testkit::copy_program(workload, directory.path("work/workload"));
        testkit::copy_program(PROGRAM, directory.path("work/uzswap"));
        for name in ["work", "root", "root/etc", "root/run", "root/tmp", "root/var/tmp"] {
            set_mode(directory.path(name), 0o777);
        }
        let mut containers = Containers { directory, runtime: "", is_rootless };
        if !containers.make_node() || is_rootless && !containers.make_user() {
            return None;
        }
        containers.runtime = containers.runtime_that_works()?;
        Some(containers)
    }

    /// Makes a separate node, so that other users of this machine cannot reach the device.
    fn make_node(&self) -> bool {
        let devices = std::fs::read_to_string("/proc/misc").unwrap_or_default();
        let number = devices.lines().find_map(|line| line.strip_suffix(" userfaultfd"));
        let Some(number) = number.map(str::trim) else {
            testkit::skip!("userfaultfd", "no /dev/userfaultfd");
            return false;
        };
        let node = self.directory.path("node");
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
        let home = self.directory.path("home");
        let made = Command::new("useradd").args(["--create-home", "--home-dir"]).arg(home).arg(USER).output();
        let is_made = made.as_ref().is_ok_and(|output| output.status.success());
        if !is_made {
            testkit::skip!("root", "no user can be made: {made:?}");
            return false;
        }
        let given = Command::new("chown").arg(USER).arg(self.directory.path("root/runtime")).status();
        given.is_ok_and(|status| status.success())
    }

    fn runtime_that_works(&mut self) -> Option<&'static str> {
        let mut said = String::new();
        for runtime in ["crun", "runc"] {
            self.runtime = runtime;
            let ran = self.run(&[], &["true"]);
            if ran.status == Some(0) {
                return Some(runtime);
            }
            said = ran.said;
        }
        testkit::skip!("container", "podman makes no containers here: {said}");
        None
    }

    /// Runs a command in a new container. [`WITH_DEVICE`] in the options adds this test's node.
    fn run(&self, options: &[&str], command: &[&str]) -> Ran {
        let mut podman = match self.is_rootless {
            true => {
                let mut podman = Command::new("setpriv");
                podman.args(["--reuid", USER, "--regid", USER, "--init-groups", "podman"]);
                podman
                    .env("HOME", self.directory.path("home"))
                    .env("XDG_RUNTIME_DIR", self.directory.path("root/runtime"));
                podman
            }
            false => Command::new("podman"),
        };
        podman.current_dir(self.directory.path(""));
        podman.args(["--runtime", self.runtime, "run", "--rm", "--network=none"]);
        // Some machines' default limits for containers exceed the permitted ones.
        podman.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--volume=/usr:/usr:ro"]);
        podman.arg(format!("--volume={}:/mnt", self.directory.path("work").display()));
        for option in options {
            match *option {
                WITH_DEVICE => {
                    podman.arg(format!("--device={}:/dev/userfaultfd", self.directory.path("node").display()))
                }
                option => podman.arg(option),
            };
        }
        Ran::of(podman.arg("--rootfs").arg(self.directory.path("root")).args(command))
    }

    fn check(&self, options: &[&str]) -> Value {
        self.run(options, &["/mnt/uzswap", "check", "--json"]).json()
    }

    fn pages(&self, options: &[&str], mode: &str) -> Ran {
        let run = "/mnt/uzswap run -q --ram 24M --report /mnt/report.json -- /mnt/workload";
        let command: Vec<&str> = run.split(' ').chain([mode, "40"]).collect();
        let report = self.directory.path("work/report.json");
        let ran = self.run(options, &command).with_report(&report);
        let _ = std::fs::remove_file(report);
        ran.assert_paged().assert_all_managed();
        ran
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
    let Some(containers) = Containers::new(false) else { return };
    let closed = containers.check(&[]);
    assert!(fix(&closed, "userfaultfd").contains("podman run --device /dev/userfaultfd"), "{closed}");
    let ran = containers.run(&[], &["/mnt/uzswap", "run", "--ram", "40M", "--", "true"]);
    ran.assert_status(125).assert_says(&["a container of Podman"]);

    let open = containers.check(&[WITH_DEVICE]);
    assert_eq!(row(&open, "userfaultfd")["ok"], true, "{open}");
    assert!(fix(&open, "feature EVENT_FORK").contains("--cap-add SYS_PTRACE"), "{open}");
    assert_eq!(containers.check(&[WITH_DEVICE, WITH_FORKS])["ok"], true);

    for mode in ["plain", "fork"] {
        containers.pages(&[WITH_DEVICE], mode);
        containers.pages(&[WITH_DEVICE, "--user=1000"], mode);
    }
    let ran = containers.pages(&[WITH_DEVICE, WITH_FORKS], "fork");
    assert_eq!(ran.number("brought_in"), 0, "paging did not end for a fork: {ran}");
}

#[test]
fn an_ordinary_user_s_containers() {
    let Some(containers) = Containers::new(true) else { return };
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
