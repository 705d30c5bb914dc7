//! Helpers shared by the program's tests.

#![allow(dead_code, unused_imports, unused_macros)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, read_dir, read_to_string};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{mpsc, LazyLock, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use sys::userfaultfd::{feature, Userfaultfd};

pub mod group;
pub mod tree;

/// Makes a test of each row.
macro_rules! tests {
    ($($(#[$text:meta])* fn $name:ident() = $body:expr;)+) => {
        $($(#[$text])* #[test] fn $name() { $body; })+
    };
}
pub(crate) use tests;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_uzswap");

/// Exit status of a workload that this machine cannot run.
pub const CANNOT: Option<i32> = Some(77);

/// The pool alone, and a swap file behind it.
pub const WAYS: [&[&str]; 2] = [&[], &["--swap", "256M"]];

/// Nothing that tests wait for takes as long.
const LIMIT: Duration = Duration::from_secs(300);

pub const USER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// A path in this package.
pub fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The program under test, without the variables of tests, which it would pass on by their prefix.
pub fn uzswap() -> Command {
    let mut command = Command::new(PROGRAM);
    let is_of_tests = |name: &str| name == "UZSWAP_REQUIRE" || name.starts_with("UZSWAP_TEST_");
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter(|name| is_of_tests(name)).for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// `uzswap run` of a command.
pub fn run(ram: &str, options: &[&str], command: &[&str]) -> Command {
    let mut run = uzswap();
    run.args(["run", "--ram", ram]).args(options).arg("--").args(command);
    run
}

pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command left, which assertions show whole.
pub struct Ran {
    command: String,
    /// `None` if a signal ended it, or it did not end in time.
    pub status: Option<i32>,
    /// Its standard output.
    pub printed: String,
    /// Its standard error.
    pub said: String,
    /// The report of `uzswap run`; null without one.
    pub report: Value,
    pub took: Duration,
}

impl Ran {
    pub fn of(command: &mut Command) -> Self {
        let start = Instant::now();
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Ran {
            command: format!("{command:?}"),
            status: output.status.code(),
            printed: text(&output.stdout),
            said: text(&output.stderr),
            report: Value::Null,
            took: start.elapsed(),
        }
    }

    pub fn with_report(self, path: impl AsRef<Path>) -> Self {
        let text = read_to_string(path).unwrap_or_else(|_| "null".into());
        let report = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}: {self}"));
        Ran { report, ..self }
    }

    /// Its standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.printed).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// A number of the report; a name may have parts, as in `swap/no_space`.
    pub fn number(&self, name: &str) -> u64 {
        let value = self.report.pointer(&format!("/{name}")).and_then(Value::as_u64);
        value.unwrap_or_else(|| panic!("no {name}: {self}"))
    }

    /// A value of the report as text, such as a list of messages.
    pub fn text(&self, name: &str) -> String {
        self.report[name].to_string()
    }

    #[track_caller]
    pub fn assert_status(&self, status: i32) -> &Self {
        assert_eq!(self.status, Some(status), "{self}");
        self
    }

    /// It ended well with evicted pages.
    #[track_caller]
    pub fn assert_paged(&self) -> &Self {
        self.assert_status(0);
        assert!(self.number("zswpout") > 1000, "nothing was evicted: {self}");
        self
    }

    #[track_caller]
    pub fn assert_all_managed(&self) -> &Self {
        assert_eq!(self.report["unmanaged"], serde_json::json!([]), "{self}");
        self
    }

    #[track_caller]
    pub fn assert_no_failure(&self) -> &Self {
        assert_eq!(self.report["failures"], serde_json::json!([]), "{self}");
        self
    }

    #[track_caller]
    pub fn assert_quiet(&self) -> &Self {
        assert_eq!((self.status, &*self.said), (Some(0), ""), "{self}");
        self
    }

    #[track_caller]
    pub fn assert_says(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.said.contains(part), "{part:?} is not said: {self}");
        }
        self
    }

    #[track_caller]
    pub fn assert_prints(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.printed.contains(part), "{part:?} is not printed: {self}");
        }
        self
    }

    /// A budget may be exceeded briefly by 3 % and 8 MiB.
    #[track_caller]
    pub fn assert_within_budget(&self) -> &Self {
        let (limit, peak) = (self.number("ram_limit_bytes"), self.number("ram_peak_bytes"));
        assert!(peak <= limit + limit * 3 / 100 + (8 << 20), "{peak} of {limit}: {self}");
        self
    }
}

