//! `uzswap device`: the generator against golden directories, and real swap with its clean-up.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use support::{
    command, has, is_root, own, plugin, printed, signal, uzswap, uzswap_with, wait_until, Ran, Scratch,
    Started,
};

fn tree(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(directory).unwrap().to_owned();
            if path.is_symlink() {
                files.insert(name, format!("-> {}\n", fs::read_link(&path).unwrap().display()));
            } else if path.is_dir() {
                open.push(path);
            } else {
                files.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    files
}

/// Each directory of `tests/generator` has an input, `root`, and the generator's expected output as
/// text in `expected`: each file below its name. `UZSWAP_TEST_WRITE=1` rewrites the expectations.
#[test]
fn units_are_as_expected() {
    let cases = own("tests/generator");
    let mut count = 0;
    for case in fs::read_dir(&cases).unwrap() {
        let case = case.unwrap().path();
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let scratch = Scratch::new("generator");
        let out = scratch.directory("out");
        let mut generate = uzswap();
        generate.args(["device", "generate", &out, &out, &out]);
        let ran = Ran::of(generate.env("UZSWAP_GENERATOR_ROOT", case.join("root")));
        let mut text = String::new();
        for (file, content) in tree(Path::new(&out)) {
            text += &format!("==> {} <==\n{content}\n", file.display());
        }
        let said = ran.said.replace(&*cases.to_string_lossy(), "");
        text += &format!("==> status <==\n{}\n{said}", ran.status.unwrap());
        let expected = case.join("expected");
        if std::env::var_os("UZSWAP_TEST_WRITE").is_some() {
            fs::write(&expected, &text).unwrap();
        }
        assert_eq!(text, fs::read_to_string(&expected).unwrap_or_default(), "{name}");
        count += 1;
    }
    assert!(count >= 10);
}

/// systemd-analyze accepts the units.
#[test]
fn units_are_units() {
    if !has("systemd-analyze") {
        return;
    }
    let scratch = Scratch::new("units");
    let root = own("tests/generator/02-formulas/root");
    let out = scratch.text("");
    printed(uzswap().args(["device", "generate", &out]).env("UZSWAP_GENERATOR_ROOT", root));
    let unit = scratch.path("uzswap0.service");
    let text = fs::read_to_string(&unit).unwrap().replace("/usr/bin/uzswap", "/bin/true");
    let unit = scratch.write("uzswap0.service", text);
    let ran = Ran::of(&mut command(&["systemd-analyze", "verify", "--man=no", &unit]));
    assert!(!ran.said.contains("uzswap0.service"), "{ran}");
}

fn file_system(directory: &str) -> String {
    printed(&mut command(&["stat", "-f", "-c", "%T", directory])).trim().to_owned()
}

fn swaps() -> String {
    fs::read_to_string("/proc/swaps").unwrap_or_default()
}

#[test]
fn swap_is_there_until_told_to_stop() {
    if !is_root("swap") {
        return;
    }
    for program in ["nbdkit", "nbdfuse", "losetup", "mkswap", "swapon"] {
        let script = format!("PATH=$PATH:/usr/sbin:/sbin command -v {program}");
        if Ran::of(&mut command(&["sh", "-c", &script])).status != Some(0) {
            testkit::skip!("tool", "there is no {program}");
            return;
        }
    }
    if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        testkit::skip!("swap", "neither FUSE nor loop devices here");
        return;
    }
    let before = swaps();
    let scratch = Scratch::new("device");
    let (plugin, stats) = (plugin().into_os_string().into_string().unwrap(), scratch.text("stats.json"));
    let options = "device swap --size 96M --ram 40M --attach loop --priority 7 --plugin";
    let options: Vec<&str> = options.split(' ').chain([&*plugin, "--stats", &stats]).collect();
    let mut swap = uzswap();
    swap.args(options);
    let has_file = file_system("/var/tmp") != "tmpfs";
    if has_file {
        swap.args(["--swap", "64M", "--swap-dir", "/var/tmp"]);
    } else {
        testkit::skip!("disk", "/var/tmp is in memory");
    }
    let mut swap = Started::new(&mut swap);
    wait_until("there is swap", || swaps() != before || swap.child.try_wait().unwrap().is_some());
    let during = swaps();
    signal(swap.pid(), libc::SIGTERM);
    let ran = swap.end().with_report(stats);
    ran.assert_status(0).assert_says(&["96 MiB of swap on /dev/loop"]);
    let line =
        during.lines().find(|line| !before.contains(*line)).unwrap_or_else(|| panic!("no swap: {ran}"));
    let fields: Vec<&str> = line.split_whitespace().collect();
    assert!(fields[0].starts_with("/dev/loop") && fields[2] == "98300" && fields[4] == "7", "{line}");
    assert_eq!(ran.said.contains("in 40 MiB of memory (auto) and 64 MiB of disk"), has_file, "{ran}");
    assert_eq!(swaps(), before);
    assert!(ran.number("write_ios") > 0 && ran.number("mem_limit") == 40 << 20, "{ran}");
    assert_eq!(ran.report["swap_limit"] == 64 << 20, has_file, "{ran}");
    if file_system("/dev/shm") == "tmpfs" {
        let options =
            "device swap --size 96M --ram 40M --swap 64M --swap-dir /dev/shm --attach loop --plugin";
        let options: Vec<&str> = options.split(' ').chain([&*plugin]).collect();
        uzswap_with(&options).assert_status(125).assert_says(&["/dev/shm lies in memory (tmpfs)"]);
        assert_eq!(swaps(), before);
    }
    assert!(!fs::read_to_string("/proc/mounts").unwrap().contains("/uzswap-device-"));
    for parent in ["/run", "/tmp", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"] {
        let left = fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("uzswap-device-")).collect();
        assert!(left.is_empty(), "{parent}: {left:?}");
    }
}

#[test]
fn impossible_sizes_are_refused_with_their_option() {
    for (option, value) in [("--size", "200%"), ("--size", "much"), ("--ram", "0%"), ("--request", "-1")] {
        let size = if option == "--size" { &[][..] } else { &["--size", "1G"] };
        let ran = uzswap_with(&[&["device", "ublk", &format!("{option}={value}")], size].concat());
        ran.assert_status(125);
        assert!(ran.said.starts_with(&format!("uzswap: {option}: \"{value}\" is not a ")), "{ran}");
    }
}

#[test]
fn without_ublk_and_plugin_both_fixes_are_named() {
    if !is_root("swap") {
        return;
    }
    if Path::new("/dev/ublk-control").exists() {
        return testkit::skip!("kernel", "there is ublk");
    }
    // A copy has no plugin beside it.
    let scratch = Scratch::new("alone");
    let program = scratch.path("uzswap");
    fs::copy(support::PROGRAM, &program).unwrap();
    let swap = |size: &str| {
        Ran::of(std::process::Command::new(&program).args(["device", "swap", "--size", size]).env("PATH", ""))
    };
    let ran = swap("1G");
    ran.assert_status(125).assert_says(&[
        "there is no ublk",
        "there is no nbdkit",
        "modprobe ublk_drv",
        "--plugin",
    ]);
    swap("4k").assert_status(125).assert_says(&["--size 4k: the minimum is 1 MiB"]);
}
