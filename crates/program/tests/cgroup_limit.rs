//! The cgroup memory limit that programs read: runtimes size their heaps by it.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{can_manage, has, managed, uzswap, Scratch};

const MIB: u64 = 1 << 20;

/// The file of this process's own limit and its content; `None` without cgroups.
fn own_limit() -> Option<(PathBuf, String)> {
    let membership = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let of = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let directory = PathBuf::from(format!("{root}{}", group.trim_end_matches('/')));
        // With both versions mounted, version 2 has a directory without a memory controller.
        (directory.is_dir()
            && (root.ends_with("memory") || Path::new("/sys/fs/cgroup/cgroup.procs").exists()))
        .then(|| directory.join(file))
    };
    let found = membership.lines().find_map(of);
    if found.is_none() {
        testkit::skip!("cgroup", "there is no control group for memory");
    }
    let path = found?;
    let text = std::fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
    Some((path, text))
}

fn workload(scratch: &Scratch) -> PathBuf {
    let program = scratch.path("limit");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/limit.c");
    let status = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).arg("-lpthread").status();
    assert!(status.expect("cc starts").success());
    program
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_reader_sees_the_limit() {
    let Some((path, real)) = own_limit() else { return };
    if !can_manage() || !has("cc") {
        return;
    }
    let lower = real.parse::<u64>().is_ok_and(|limit| limit <= 16 * 32 * MIB);
    let scratch = Scratch::new("limit");
    let program = workload(&scratch);
    let run = |options: &[&str]| {
        let _ = std::fs::remove_file(scratch.path("made"));
        let mut command = uzswap();
        command
            .args(["run", "-q"])
            .args(options)
            .arg("--")
            .arg(&program)
            .arg(&path)
            .current_dir(scratch.path("."));
        said(&command.output().unwrap())
    };
    let lines = |limit: &str| {
        format!(
            "open {limit}\nopen64 {limit} cloexec\nopenat {limit} cloexec\nopenat64 {limit}\nfopen {limit}\n\
             fopen64 {limit}\nmade 640\n"
        )
    };
    if lower {
        testkit::skip!("cgroup", "the limit here is {real}");
    } else {
        assert_eq!(run(&["--ram", "32M"]), lines(&(16 * 32 * MIB).to_string()));
        assert_eq!(run(&["--ram", "32M", "--cgroup-limit", "100M"]), lines(&(100 * MIB).to_string()));
    }
    if real.parse::<u64>().is_ok() {
        assert_eq!(run(&["--ram", "32M", "--cgroup-limit", "real"]), lines(&real));
    }
}

#[test]
fn a_thread_that_opens_can_be_cancelled() {
    if !can_manage() || !has("cc") {
        return;
    }
    let scratch = Scratch::new("cancelled");
    let program = workload(&scratch);
    for way in ["open", "fopen", "system"] {
        let mut command = uzswap();
        command.args(["run", "-q", "--ram", "32M", "--"]).arg(&program).arg(scratch.path(way)).arg(way);
        assert_eq!(said(&command.output().unwrap()), "cancelled\n", "{way}");
    }
}

/// Other groups show their actual limits: managers of groups need them.
#[test]
fn it_is_shown_for_the_own_group_alone() {
    let Some((path, _)) = own_limit() else { return };
    if !can_manage() {
        return;
    }
    let other = path.parent().unwrap().join(format!("uzswap-test-{}", std::process::id()));
    if std::fs::create_dir(&other).is_err() {
        testkit::skip!("cgroup", "no control group can be made");
        return;
    }
    let file = other.join(path.file_name().unwrap());
    let bare = std::fs::read_to_string(&file);
    let limit = |options: &[&str], command: &[&str]| {
        let scratch = Scratch::new("other");
        let (output, report) = managed("32M", &scratch, &[&["-q"], options].concat(), command);
        (said(&output), report["cgroup_limit_bytes"].as_u64())
    };
    let name = file.to_str().unwrap();
    let (there, _) = limit(&[], &["cat", name]);
    let script = format!("echo $$ > {}/cgroup.procs && cat {name}", other.display());
    let (inside, reported) = limit(&[], &["sh", "-c", &script]);
    // A lower limit stays, unless the user asked for another.
    let can_lower = std::fs::write(&file, "67108864").is_ok();
    let (lower, _) = limit(&[], &["sh", "-c", &script]);
    let (asked, _) = limit(&["--cgroup-limit", "100M"], &["sh", "-c", &script]);
    std::fs::remove_dir(&other).unwrap();
    let Ok(bare) = bare else {
        testkit::skip!("cgroup", "groups have no memory limit here");
        return;
    };
    assert_eq!(there, bare);
    assert_eq!(inside.trim(), (16 * 32 * MIB).to_string());
    assert_eq!(reported, Some(16 * 32 * MIB));
    if can_lower {
        assert_eq!(lower.trim(), (64 * MIB).to_string());
        assert_eq!(asked.trim(), (100 * MIB).to_string());
    }
}

/// A limit that cannot be raised above the value that Node and HotSpot believe.
#[test]
fn runtimes_believe_it() {
    let Some((_, real)) = own_limit() else { return };
    if !can_manage() || real.parse::<u64>().is_ok_and(|limit| limit <= 16 * 64 * MIB) {
        return;
    }
    let ask = |command: &[&str], options: &[&str]| {
        let output = uzswap()
            .args(["run", "-q", "--ram", "64M"])
            .args(options)
            .arg("--")
            .args(command)
            .output()
            .unwrap();
        said(&output)
    };
    if has("node") {
        let script = "console.log(v8.getHeapStatistics().heap_size_limit)";
        let limit = |options: &[&str]| ask(&["node", "-e", script], options).trim().parse::<u64>().unwrap();
        let (shown, real) = (limit(&[]), limit(&["--cgroup-limit", "real"]));
        assert!((256 * MIB..700 * MIB).contains(&shown) && shown < real, "{shown}, {real} without");
    }
    if has("java") {
        let command = ["java", "-Xshare:off", "-XX:+PrintFlagsFinal", "-version"];
        let heap = |options: &[&str]| {
            let flags = ask(&command, options);
            let line = flags.lines().find(|line| line.contains(" MaxHeapSize ")).expect("the flag is listed");
            line.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap()
        };
        assert_eq!(heap(&[]), 256 * MIB);
        assert!(heap(&["--cgroup-limit", "real"]) > 256 * MIB);
    }
}