impl Display for Ran {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Ran { command, status, printed, said, report, took } = self;
        write!(f, "{command:.500}: status {status:?} after {took:?}\n{printed}\n{said}\n{report}")
    }
}

/// Runs a command under uzswap; `None` where programs cannot be managed or the command is missing.
pub fn managed(ram: &str, options: &[&str], command: &[&str]) -> Option<Ran> {
    if !can_manage() || !has(command[0]) {
        return None;
    }
    let scratch = Scratch::new("report");
    let report = scratch.text("report.json");
    let options = [&["--report", &report], options].concat();
    Some(Ran::of(&mut run(ram, &options, command)).with_report(report))
}

/// Runs uzswap with these arguments.
pub fn uzswap_with(arguments: &[&str]) -> Ran {
    Ran::of(uzswap().args(arguments))
}

/// Runs a command that must succeed; returns its output.
#[track_caller]
pub fn printed(command: &mut Command) -> String {
    let ran = Ran::of(command);
    ran.assert_status(0);
    ran.printed
}

/// Runs a command bare, and then under uzswap with each set of options, each time in a shell that
/// has run `before`. Each run must have the bare one's status and output. `None` where this machine
/// cannot run the command.
///
/// A run that takes 20 times as long as the bare one plus a minute counts as a hang.
pub fn compared(
    before: Option<&str>,
    option_sets: &[&[&str]],
    ram: &str,
    command: &[&str],
) -> Option<(Ran, Vec<Ran>)> {
    if !can_manage() || !has(command[0]) {
        return None;
    }
    let start = |program: &OsStr| match before {
        None => Command::new(program),
        Some(before) => {
            let mut shell = Command::new("bash");
            shell.arg("-c").arg(format!("{before} && exec \"$0\" \"$@\"")).arg(program);
            shell
        }
    };
    let bare = tree::watch(start(command[0].as_ref()).args(&command[1..]), Duration::from_secs(120));
    if bare.status == CANNOT {
        testkit::skip!("kernel", "{command:?}: {}", bare.said.trim_end());
        return None;
    }
    let run_in = |way: &&[&str]| {
        let scratch = Scratch::new("compared");
        let report = scratch.text("report.json");
        let run = run(ram, &[&["--report", &report], *way].concat(), command);
        let limit = bare.took * 20 + Duration::from_secs(60);
        let ran = tree::watch(start(run.get_program()).args(run.get_args()), limit).with_report(report);
        assert_eq!((ran.status, &ran.printed), (bare.status, &bare.printed), "{ran}");
        assert!(!ran.report.is_null(), "no report: {ran}");
        println!("{command:.200?} {way:?}: {:?}, bare {:?}", ran.took, bare.took);
        ran
    };
    let runs = option_sets.iter().map(run_in).collect();
    Some((bare, runs))
}

/// As [`compared`] with all sets of options, for commands that succeed; empty where this machine
/// cannot run it.
pub fn as_bare(ram: &str, command: &[&str]) -> Vec<Ran> {
    as_bare_under(None, &WAYS, ram, command)
}

pub fn as_bare_under(before: Option<&str>, option_sets: &[&[&str]], ram: &str, command: &[&str]) -> Vec<Ran> {
    compared(before, option_sets, ram, command).map_or_else(Vec::new, |(bare, runs)| {
        bare.assert_status(0);
        runs
    })
}

/// A started command with pipes, which is killed when dropped.
pub struct Started {
    pub child: Child,
    lines: mpsc::Receiver<String>,
    command: String,
    errors: Option<JoinHandle<String>>,
}

