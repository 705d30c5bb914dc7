//! The sources of the agent and of the preload object in a package of the program.
//!
//! A package has no siblings, so `carried/` has a folder for each crate of the two, with links to
//! its sources and its manifest. `cargo package` follows the links and packs files, and this module
//! makes them a workspace again. The manifests have another name there because cargo leaves nested
//! packages out.

use std::fs;
use std::path::{Path, PathBuf};

fn crates(package: &Path) -> Vec<String> {
    let carried = package.join("carried");
    let entries = fs::read_dir(&carried).unwrap_or_else(|error| panic!("{}: {error}", carried.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("a readable folder"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("names are ASCII"))
        .collect();
    names.sort();
    names
}

/// Makes the workspace in `folder` and returns the directory of its crates.
pub fn unpack(package: &Path, folder: &Path) -> PathBuf {
    let carried = package.join("carried");
    let _ = fs::remove_dir_all(folder);
    for name in crates(package) {
        let (from, to) = (carried.join(&name), folder.join("crates").join(&name));
        copy(&from.join("src"), &to.join("src"));
        if from.join("build.rs").exists() {
            copy(&from.join("build.rs"), &to.join("build.rs"));
        }
        write(&to.join("Cargo.toml"), &needed(&read(&from.join("manifest.toml"))));
    }
    let workspace = "[workspace]\nresolver = \"2\"\nmembers = [\"crates/*\"]\n\n";
    let names = needed(&read(&carried.join("workspace.toml"))).replace("path = \"accel/", "path = \"crates/");
    write(&folder.join("Cargo.toml"), &(workspace.to_owned() + &names));
    // The dependency versions that the program was tested with.
    if package.join("Cargo.lock").exists() {
        copy(&package.join("Cargo.lock"), &folder.join("Cargo.lock"));
    }
    folder.join("crates")
}

/// Removes from a manifest the dependencies that only tests need. A package's lock file lacks them,
/// so cargo would ask the registry for them, even without a network.
fn needed(manifest: &str) -> String {
    let mut kept = String::new();
    let mut is_kept = true;
    for line in manifest.lines() {
        if line.starts_with('[') {
            let name = line.trim_start_matches('[').split(']').next().unwrap_or_default();
            is_kept = !["workspace", "dev-dependencies", "test", "bench", "example"].contains(&name)
                && !["profile.dev", "profile.test"].iter().any(|profile| name.starts_with(profile));
        }
        // Model checkers are for tests, too.
        if is_kept && !line.starts_with("shuttle") {
            kept += line;
            kept.push('\n');
        }
    }
    kept
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
            let name = entry.expect("a readable folder").file_name();
            copy(&from.join(&name), &to.join(&name));
        }
        return;
    }
    fs::create_dir_all(to.parent().expect("in a folder")).expect("OUT_DIR is writable");
    fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("in a folder")).expect("OUT_DIR is writable");
    fs::write(path, text).expect("OUT_DIR is writable");
}
