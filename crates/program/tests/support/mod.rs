//! Helpers shared by the program's tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use sys::userfaultfd::{feature, Userfaultfd};

/// The program under test, without the variables of tests, which it would pass on by their prefix.
pub fn uzswap() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    let is_of_tests = |name: &str| name == "UZSWAP_REQUIRE" || name.starts_with("UZSWAP_TEST_");
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter(|name| is_of_tests(name)).for_each(|name| {
        command.env_remove(name);
    });
    command
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

#[allow(dead_code)]
pub fn has(program: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir| dir.join(program).is_file());
    if !found {
        testkit::skip!("tool", "{program} is not installed");
    }
    found
}

/// A test's directory, removed when dropped or, after a crash, by the next run.
pub struct Scratch(PathBuf);

impl Scratch {
    #[allow(dead_code)]
    pub fn new(name: &str) -> Self {
        // Concurrent tests may choose the same name.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
        remove_leftovers(all);
        let path = all.join(format!("uzswap-{name}-{number}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    #[allow(dead_code)]
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes directories of ended processes: statics are never dropped, and a test may be killed.
#[allow(dead_code)]
fn remove_leftovers(all: &Path) {
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("uzswap-")?.rsplit_once('-'));
        if pid.is_some_and(|(_, pid)| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[allow(dead_code)]
pub fn managed(
    ram: &str,
    scratch: &Scratch,
    options: &[&str],
    command: &[&str],
) -> (Output, serde_json::Value) {
    let report = scratch.path("report.json");
    let mut run = uzswap();
    run.args(["run", "--ram", ram, "--report"]).arg(&report).args(options).arg("--").args(command);
    let output = run.output().expect("uzswap starts");
    let text = std::fs::read_to_string(&report).unwrap_or_else(|_| "null".into());
    let report = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("no report: {error}; {}: {}", output.status, String::from_utf8_lossy(&output.stderr))
    });
    (output, report)
}

/// Compiles `tests/workloads/NAME.c`; `None` where programs cannot be managed or compiled.
#[allow(dead_code)]
pub fn workload_in(scratch: &Scratch, name: &str) -> Option<String> {
    if !can_manage() {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/workloads/{name}.c"));
    let target = scratch.path(name);
    compile(&source, &target).then(|| target.to_str().unwrap().to_owned())
}

#[allow(dead_code)]
pub fn compile(source: &Path, target: &Path) -> bool {
    compile_with(&[], source, target)
}

#[allow(dead_code)]
pub fn compile_with(options: &[&str], source: &Path, target: &Path) -> bool {
    compile_all(options, &[source.to_owned()], target)
}

/// Compiles the C files of `tests/workloads/NAME` to one program; `None` without a compiler.
#[allow(dead_code)]
pub fn workload_of_directory(scratch: &Scratch, name: &str) -> Option<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads").join(name);
    let files = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let sources: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "c")).collect();
    let target = scratch.path(name);
    compile_all(&[], &sources, &target).then(|| target.to_str().unwrap().to_owned())
}

#[allow(dead_code)]
pub fn can_link_statically(scratch: &Scratch) -> bool {
    let trial = scratch.write("trial.c", "int main(void) { return 0; }\n");
    let built = Command::new("cc").arg("-static").arg("-o").arg(scratch.path("trial")).arg(trial).output();
    let can = built.unwrap().status.success();
    if !can {
        testkit::skip!("tool", "no static C library");
    }
    can
}

fn compile_all(options: &[&str], sources: &[PathBuf], target: &Path) -> bool {
    if !has("cc") {
        return false;
    }
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-w", "-pthread"]).args(options).arg("-o").arg(target).args(sources);
    let status = cc.status().unwrap();
    assert!(status.success(), "{} compiles", target.display());
    true
}

#[allow(dead_code)]
pub const USER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Copies the program to `directory` with CAP_SYS_PTRACE; `None` where files have no capabilities.
#[allow(dead_code)]
pub fn capable(directory: &Path) -> Option<String> {
    if !has("setcap") {
        return None;
    }
    let path = directory.join("uzswap-capable");
    testkit::copy_program(env!("CARGO_BIN_EXE_uzswap"), &path);
    let output = Command::new("setcap").arg("cap_sys_ptrace+ep").arg(&path).output().unwrap();
    if !output.status.success() {
        testkit::skip!("disk", "{}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(path.to_str().unwrap().to_owned())
}

/// Runs uzswap's file `program` as an ordinary user who may open /dev/userfaultfd: a node in
/// `directory`, mounted in a private namespace. Prints why if that is impossible.
#[allow(dead_code)]
pub fn as_user(directory: &Path, program: &str, arguments: &[&str]) -> Option<Output> {
    let isolates =
        || Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success());
    if !has("unshare") || !has("setpriv") || !isolates() {
        testkit::skip!("namespace", "no namespaces can be made");
        return None;
    }
    let script = "set -e; node=$1; shift; number=$(sed -n 's/ userfaultfd$//p' /proc/misc | tr -d ' ')
        test -e $node || mknod -m 666 $node c 10 $number
        mount --bind $node /dev/userfaultfd
        exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(directory.join("node"));
    let output = command.args(USER).arg(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("mknod") || said.contains("mount") || said.contains("not permitted here") {
        testkit::skip!("root", "no device for others: {said}");
        return None;
    }
    Some(output)
}