impl Started {
    pub fn new(command: &mut Command) -> Self {
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut errors = child.stderr.take().unwrap();
        let read = move || {
            let mut bytes = Vec::new();
            errors.read_to_end(&mut bytes).unwrap();
            text(&bytes)
        };
        let errors = Some(std::thread::spawn(read));
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || output.map_while(Result::ok).all(|line| send.send(line).is_ok()));
        Started { child, lines, command: format!("{command:?}"), errors }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints; none at its end.
    pub fn next_line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{} hangs", self.command),
        }
    }

    pub fn line(&mut self) -> String {
        self.next_line().unwrap_or_else(|| panic!("{}: no line", self.command))
    }

    pub fn tell(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Closes its input and waits until no process has its pipes; the lines not read are `printed`.
    pub fn end(mut self) -> Ran {
        drop(self.child.stdin.take());
        let printed = std::iter::from_fn(|| self.next_line()).map(|line| line + "\n").collect();
        wait_until(&self.command.clone(), || self.child.try_wait().unwrap().is_some());
        let said = self.errors.take().unwrap().join().unwrap();
        Ran {
            command: self.command.clone(),
            status: self.child.wait().unwrap().code(),
            printed,
            said,
            report: Value::Null,
            took: Duration::ZERO,
        }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn can_manage() -> bool {
    static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
    let why_not = WHY_NOT.get_or_init(|| {
        Userfaultfd::open(feature::MOVING).map(Userfaultfd::close).err().map(|error| error.to_string())
    });
    if let Some(reason) = why_not {
        testkit::skip!("userfaultfd", "{reason}");
    }
    why_not.is_none()
}

pub fn has(program: &str) -> bool {
    let found = is_installed(program);
    if !found {
        testkit::skip!("tool", "{program} is not installed");
    }
    found
}

pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    found
}

/// Whether this is root, who is needed for `what`.
pub fn is_root(what: &str) -> bool {
    // SAFETY: takes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        testkit::skip!("root", "only root can {what}");
    }
    is_root
}

/// Whether the device can be lent to a process that has lost its rights.
pub fn has_device() -> bool {
    let has = Path::new("/dev/userfaultfd").exists();
    if !has {
        testkit::skip!("userfaultfd", "no /dev/userfaultfd");
    }
    has
}

/// Whether unshare(1) can make these namespaces.
pub fn can_unshare(options: &[&str]) -> bool {
    let made = Command::new("unshare").args(options).arg("true").output();
    let made = made.is_ok_and(|output| output.status.success());
    if !made {
        testkit::skip!("namespace", "no namespaces can be made");
    }
    made
}

