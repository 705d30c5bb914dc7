//! The Debian package: made of what the tests were built with, installed, used, removed and purged.
//!
//! All of that happens on an overlay over this machine's files, in mounts of its own: the machine
//! stays as it is. The commands are in `tests/debian/try.sh`.

#[allow(dead_code)]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{has, Scratch};

/// The plugin of nbdkit that was built for the tests.
fn plugin() -> PathBuf {
    let name = "libnbdkit_uzswap_plugin.so";
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let found = [deps.join(name), deps.parent().unwrap().join(name)].into_iter().find(|file| file.exists());
    found.expect("built for the tests")
}

fn text(output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}\n{error}", output.status)
}

/// Whether `cargo deb` is there.
fn has_cargo_deb() -> bool {
    let output = Command::new(env!("CARGO")).args(["deb", "--version"]).output();
    let has = output.is_ok_and(|output| output.status.success());
    if !has {
        testkit::skip!("tool", "cargo-deb is not installed (cargo install cargo-deb)");
    }
    has
}

/// Packs what the tests were built with in a directory; the package's path.
fn pack(directory: &Path) -> PathBuf {
    std::fs::create_dir_all(directory).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_uzswap"), directory.join("uzswap")).unwrap();
    std::fs::copy(plugin(), directory.join("libnbdkit_uzswap_plugin.so")).unwrap();
    let mut package = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("debian/package"));
    let made = package.arg(directory).env("CARGO", env!("CARGO")).output().unwrap();
    assert!(made.status.success(), "{}", text(&made));
    directory.join("uzswap.deb")
}

#[test]
fn a_package_is_installed_used_and_purged() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        testkit::skip!("root", "only root may install packages");
        return;
    }
    if !["dpkg-deb", "dpkg-shlibdeps", "apt-get", "unshare", "setpriv"].into_iter().all(has)
        || !has_cargo_deb()
    {
        return;
    }
    let scratch = Scratch::new("debian");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = pack(&scratch.path("first"));
    let again = pack(&scratch.path("again"));
    let is_same = std::fs::read(&package).unwrap() == std::fs::read(again).unwrap();
    assert!(is_same, "two packages of the same programs differ");

    let field = |name: &str| {
        let output = Command::new("dpkg-deb").arg("--field").arg(&package).arg(name).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!((field("Package").as_str(), field("Section").as_str()), ("uzswap", "utils"));
    assert!(
        field("Depends").contains("libc6") && field("Recommends").contains("nbdkit"),
        "{}",
        field("Depends")
    );

    let mut tried = Command::new("unshare");
    tried
        .args(["--mount", "--fork", "--kill-child", "sh"])
        .arg(source.join("tests/debian/try.sh"))
        .arg(&package);
    let output = tried.arg(scratch.path("mount")).output().unwrap();
    // Its own way to say that it cannot be tried here.
    if output.status.code() == Some(77) {
        testkit::skip!("kernel", "{}", text(&output));
        return;
    }
    assert!(output.status.success(), "{}", text(&output));
}
