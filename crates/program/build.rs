//! Builds the preload object with a cargo of its own, so that the program can carry it.
//!
//! A crate cannot depend on another's shared object, and building it into a static library would not help: it has to
//! be a file for the dynamic loader. The inner cargo has its own target directory, hence its own lock.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates that the object is made of, itself included.
const CRATES: [&str; 14] = [
    "acomp",
    "codecs",
    "iaa",
    "idxd",
    "ledger",
    "pagecodec",
    "pager",
    "preload",
    "replacement",
    "swapfile",
    "sys",
    "uzswap",
    "zsmalloc",
    "zswap",
];

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let crates = Path::new(&variable("CARGO_MANIFEST_DIR")).parent().expect("crates/").to_owned();
    for name in CRATES {
        println!("cargo::rerun-if-changed={}", crates.join(name).join("src").display());
        println!("cargo::rerun-if-changed={}", crates.join(name).join("Cargo.toml").display());
    }
    println!("cargo::rerun-if-env-changed=UZSWAP_NO_OBJECT");
    let object = out.join("libpreload.so");
    // Linting the program does not need the object.
    if std::env::var_os("UZSWAP_NO_OBJECT").is_some() || is_lint() {
        std::fs::write(&object, b"").expect("OUT_DIR is writable");
        return;
    }
    let target = out.join("object");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.current_dir(crates.join("preload")).args(["build", "--release", "--package", "preload"]);
    cargo.arg("--target-dir").arg(&target);
    // The program's own target, named only where it is another than the machine's: so it is found in one place.
    let (host, triple) = (variable("HOST"), variable("TARGET"));
    let mut built = target.join("release/libpreload.so");
    if host != triple {
        cargo.args(["--target", &triple]);
        built = target.join(&triple).join("release/libpreload.so");
    }
    // The object lies in memory while programs run: functions' names suffice, lines are not needed.
    cargo.args(["--config", "profile.release.debug=false", "--config", "profile.release.strip='debuginfo'"]);
    // Fast code always: a pager without optimisation is not worth having. Assertions follow the outer build.
    // A panic in it ends the process before anything unwinds.
    cargo.args(["--config", "profile.release.panic=\"abort\""]);
    if variable("PROFILE") == "debug" {
        cargo.args(["--config", "profile.release.debug-assertions=true"]);
    }
    // What the outer cargo says about its own build must not steer the inner one; which linker a target needs is no such
    // thing.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let own = text.starts_with("CARGO_")
            && !text.starts_with("CARGO_HOME")
            && !text.starts_with("CARGO_NET_")
            && !text.starts_with("CARGO_HTTP_")
            && !text.starts_with("CARGO_REGISTR")
            && !text.starts_with("CARGO_SOURCE")
            && !(text.starts_with("CARGO_TARGET_") && text.ends_with("_LINKER"));
        if own
            || ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "TARGET", "PROFILE", "OPT_LEVEL"]
                .contains(&&*text)
        {
            cargo.env_remove(&name);
        }
    }
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "building the preload object failed");
    std::fs::copy(built, &object).expect("the object was built");
}

/// Whether cargo runs clippy, which needs no object.
fn is_lint() -> bool {
    std::env::var("RUSTC_WORKSPACE_WRAPPER").is_ok_and(|wrapper| wrapper.contains("clippy"))
}
