//! A server of the plugin, real clients, and mounts that are always undone.
#![allow(dead_code)]

pub mod swapped;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The plugin that cargo built beside this test.
pub fn plugin() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let name = "libnbdkit_uzswap_plugin.so";
    [deps.join(name), deps.parent().unwrap().join(name)]
        .into_iter()
        .find(|path| path.exists())
        .expect("cargo builds it")
}

/// A command that searches the system's programs first: another Python lacks the bindings of
/// libnbd.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/sbin:/usr/bin:/sbin:/bin:{path}")).env_remove("PYTHONPATH");
    command
}

/// Whether all programs exist; prints the missing one.
pub fn has(programs: &[&str]) -> bool {
    programs.iter().all(|program| {
        let found =
            command("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
        let found = found.is_ok_and(|status| status.success());
        if !found {
            testkit::skip!("tool", "there is no {program}");
        }
        found
    })
}

/// Whether this process may mount and attach loop devices; prints the reason if not.
pub fn may_mount() -> bool {
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    let reason = match (is_root, Path::new("/dev/fuse").exists(), Path::new("/dev/loop-control").exists()) {
        (false, ..) => "only root may mount",
        (_, false, _) => "there is no /dev/fuse",
        (.., false) => "there are no loop devices",
        _ => return true,
    };
    testkit::skip!("kernel", "{reason}");
    false
}

pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Self {
        Self::in_directory(&std::env::temp_dir())
    }

    /// One on a disk that can hold swap files; prints the reason if there is none.
    pub fn on_disk() -> Option<Self> {
        let file_system = output(command("stat").args(["-f", "-c", "%T", "/var/tmp"]));
        let name = String::from_utf8_lossy(&file_system.stdout).trim().to_owned();
        if matches!(&*name, "tmpfs" | "ramfs") {
            testkit::skip!("disk", "/var/tmp is in memory ({name})");
            return None;
        }
        Some(Self::in_directory(Path::new("/var/tmp")))
    }

    fn in_directory(parent: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("uzswap-nbdkit-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        Directory(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn run(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Waits for `done`, a minute at most.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub struct Server {
    pub child: Child,
    pub directory: Directory,
}

impl Server {
    pub fn new(settings: &[&str]) -> Self {
        Self::start(&[], settings)
    }

    pub fn start(options: &[&str], settings: &[&str]) -> Self {
        Self::try_start(options, settings).unwrap_or_else(|said| panic!("nbdkit ended: {said}"))
    }

    /// One for [`nbdsh_ok`](Self::nbdsh_ok); `None`, with the reason printed, without its programs.
    pub fn with_nbdsh(settings: &[&str]) -> Option<Self> {
        (has(&["nbdkit", "nbdinfo"]) && has_nbdsh()).then(|| Self::new(settings))
    }

    /// KiB of the server's memory of a kind, such as `VmRSS:`.
    pub fn kilobytes(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Starts one; returns its messages if it ends instead.
    pub fn try_start(options: &[&str], settings: &[&str]) -> Result<Self, String> {
        let directory = Directory::new();
        let mut command = command("nbdkit");
        command.args(["-f", "-U"]).arg(directory.join("socket")).args(options).arg(plugin()).args(settings);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut server = Server { child: command.spawn().unwrap(), directory };
        let mut said = String::new();
        // It listens before it is ready to serve, and may still end.
        wait_until("nbdkit serves", || {
            if server.child.try_wait().unwrap().is_some() {
                let _ = server.child.stderr.take().unwrap().read_to_string(&mut said);
                return true;
            }
            let info =
                self::command("nbdinfo").args(["--size", &server.uri()]).stderr(Stdio::null()).output();
            server.directory.join("socket").exists() && info.is_ok_and(|info| info.status.success())
        });
        match said.is_empty() {
            true => Ok(server),
            false => Err(said),
        }
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.directory.join("socket").display())
    }

    /// Runs lines of Python with `h`, a connected handle, and `uri`.
    pub fn nbdsh_ok(&self, script: &str) -> String {
        let script = format!("uri = {:?}\n{script}", self.uri());
        run(command("/usr/bin/python3").args(["-m", "nbd", "-u", &self.uri(), "-c", &script]))
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The latest figures in the file of `stats=`.
pub fn figures(file: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

pub fn has_nbdsh() -> bool {
    let found = command("/usr/bin/python3").args(["-c", "import nbd"]).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        testkit::skip!("tool", "there is no libnbd for Python");
    }
    found
}

/// A server's device as a file, by nbdfuse.
pub struct Fuse {
    child: Child,
    pub directory: Directory,
}

impl Fuse {
    pub fn new(server: &Server) -> Self {
        let directory = Directory::new();
        let file = directory.join("disk");
        fs::write(&file, "").unwrap();
        let mut command = command("nbdfuse");
        command.arg(&file).arg(server.uri()).stdin(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        wait_until("nbdfuse mounts", || fs::metadata(&file).is_ok_and(|data| data.len() > 0));
        Fuse { child, directory }
    }

    pub fn file(&self) -> PathBuf {
        self.directory.join("disk")
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let file = self.file();
        let unmounted = command("fusermount3").arg("-u").arg(&file).stderr(Stdio::null()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            let _ = command("umount").arg("-l").arg(&file).stderr(Stdio::null()).status();
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

pub struct Loop(pub String);

impl Loop {
    pub fn new(file: &Path) -> Self {
        Loop(run(command("losetup").args(["-f", "--show", "--direct-io=on"]).arg(file)).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = command("losetup").args(["-d", &self.0]).status();
    }
}

pub struct Mount(pub Directory);

impl Mount {
    pub fn new(device: &str) -> Self {
        let directory = Directory::new();
        run(command("mount").arg(device).arg(&directory.0));
        Mount(directory)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = command("umount").arg(&self.0 .0).status();
    }
}
