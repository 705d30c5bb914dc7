//! The header is what the library has, and the example in C is compiled against it, run, and finds its bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where cargo puts the shared object: beside the tests.
fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(folder.join("libuzswap_c.so").exists(), "built beside this test");
    folder
}

fn is_there(compiler: &str) -> bool {
    let found = Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: no {compiler}");
    }
    found
}

/// `UZSWAP_UPDATE=1 cargo test -p capi` writes it anew.
#[test]
fn the_header_is_up_to_date() {
    let mut made = Vec::new();
    cbindgen::generate(env!("CARGO_MANIFEST_DIR")).expect("a header").write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = own("include/uzswap.h");
    if std::env::var_os("UZSWAP_UPDATE").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "include/uzswap.h is older than the library: UZSWAP_UPDATE=1 cargo test -p capi");
}

#[test]
fn the_example_in_c_finds_its_bytes() {
    for compiler in ["cc", "c++"] {
        if !is_there(compiler) {
            continue;
        }
        let program = std::env::temp_dir().join(format!("uzswap-{compiler}-{}", std::process::id()));
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(own("include"));
        match compiler {
            "cc" => command.args(["-std=c11", "-D_GNU_SOURCE"]).arg(own("examples/regions.c")),
            // The header alone.
            _ => command.args(["-fsyntax-only", "-x", "c++"]).arg(own("include/uzswap.h")),
        };
        if compiler == "cc" {
            command.arg("-L").arg(library()).args(["-luzswap_c", "-o"]).arg(&program);
        }
        assert!(command.status().unwrap().success(), "{compiler}");
        if compiler == "cc" {
            let run = Command::new(&program).env("LD_LIBRARY_PATH", library()).output().unwrap();
            let _ = std::fs::remove_file(&program);
            let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
            assert!(run.status.success(), "{}: {out}{err}", run.status);
            print!("{out}");
        }
    }
}
