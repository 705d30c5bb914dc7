//! Builds the preload object and the agent with an inner cargo, so that the program can carry them.
//!
//! A crate cannot depend on another's shared object, and the dynamic loader needs a file. The inner
//! cargo has its own target directory, hence its own lock, and its own compiler flags.

mod carried;

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let siblings = package.parent().expect("a folder").to_owned();
    // A package from a registry has no siblings.
    let has_siblings =
        siblings.join("agent/Cargo.toml").exists() && siblings.join("preload/Cargo.toml").exists();
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=carried");
    println!("cargo::rerun-if-env-changed=UZSWAP_NO_OBJECT");
    // Clippy needs neither file, nor does docs.rs, which has no network.
    if ["UZSWAP_NO_OBJECT", "DOCS_RS"].iter().any(|name| std::env::var_os(name).is_some()) || is_lint() {
        for name in ["libpreload.so", "uzswap-agent"] {
            std::fs::write(out.join(name), b"").expect("OUT_DIR is writable");
        }
        return;
    }
    let crates = if has_siblings { siblings } else { carried::unpack(&package, &out.join("carried")) };
    let (host, target) = (variable("HOST"), variable("TARGET"));
    // `--target` is passed only when cross-compiling, so the object has one place per case.
    let mut object = inner_cargo(&crates, &out.join("object"), "preload");
    let mut built = out.join("object/release");
    if host != target {
        object.args(["--target", &target]);
        built = out.join("object").join(&target).join("release");
    }
    build(object, &built.join("libpreload.so"), &out.join("libpreload.so"));
    // `--target` is always passed, so the flags do not apply to build scripts.
    let mut agent = inner_cargo(&crates, &out.join("agent"), "agent");
    agent.args(["--bin", "uzswap-agent", "--target", &target]);
    for feature in ["zstd", "deflate", "iaa"] {
        if std::env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase())).is_some() {
            agent.args(["--features", feature]);
        }
    }
    // RUSTFLAGS replace the flags of the workspace's configuration, so the alignment is repeated.
    let own =
        ["-Ctarget-feature=+crt-static", "-Crelocation-model=pie", "-Cllvm-args=-align-all-functions=6"];
    let flags = own.map(str::to_owned).into_iter().chain(remapped_paths());
    agent.env("CARGO_ENCODED_RUSTFLAGS", flags.collect::<Vec<_>>().join("\x1f"));
    let built = out.join("agent").join(&target).join("release/uzswap-agent");
    build(agent, &built, &out.join("uzswap-agent"));
    let head = std::fs::read(&built).expect("it was built");
    // elf.h: ET_DYN, a position-independent file.
    assert_eq!(head.get(16), Some(&3), "the agent is not position-independent");
}

fn build(mut cargo: Command, built: &Path, copy: &Path) {
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "building {} failed", copy.display());
    std::fs::copy(built, copy).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
}

fn inner_cargo(crates: &Path, target_directory: &Path, package: &str) -> Command {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let mut cargo = Command::new(variable("CARGO"));
    cargo.current_dir(crates.join(package)).args(["build", "--release"]);
    cargo.args(["--package", &format!("uzswap-{package}")]).arg("--target-dir").arg(target_directory);
    // The object stays in memory while programs run: keep function names, drop line tables.
    cargo.args(["--config", "profile.release.debug=false", "--config", "profile.release.strip='debuginfo'"]);
    // Always optimised. Assertions follow the outer build. A panic aborts before any unwinding.
    cargo.args(["--config", "profile.release.panic=\"abort\""]);
    if variable("PROFILE") == "debug" {
        cargo.args(["--config", "profile.release.debug-assertions=true"]);
        // Debug builds are frequent, so they build faster.
        cargo.args(["--config", "profile.release.lto=\"off\""]);
        cargo.args(["--config", "profile.release.codegen-units=16"]);
    }
    for flag in remapped_paths() {
        cargo.args(["--config", &format!("build.rustflags=['{flag}']")]);
    }
    // Variables of the outer build must not steer the inner one. A target's linker is kept.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let kept = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_SOURCE"];
        let own = text.starts_with("CARGO_")
            && !kept.iter().any(|prefix| text.starts_with(prefix))
            && !(text.starts_with("CARGO_TARGET_") && text.ends_with("_LINKER"));
        let others =
            ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "TARGET", "PROFILE", "OPT_LEVEL"];
        if own || others.contains(&&*text) {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// Flags of the outer build that hide source paths. All parts of a package need them.
fn remapped_paths() -> Vec<String> {
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let is_remap = |flag: &&str| flag.starts_with("--remap-path-prefix=");
    flags.split('\x1f').filter(is_remap).map(str::to_owned).collect()
}

fn is_lint() -> bool {
    std::env::var("RUSTC_WORKSPACE_WRAPPER").is_ok_and(|wrapper| wrapper.contains("clippy"))
}
