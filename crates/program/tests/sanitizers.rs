//! Programs with sanitizers of GCC and Clang, with static and shared runtimes, and on Valgrind.

mod support;

use std::process::Command;

use support::{compared, has, is_installed, own, printed, run, Ran, Scratch, WAYS};

fn compiled(scratch: &Scratch, compiler: &str, options: &[&str]) -> Option<String> {
    let program = scratch.text("sanitized");
    let checks = options.iter().any(|option| option.contains("address") || option.contains("leak"));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-w", "-o", &program]).args(checks.then_some("-DCHECKS_LEAKS")).args(options);
    if Ran::of(command.arg(own("tests/workloads/sanitized.c"))).status != Some(0) {
        testkit::skip!("tool", "{compiler} cannot link {options:?}");
        return None;
    }
    Some(program)
}

fn is_as_bare(compiler: &str, options: &[&str], modes: &[&str], option_sets: &[&[&str]]) {
    if !has(compiler) {
        return;
    }
    let scratch = Scratch::new("sanitized");
    let Some(program) = compiled(&scratch, compiler, options) else { return };
    for mode in modes {
        let Some((bare, runs)) = compared(None, option_sets, "60M", &[&program, mode]) else { return };
        assert!(bare.printed.ends_with("right\n"), "{bare}");
        for ran in runs {
            let finds = |ran: &Ran| ran.said.contains("LeakSanitizer: detected memory leaks");
            assert_eq!(finds(&ran), finds(&bare), "{ran}");
            assert!(ran.number("zswpout") > 1000, "nothing went: {ran}");
        }
    }
}

const POOL: &[&str] = WAYS[0];
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
    let clang = ["clang", "clang-14", "clang-16", "clang-19"].into_iter().find(|name| is_installed(name));
    let Some(clang) = clang else {
        testkit::skip!("tool", "clang is not installed");
        return;
    };
    is_as_bare(clang, &["-fsanitize=address"], &MODES, &[POOL]);
    is_as_bare(clang, &["-fsanitize=leak"], &["leak", "asked"], &[POOL]);
    is_as_bare(clang, &["-fsanitize=thread"], &["", "starts"], &[POOL]);
    is_as_bare(clang, &["-fsanitize=memory"], &[""], &[POOL]);
    let directory = printed(Command::new(clang).arg("-print-resource-dir"));
    let search = format!("-Wl,-rpath,{}/lib/linux", directory.trim());
    is_as_bare(clang, &["-fsanitize=address", "-shared-libasan", &search], &["leak", "starts"], &[POOL]);
}

/// Regression: Valgrind refused the clone() of the agent in its program and in each that forked.
#[test]
fn programs_go_on_on_valgrind() {
    if !has("valgrind") {
        return;
    }
    let ran = Ran::of(&mut run("60M", &["-q"], &["valgrind", "-q", "sh", "-c", "true; (echo here)"]));
    ran.assert_status(0);
    assert_eq!((&*ran.printed, ran.said.contains("Unsupported")), ("here\n", false), "{ran}");
}
