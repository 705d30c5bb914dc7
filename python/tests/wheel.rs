//! The wheel is built and installed into an environment of its own, and the package's tests run there, with numpy and pandas.
//!
//! What a machine does not have (python3 with venv, pip, maturin, numpy) is said, and the test skipped.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs a command; its output when it went well, else the end of what it said.
fn run(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let from = said.char_indices().rev().nth(4000).map_or(0, |(at, _)| at);
    Err(format!("{command:?}: {}\n{}", output.status, &said[from..]))
}

/// A folder that goes with the test.
struct Environment(PathBuf);

impl Drop for Environment {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Environment {
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.0.join("bin").join(name));
        command.env("VIRTUAL_ENV", &self.0);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.0.join("bin").display()));
        command
    }
}

#[test]
fn the_wheel_installs_and_its_tests_pass() {
    let environment = Environment(std::env::temp_dir().join(format!("uzswap-python-{}", std::process::id())));
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&environment.0)).and_then(|_| {
        run(environment.program("pip").args(["install", "--quiet", "maturin>=1.7,<2", "numpy>=1.22"]))
    });
    if let Err(reason) = made {
        return println!("skipped: {reason}");
    }
    // For one of the package's tests, which skips without it.
    if let Err(reason) = run(environment.program("pip").args(["install", "--quiet", "pandas"])) {
        println!("without pandas: {reason}");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // The profile that this test was built with is built already, as far as crates are shared.
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    let mut install = environment.program("pip");
    install.args(["install", "--quiet", "--no-build-isolation"]).arg(root);
    install.env("UZSWAP_PROFILE", profile).env("CARGO_TARGET_DIR", target);
    run(&mut install).expect("the wheel");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/test_memory.py");
    let output = run(environment.program("python").arg(tests).arg("--verbose")).expect("its tests");
    print!("{}", String::from_utf8_lossy(&output.stderr));
}
