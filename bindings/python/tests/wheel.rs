//! `pip install .` in an environment of its own, as users do it; then the package's tests there,
//! with the newest numpy and pandas, and the program. It compiles the program and the module as
//! they are released, which takes many minutes, and asks PyPI:
//!
//! ```text
//! cargo test -p uzswap-python --test wheel -- --ignored --nocapture
//! ```

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs a command; returns its output, or on failure the end of its output.
fn run(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let from = said.char_indices().rev().nth(4000).map_or(0, |(at, _)| at);
    Err(format!("{command:?}: {}\n{}", output.status, &said[from..]))
}

/// A folder that is removed with the test.
struct Environment(PathBuf);

impl Drop for Environment {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Environment {
    fn program(&self, name: &str) -> Command {
        Command::new(self.0.join("bin").join(name))
    }
}

#[test]
#[ignore = "compiles everything again as it is released, and asks PyPI"]
fn the_wheel_installs_and_its_tests_pass() {
    let environment = Environment(std::env::temp_dir().join(format!("uzswap-wheel-{}", std::process::id())));
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&environment.0))
        .and_then(|_| run(environment.program("pip").args(["install", "--quiet", "numpy", "pandas"])));
    if let Err(reason) = made {
        return testkit::skip!("tool", "{reason}");
    }
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    run(environment.program("pip").args(["install", "--quiet"]).arg(own.join("../.."))).expect("the wheel");
    for test in ["tests/test_pages.py", "tests/test_memory.py"] {
        // Not beside the package's sources, which programs that the tests start would import
        // instead.
        let mut python = environment.program("python");
        python.current_dir(&environment.0).arg(own.join(test)).arg("-v");
        let output = run(&mut python).expect("its tests");
        print!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let run_one = ["run", "--ram", "256M", "--", "python3", "-c", "print(6 * 7)"];
    let output = run(environment.program("uzswap").args(run_one)).expect("the program");
    assert_eq!(output.stdout, b"42\n");
}
