//! The package as it is in the repository, with the compiled part that cargo made for this test: its tests and its example run in every
//! Python that has numpy. Nothing is installed; `wheel.rs` does that.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with the package, which goes with the test.
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

    /// Runs Python with the package; what it printed.
    fn python(&self, python: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(python);
        command.args(arguments).env("PYTHONPATH", &self.0).env("PYTHONDONTWRITEBYTECODE", "1");
        command.current_dir(&self.0);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
        said
    }
}

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Every Python here that is new enough, as itself says where it is, and whether it has numpy.
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
        println!("skipped: no python3 from 3.9 on");
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
            println!("skipped: {python} has no numpy");
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
        }
    }
}
