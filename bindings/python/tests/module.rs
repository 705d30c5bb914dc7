//! The package in the repository, with the compiled part that cargo made for this test: its tests
//! and its example run in every Python that has numpy. Nothing is installed; `wheel.rs` does that.

use std::collections::BTreeSet;
use std::fs::{read_to_string, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A longer run hangs: all of it takes half a minute.
const LIMIT: Duration = Duration::from_secs(600);

/// A folder with the package, removed with the test.
struct Package(PathBuf);

impl Drop for Package {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Package {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("uzswap-{name}-{}", std::process::id()));
        let package = Package(folder.clone());
        let folder = folder.join("uzswap");
        std::fs::create_dir_all(&folder).unwrap();
        for file in std::fs::read_dir(own("uzswap")).unwrap() {
            let file = file.unwrap().path();
            if file.is_file() {
                std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
            }
        }
        let made = std::env::current_exe().unwrap().parent().unwrap().join("libuzswap_native.so");
        std::fs::copy(&made, folder.join("_native.abi3.so")).expect("cargo puts it beside the tests");
        package
    }

    /// Runs Python with the package; returns its output.
    fn python(&self, python: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(python);
        command.args(arguments).env("PYTHONPATH", &self.0).env("PYTHONDONTWRITEBYTECODE", "1");
        // To a file: a pipe stays open as long as any descendant of Python runs.
        let said = self.0.join("said");
        let file = File::create(&said).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file).env("PYTHONFAULTHANDLER", "1");
        command.current_dir(&self.0).process_group(0);
        let mut child = command.spawn().unwrap();
        let began = Instant::now();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if began.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(20)),
                None => panic!("{command:?} hangs\n{}{}", end(&mut child), read_to_string(&said).unwrap()),
            }
        };
        let said = String::from_utf8_lossy(&std::fs::read(&said).unwrap()).into_owned();
        assert!(status.success(), "{command:?}: {status}\n{said}");
        said
    }
}

/// Ends a process that hangs, and all of its group; returns where their threads were. Python itself
/// prints its position.
fn end(child: &mut Child) -> String {
    let group = child.id();
    let mut told = String::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let process = process.path();
        let stat = read_to_string(process.join("stat")).unwrap_or_default();
        let in_group = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(2));
        if in_group != Some(&group.to_string()) {
            continue;
        }
        for thread in std::fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
            let file = |name| read_to_string(thread.path().join(name)).unwrap_or_default();
            told +=
                &format!("{}: {}{}{}", thread.path().display(), file("comm"), file("syscall"), file("stack"));
        }
    }
    // SAFETY: no memory is touched; the group is the child's own.
    unsafe { libc::kill(-(group as i32), libc::SIGABRT) };
    let _ = child.wait();
    told
}

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Every Python here that is new enough, by its own path, and whether it has numpy.
fn pythons() -> Vec<(String, bool)> {
    let question = "import sys, importlib.util\n\
                    assert sys.version_info >= (3, 9)\n\
                    print(sys.executable, importlib.util.find_spec('numpy') is not None)";
    let mut found = BTreeSet::new();
    for name in ["python3", "/usr/bin/python3"] {
        let Ok(output) = Command::new(name).args(["-c", question]).output() else { continue };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if let Some((path, has_numpy)) = said.trim().rsplit_once(' ') {
            found.insert((path.to_owned(), has_numpy == "True"));
        }
    }
    if found.is_empty() {
        testkit::skip!("tool", "no python3 from 3.9 on");
    }
    found.into_iter().collect()
}

#[test]
fn pages_go_through_compressors() {
    let package = Package::new("pages");
    for (python, _) in pythons() {
        println!(
            "{python}: {}",
            package.python(&python, &[own("tests/test_pages.py").to_str().unwrap(), "-v"])
        );
    }
}

#[test]
fn arrays_in_a_third_of_their_memory_are_those_that_plain_ones_are() {
    let package = Package::new("memory");
    for (python, has_numpy) in pythons() {
        if !has_numpy {
            testkit::skip!("tool", "{python} has no numpy");
            continue;
        }
        println!(
            "{python}: {}",
            package.python(&python, &[own("tests/test_memory.py").to_str().unwrap(), "-v"])
        );
        let example = own("examples/larger_than_ram.py");
        if package.python(&python, &[own("tests/why_not.py").to_str().unwrap()]).is_empty() {
            let said = package.python(&python, &[example.to_str().unwrap(), "1000000"]);
            assert!(
                said.contains("61 MiB of columns in 30 MiB") && said.contains("smaller in the pool"),
                "{said}"
            );
            println!("{said}");
            let said = package.python(&python, &[own("examples/pandas_join.py").to_str().unwrap(), "300000"]);
            assert!(
                said.contains("the same totals") || said.starts_with("skipped: there is no pandas"),
                "{said}"
            );
            let said = package.python(&python, &[own("examples/scikit_learn.py").to_str().unwrap(), "60000"]);
            assert!(
                said.contains("clusters of") || said.starts_with("skipped: there is no scikit"),
                "{said}"
            );
            println!("{said}");
        }
    }
}
