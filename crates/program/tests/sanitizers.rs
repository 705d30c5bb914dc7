//! Programs with sanitizers of GCC and Clang, with static and shared runtimes.

mod support;
#[path = "support/tree.rs"]
mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::{can_manage, has, uzswap, Scratch};
use tree::watch;

fn compiled(scratch: &Scratch, compiler: &str, options: &[&str]) -> Option<PathBuf> {
    let program = scratch.path("sanitized");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/sanitized.c");
    let checks = options.iter().any(|option| option.contains("address") || option.contains("leak"));
    let made = Command::new(compiler)
        .args(["-O1", "-w"])
        .args(checks.then_some("-DCHECKS_LEAKS"))
        .args(options)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .output()
        .unwrap();
    if !made.status.success() {
        testkit::skip!("tool", "{compiler} cannot link {options:?}");
        return None;
    }
    Some(program)
}

fn is_as_bare(compiler: &str, options: &[&str], modes: &[&str], ways: &[&[&str]]) {
    if !can_manage() || !has(compiler) {
        return;
    }
    let scratch = Scratch::new("sanitized");
    let Some(program) = compiled(&scratch, compiler, options) else { return };
    for mode in modes {
        let bare = Command::new(&program).arg(mode).output().unwrap();
        let said = String::from_utf8_lossy(&bare.stdout);
        assert!(said.ends_with("right\n"), "{options:?} {mode}, bare: {bare:?}");
        for (index, arguments) in ways.iter().enumerate() {
            let name = format!("{compiler} {options:?} {mode} {arguments:?}");
            let directory = scratch.path(&format!("{mode}-{index}"));
            std::fs::create_dir(&directory).unwrap();
            let report = directory.join("report.json");
            let mut run = uzswap();
            run.args(["run", "-q", "--ram", "60M", "--report"]).arg(&report).args(*arguments).arg("--");
            run.arg(&program).arg(mode);
            let ended = watch(&mut run, &directory, Duration::from_secs(180));
            let status = ended.status.unwrap_or_else(|| panic!("{name} hangs: {}", ended.errors));
            assert_eq!(status.code(), bare.status.code(), "{name}: {}", ended.errors);
            assert_eq!(ended.output, said, "{name}: {}", ended.errors);
            let finds = |text: &str| text.contains("LeakSanitizer: detected memory leaks");
            assert_eq!(finds(&ended.errors), finds(&String::from_utf8_lossy(&bare.stderr)), "{name}");
            let text = std::fs::read_to_string(&report).unwrap();
            let report: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(report["zswpout"].as_u64() > Some(1000), "{name}: nothing went: {report}");
        }
    }
}

const POOL: &[&str] = &[];
const WAYS: [&[&str]; 2] = [POOL, &["--swap", "256M"]];
const MODES: [&str; 4] = ["", "leak", "asked", "starts"];

/// Regression: GCC's shared runtime refused to start behind uzswap's object. At the end its tracer
/// stopped the pager and then waited for pages.
#[test]
fn address_sanitizer_as_a_library() {
    is_as_bare("gcc", &["-fsanitize=address"], &MODES, &[POOL]);
    is_as_bare("gcc", &["-fsanitize=address"], &["leak"], &WAYS);
}

#[test]
fn address_sanitizer_linked() {
    is_as_bare("gcc", &["-fsanitize=address", "-static-libasan"], &MODES, &[POOL]);
    is_as_bare("gcc", &["-fsanitize=address", "-static-libasan"], &["leak"], &WAYS);
}

#[test]
fn leak_sanitizer() {
    is_as_bare("gcc", &["-fsanitize=leak"], &MODES, &[POOL]);
    is_as_bare("gcc", &["-fsanitize=leak"], &["leak"], &WAYS);
}

#[test]
fn other_sanitizers() {
    is_as_bare("gcc", &["-fsanitize=thread"], &["", "starts"], &[POOL]);
    is_as_bare("gcc", &["-fsanitize=undefined"], &["", "starts"], &[POOL]);
    is_as_bare("gcc", &["-fsanitize=address,undefined"], &["leak"], &[POOL]);
}

#[test]
fn clang_s() {
    let clang = ["clang", "clang-14", "clang-16", "clang-19"].into_iter().find(|name| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
        found
    });
    let Some(clang) = clang else {
        testkit::skip!("tool", "clang is not installed");
        return;
    };
    is_as_bare(clang, &["-fsanitize=address"], &MODES, &[POOL]);
    is_as_bare(clang, &["-fsanitize=leak"], &["leak", "asked"], &[POOL]);
    is_as_bare(clang, &["-fsanitize=thread"], &["", "starts"], &[POOL]);
    is_as_bare(clang, &["-fsanitize=memory"], &[""], &[POOL]);
    let output = Command::new(clang).arg("-print-resource-dir").output().unwrap();
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let search = format!("-Wl,-rpath,{directory}/lib/linux");
    is_as_bare(clang, &["-fsanitize=address", "-shared-libasan", &search], &["leak", "starts"], &[POOL]);
}
