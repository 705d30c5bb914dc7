//! `uzswap device`: the generator against golden directories, and real swap with its clean-up.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn uzswap() -> Command {
    Command::new(env!("CARGO_BIN_EXE_uzswap"))
}

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
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generator");
    let mut count = 0;
    for case in fs::read_dir(&cases).unwrap() {
        let case = case.unwrap().path();
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let out = std::env::temp_dir().join(format!("uzswap-generator-{}-{name}", std::process::id()));
        fs::create_dir(&out).unwrap();
        let mut command = uzswap();
        command
            .args(["device", "generate"])
            .args([&out, &out, &out])
            .env("UZSWAP_GENERATOR_ROOT", case.join("root"));
        let output = command.output().unwrap();
        let mut text = String::new();
        for (file, content) in tree(&out) {
            text += &format!("==> {} <==\n{content}\n", file.display());
        }
        let said = String::from_utf8_lossy(&output.stderr).replace(&*cases.to_string_lossy(), "");
        text += &format!("==> status <==\n{}\n{said}", output.status.code().unwrap());
        fs::remove_dir_all(&out).unwrap();
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
    let verify = Command::new("systemd-analyze").arg("--version").stdout(Stdio::null()).status();
    if !verify.is_ok_and(|status| status.success()) {
        testkit::skip!("tool", "there is no systemd-analyze");
        return;
    }
    let out = std::env::temp_dir().join(format!("uzswap-units-{}", std::process::id()));
    fs::create_dir(&out).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generator/02-formulas/root");
    let made =
        uzswap().args(["device", "generate"]).arg(&out).env("UZSWAP_GENERATOR_ROOT", root).status().unwrap();
    assert!(made.success());
    let unit = out.join("uzswap0.service");
    let text = fs::read_to_string(&unit).unwrap().replace("/usr/bin/uzswap", "/bin/true");
    fs::write(&unit, text).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    fs::remove_dir_all(&out).unwrap();
    assert!(!said.contains("uzswap0.service"), "{said}");
}

fn file_system(directory: &str) -> String {
    let output = Command::new("stat").args(["-f", "-c", "%T", directory]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn swaps() -> String {
    fs::read_to_string("/proc/swaps").unwrap_or_default()
}

#[test]
fn swap_is_there_until_told_to_stop() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        testkit::skip!("root", "only root may swap");
        return;
    }
    for program in ["nbdkit", "nbdfuse", "losetup", "mkswap", "swapon"] {
        let script = format!("PATH=$PATH:/usr/sbin:/sbin command -v {program}");
        let found = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).status().unwrap();
        if !found.success() {
            testkit::skip!("tool", "there is no {program}");
            return;
        }
    }
    if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        testkit::skip!("swap", "neither FUSE nor loop devices here");
        return;
    }
    let name = "libnbdkit_uzswap_plugin.so";
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let plugin = [deps.join(name), deps.parent().unwrap().join(name)].into_iter().find(|file| file.exists());
    let plugin = plugin.expect("built for the tests");
    let before = swaps();
    let stats = std::env::temp_dir().join(format!("uzswap-device-{}.json", std::process::id()));
    let mut command = uzswap();
    command.args(["device", "swap", "--size", "96M", "--ram", "40M", "--attach", "loop", "--priority", "7"]);
    command.arg("--plugin").arg(&plugin).arg("--stats").arg(&stats).stderr(Stdio::piped());
    let has_file = file_system("/var/tmp") != "tmpfs";
    if has_file {
        command.args(["--swap", "64M", "--swap-dir", "/var/tmp"]);
    } else {
        testkit::skip!("disk", "/var/tmp is in memory");
    }
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while swaps() == before
        && child.try_wait().unwrap().is_none()
        && start.elapsed() < Duration::from_secs(40)
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    let during = swaps();
    // SAFETY: a child of our own, not waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let line =
        during.lines().find(|line| !before.contains(*line)).unwrap_or_else(|| panic!("no swap: {said}"));
    let fields: Vec<&str> = line.split_whitespace().collect();
    assert!(fields[0].starts_with("/dev/loop") && fields[2] == "98300" && fields[4] == "7", "{line}");
    assert!(said.contains("96 MiB of swap on /dev/loop"), "{said}");
    assert_eq!(said.contains("in 40 MiB of memory (auto) and 64 MiB of disk"), has_file, "{said}");
    assert_eq!(swaps(), before);
    let figures: serde_json::Value = serde_json::from_str(&fs::read_to_string(&stats).unwrap()).unwrap();
    fs::remove_file(&stats).unwrap();
    assert!(figures["write_ios"].as_u64().unwrap() > 0 && figures["mem_limit"] == 40 << 20, "{figures}");
    assert_eq!(figures["swap_limit"] == 64 << 20, has_file, "{figures}");
    if file_system("/dev/shm") == "tmpfs" {
        let mut command = uzswap();
        command.args([
            "device",
            "swap",
            "--size",
            "96M",
            "--ram",
            "40M",
            "--swap",
            "64M",
            "--swap-dir",
            "/dev/shm",
        ]);
        let output = command.args(["--attach", "loop", "--plugin"]).arg(&plugin).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("/dev/shm lies in memory (tmpfs)"), "{said}");
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
        let mut command = uzswap();
        command.args(["device", "ublk"]).arg(format!("{option}={value}"));
        if option != "--size" {
            command.args(["--size", "1G"]);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.starts_with(&format!("uzswap: {option}: \"{value}\" is not a ")), "{said}");
    }
}