/// A test's directory, removed when dropped or, after a crash, by the next run.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        Self::below(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    /// A directory that other users can reach, unlike that of the build.
    pub fn public(name: &str) -> Self {
        let scratch = Self::below(&std::env::temp_dir(), name);
        set_mode(&scratch.0, 0o777);
        scratch
    }

    fn below(all: &Path, name: &str) -> Self {
        // Concurrent tests may choose the same name.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        remove_leftovers(all);
        let path = all.join(format!("uzswap-{name}-{number}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self.text(name)
    }

    pub fn directory(&self, name: &str) -> String {
        fs::create_dir_all(self.path(name)).unwrap();
        self.text(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes directories of ended processes: statics are never dropped, and a test may be killed.
fn remove_leftovers(all: &Path) {
    for entry in read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid =
            name.to_str().and_then(|name| name.strip_prefix("uzswap-")?.rsplit_once('-')?.1.parse().ok());
        if pid.is_some_and(|pid: u32| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

pub fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// A directory for swap files on a disk; `None` where that is in memory.
pub fn on_disk(scratch: &Scratch) -> Option<String> {
    let directory = scratch.directory("swap");
    let file = fs::File::open(&directory).unwrap();
    match sys::files::memory_file_system(&file).unwrap() {
        None => Some(directory),
        Some(kind) => {
            testkit::skip!("disk", "{directory} is in memory ({kind})");
            None
        }
    }
}

/// Compiles `tests/workloads/NAME.c`, or all C files of the directory of that name, once; `None`
/// where programs cannot be managed or compiled.
pub fn workload(name: &str) -> Option<&'static str> {
    workload_with(name, &[])
}

pub fn workload_with(name: &str, options: &[&str]) -> Option<&'static str> {
    static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("workloads"));
    static MADE: Mutex<BTreeMap<String, &str>> = Mutex::new(BTreeMap::new());
    if !can_manage() || !has("cc") || options.contains(&"-static") && !can_link_statically() {
        return None;
    }
    let mut made = MADE.lock().unwrap();
    let number = made.len();
    let program = made.entry(format!("{name} {options:?}")).or_insert_with(|| {
        let program = SCRATCH.directory(&number.to_string()) + "/" + name;
        let source = own("tests/workloads").join(name);
        let files = read_dir(&source).into_iter().flatten().map(|entry| entry.unwrap().path());
        let mut sources: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|end| end == "c")).collect();
        if sources.is_empty() {
            sources.push(source.with_extension("c"));
        }
        let mut cc = Command::new("cc");
        printed(cc.args(["-O1", "-w", "-pthread"]).args(options).arg("-o").arg(&program).args(sources));
        program.leak()
    });
    Some(*program)
}

pub fn can_link_statically() -> bool {
    let scratch = Scratch::new("static");
    let source = scratch.write("trial.c", "int main(void) { return 0; }\n");
    let can =
        Ran::of(&mut command(&["cc", "-static", "-o", &scratch.text("trial"), &source])).status == Some(0);
    if !can {
        testkit::skip!("tool", "no static C library");
    }
    can
}

/// Copies the program to `directory` with CAP_SYS_PTRACE; `None` where files have no capabilities.
pub fn capable(directory: &Scratch) -> Option<String> {
    if !has("setcap") {
        return None;
    }
    let path = directory.text("uzswap-capable");
    testkit::copy_program(PROGRAM, &path);
    let set = Ran::of(&mut command(&["setcap", "cap_sys_ptrace+ep", &path]));
    if set.status != Some(0) {
        testkit::skip!("disk", "{}", set.said);
        return None;
    }
    Some(path)
}

/// Runs uzswap's file `program` as an ordinary user who may open /dev/userfaultfd: a node in
/// `directory`, mounted in a private namespace. Prints why if that is impossible.
pub fn as_user(directory: &Scratch, program: &str, arguments: &[&str]) -> Option<Ran> {
    if !has("setpriv") || !can_unshare(&["-m"]) {
        return None;
    }
    let script = "set -e; node=$1; shift; number=$(sed -n 's/ userfaultfd$//p' /proc/misc | tr -d ' ')
        test -e $node || mknod -m 666 $node c 10 $number
        mount --bind $node /dev/userfaultfd
        exec \"$@\"";
    let begin = ["unshare", "-m", "sh", "-c", script, "sh", &directory.text("node")];
    let ran = Ran::of(&mut command(&[&begin[..], &USER, &[program], arguments].concat()));
    if ["mknod", "mount", "not permitted here"].iter().any(|reason| ran.said.contains(reason)) {
        testkit::skip!("root", "no device for others: {}", ran.said);
        return None;
    }
    Some(ran)
}

/// The file of this process's own memory limit; `None` without cgroups.
pub fn own_limit() -> Option<PathBuf> {
    let membership = read_to_string("/proc/self/cgroup").ok()?;
    membership.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let directory = PathBuf::from(format!("{root}{}", group.trim_end_matches('/')));
        // With both versions mounted, version 2 has a directory without a memory controller.
        let has_controller = !controllers.is_empty() || Path::new("/sys/fs/cgroup/cgroup.procs").exists();
        (directory.is_dir() && has_controller).then(|| directory.join(file))
    })
}

/// The plugin of nbdkit that was built for the tests.
pub fn plugin() -> PathBuf {
    let name = "libnbdkit_uzswap_plugin.so";
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let found = [deps.join(name), deps.parent().unwrap().join(name)].into_iter().find(|file| file.exists());
    found.expect("built for the tests")
}

/// A process's name and the fields behind it: state, parent, group.
fn stat(pid: u32) -> Option<(String, Vec<String>)> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (before, behind) = stat.rsplit_once(") ")?;
    Some((before.split_once('(')?.1.to_owned(), behind.split(' ').map(str::to_owned).collect()))
}

fn processes(is_wanted: impl Fn(&str, &[String]) -> bool) -> Vec<u32> {
    let all =
        read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(|pid| stat(*pid).is_some_and(|(name, fields)| is_wanted(&name, &fields))).collect()
}

pub fn children_of(parent: u32) -> Vec<u32> {
    processes(|_, fields| fields[1] == parent.to_string())
}

pub fn children_named(parent: u32, name: &str) -> Vec<u32> {
    processes(|its, fields| its == name && fields[1] == parent.to_string())
}

pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(_, fields)| !["Z", "X"].contains(&&*fields[0]))
}

/// Returns whether the process is there.
pub fn signal(pid: u32, signal: i32) -> bool {
    // SAFETY: a signal to a process of the test's run.
    unsafe { libc::kill(pid as i32, signal) == 0 }
}

#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < give_up, "hangs: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
