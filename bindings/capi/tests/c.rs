//! The header matches the library; the example in C is compiled against the installed header, run,
//! and finds its bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The header that cbindgen makes of the sources, without the sections for callers in Rust.
fn made_header() -> String {
    let config = cbindgen::Config::from_file(own("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in ["src/error.rs", "src/pool.rs", "src/region.rs"] {
        builder = builder.with_src(own(source));
    }
    let mut made = Vec::new();
    builder.generate().expect("a header").write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let mut kept = Vec::new();
    let mut is_safety = false;
    for line in made.lines() {
        is_safety = (is_safety && line.starts_with("//")) || line == "// # Safety";
        if is_safety {
            continue;
        }
        // The empty line before the section.
        if !line.starts_with("//") && kept.last() == Some(&"//") {
            kept.pop();
        }
        kept.push(line);
    }
    kept.join("\n") + "\n"
}

/// `UZSWAP_TEST_WRITE=1 cargo test -p uzswap-capi` rewrites it.
#[test]
fn the_header_is_up_to_date() {
    let made = made_header();
    let path = own("include/uzswap.h");
    if std::env::var_os("UZSWAP_TEST_WRITE").is_some() {
        std::fs::create_dir_all(own("include")).unwrap();
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "include/uzswap.h is older than the library: UZSWAP_TEST_WRITE=1 cargo test -p uzswap-capi"
    );
}

/// Runs a command that must succeed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}: {out}{err}", output.status);
    format!("{out}{err}")
}

fn is_there(program: &str) -> bool {
    let is_there =
        Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        testkit::skip!("tool", "no {program}");
    }
    is_there
}

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_example_in_c_finds_its_bytes() {
    // Cargo puts the library beside the tests.
    let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let prefix = Folder(std::env::temp_dir().join(format!("uzswap-capi-{}", std::process::id())));
    std::fs::create_dir_all(&prefix.0).unwrap();
    run(Command::new("sh").arg(own("install.sh")).arg(&prefix.0).env("BUILT", &built));
    let (include, lib) = (prefix.0.join("include"), prefix.0.join("lib"));

    if is_there("c++") {
        let header = include.join("uzswap.h");
        run(Command::new("c++")
            .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"])
            .arg(header));
    }
    if !is_there("cc") {
        return;
    }
    let mut shared = vec!["-luzswap".to_owned()];
    if is_there("pkg-config") {
        let mut flags = Command::new("pkg-config");
        flags.args(["--libs", "--cflags", "uzswap"]).env("PKG_CONFIG_PATH", lib.join("pkgconfig"));
        shared = run(&mut flags).split_ascii_whitespace().map(str::to_owned).collect();
    }
    let archive = lib.join("libuzswap.a").display().to_string();
    let fixed = [&*archive, "-lpthread", "-ldl", "-lm", "-lgcc_s"].map(str::to_owned).to_vec();
    for (name, libraries) in [("shared", shared), ("static", fixed)] {
        let program = prefix.0.join(name);
        let mut compile = Command::new("cc");
        compile.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]);
        compile.arg(&include).arg(own("examples/regions.c")).arg("-o").arg(&program);
        compile.arg("-L").arg(&lib).args(libraries);
        run(&mut compile);
        let said = run(Command::new(&program).env("LD_LIBRARY_PATH", &lib));
        assert!(said.ends_with("all is as it should be\n"), "{said}");
        println!("{name}: {said}");
    }
}
