//! Installs and uses the Debian package and the archive of the static program, made from the tests'
//! build; also removes and purges the Debian package.
//!
//! This happens on an overlay over this machine's files in a private mount namespace, so the
//! machine stays unchanged. The commands are in `tests/installed`. The long tests make the packages
//! and the wheel as for a release, and use them in Debian 12 and 13 without compilers:
//!
//! ```text
//! cargo test -p uzswap --test installed -- --ignored --nocapture --test-threads 1
//! ```
//!
//! `UZSWAP_TEST_PACKAGES` names a folder with packages made before.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{command, has, is_root, own, plugin, printed, Ran, Scratch, CANNOT, PROGRAM};

/// Runs a command that must succeed; returns the last line of its output.
fn run(command: &mut Command) -> String {
    printed(command).lines().last().unwrap_or_default().to_owned()
}

fn has_cargo_deb() -> bool {
    let has = Ran::of(&mut command(&[env!("CARGO"), "deb", "--version"])).status == Some(0);
    if !has {
        testkit::skip!("tool", "cargo-deb is not installed (cargo install cargo-deb)");
    }
    has
}

fn pack(script: &str, directory: &Path) -> PathBuf {
    fs::create_dir_all(directory).unwrap();
    fs::copy(PROGRAM, directory.join("uzswap")).unwrap();
    fs::copy(plugin(), directory.join("libnbdkit_uzswap_plugin.so")).unwrap();
    PathBuf::from(run(Command::new(own(script)).arg(directory).env("CARGO", env!("CARGO"))))
}

fn pack_twice(script: &str, scratch: &Scratch) -> PathBuf {
    let [one, other] = ["first", "again"].map(|name| pack(script, &scratch.path(name)));
    assert!(fs::read(&one).unwrap() == fs::read(other).unwrap(), "two packages of the same programs differ");
    one
}

fn try_package(script: &str, package: &Path, scratch: &Scratch, root: &Path) {
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "--fork", "--kill-child", "sh"]).arg(own("tests/installed/try.sh"));
    tried.arg(own("tests/installed").join(script)).arg(package).arg(scratch.path("mount")).arg(root);
    let tried = Ran::of(&mut tried);
    if tried.status == CANNOT {
        return testkit::skip!("kernel", "{tried}");
    }
    tried.assert_status(0);
}

#[test]
fn a_package_is_installed_used_and_purged() {
    let tools = ["dpkg-deb", "dpkg-shlibdeps", "apt-get", "unshare", "setpriv"];
    if !is_root("install packages") || !tools.into_iter().all(has) || !has_cargo_deb() {
        return;
    }
    let scratch = Scratch::new("debian");
    let package = pack_twice("debian/package", &scratch);
    let field = |name: &str| run(Command::new("dpkg-deb").arg("--field").arg(&package).arg(name));
    assert_eq!((field("Package").as_str(), field("Section").as_str()), ("uzswap", "utils"));
    assert!(
        field("Depends").contains("libc6") && field("Recommends").contains("nbdkit"),
        "{}",
        field("Depends")
    );
    try_package("debian.sh", &package, &scratch, Path::new("/"));
}

#[test]
fn an_archive_is_unpacked_and_used() {
    if !is_root("install packages") || !["unshare", "sha256sum"].into_iter().all(has) {
        return;
    }
    let scratch = Scratch::new("archive");
    let archive = pack_twice("packaging/archive", &scratch);
    let sum = archive.with_extension("gz.sha256");
    run(Command::new("sha256sum").arg("--check").arg(sum).current_dir(archive.parent().unwrap()));
    try_package("archive.sh", &archive, &scratch, Path::new("/"));
}

/// Every artefact lies in one folder, and has what an installation needs.
#[test]
fn a_release_is_one_folder_with_checksums() {
    if !["dpkg-deb", "dpkg-shlibdeps", "sha256sum"].into_iter().all(has) || !has_cargo_deb() {
        return;
    }
    let (scratch, built) = (Scratch::new("release"), Scratch::new("built"));
    fs::copy(PROGRAM, built.path("uzswap")).unwrap();
    fs::copy(plugin(), built.path("libnbdkit_uzswap_plugin.so")).unwrap();
    let release = || {
        let mut script = Command::new(own("packaging/release"));
        script.arg(scratch.path("made")).arg(built.path("")).env("CARGO", env!("CARGO"));
        script
    };
    let folder = PathBuf::from(run(&mut release()));
    let sums = fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    let names: Vec<&str> = sums.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert!(names.len() == 2 && names[0].ends_with("-linux.tar.gz") && names[1].ends_with(".deb"), "{sums}");
    run(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&folder));
    let archive = printed(Command::new("tar").arg("-tzf").arg(folder.join(names[0])));
    let package = printed(Command::new("dpkg-deb").arg("--contents").arg(folder.join(names[1])));
    for path in
        ["bin/uzswap", "completions/uzswap", "_uzswap", "uzswap.fish", "user/report.md", "LICENSE-MIT"]
    {
        assert!(archive.lines().any(|line| line.ends_with(path)), "{path} in {archive}");
        let is_licence = path == "LICENSE-MIT";
        assert!(is_licence || package.lines().any(|line| line.ends_with(path)), "{path} in {package}");
    }
    for path in ["uzswap-run.1", "uzswap-top.1", "operate/block-device.md", "SECURITY.md"] {
        assert!(archive.contains(path) && package.contains(path), "{path} in {archive} and {package}");
    }
    assert!(package.contains("nbdkit-uzswap-plugin.so") && package.contains("60-uzswap.rules"), "{package}");
    Ran::of(&mut release()).assert_status(1).assert_says(&["is not empty"]);
}

/// Makes the release packages, or finds given ones: the archive, the wheel and the Debian package.
fn released(scratch: &Scratch) -> [PathBuf; 3] {
    let folder = std::env::var_os("UZSWAP_TEST_PACKAGES").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(run(Command::new(own("packaging/release")).arg(scratch.path("packages"))))
    });
    [".tar.gz", ".whl", ".deb"].map(|end| {
        let mut files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let found = files.find(|path| path.to_str().unwrap().ends_with(end));
        found.unwrap_or_else(|| panic!("no {end} in {}", folder.display()))
    })
}

/// A Debian with the packages' dependencies and no compiler. Its files come from the mirror.
fn debian(suite: &str, scratch: &Scratch) -> Option<PathBuf> {
    let (root, text) = (scratch.path(suite), scratch.text(suite));
    let include = "--include=python3-numpy,python3-venv,mandoc";
    let made = Ran::of(&mut command(&["mmdebstrap", "--variant=minbase", include, suite, &text]));
    if made.status != Some(0) {
        testkit::skip!("tool", "{made}");
        return None;
    }
    let compilers = ["cc", "gcc", "clang", "rustc", "cargo"].map(|name| root.join("usr/bin").join(name));
    assert_eq!(compilers.into_iter().find(|path| path.exists()), None);
    Some(root)
}

/// Checks that no file in the wheel (module, program, the program's object) needs a newer glibc
/// than the wheel's name says. The versions of glibc's symbols are strings in all of them.
fn check_wheel(wheel: &Path, scratch: &Scratch) {
    let folder = scratch.path("wheel");
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&folder));
    let name = wheel.file_name().unwrap().to_str().unwrap();
    let version = name.split("manylinux_2_").nth(1).unwrap_or_else(|| panic!("{name} is for every glibc"));
    let version: u32 = version.split('_').next().unwrap().parse().unwrap();
    let mut files = vec![folder.join("uzswap/_native.abi3.so")];
    files.extend(fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path().join("scripts/uzswap")));
    files.retain(|path| path.exists());
    assert_eq!(files.len(), 2, "module and program");
    for file in files {
        let bytes = fs::read(&file).unwrap();
        let wanted = bytes.windows(10).filter(|bytes| bytes.starts_with(b"GLIBC_2."));
        let number =
            |text: &str| text.split(|sign: char| !sign.is_ascii_digit()).next().unwrap().parse().ok();
        let most = wanted.filter_map(|bytes| number(std::str::from_utf8(&bytes[8..]).ok()?)).max();
        assert!(most.is_some_and(|most: u32| most <= version), "{}: GLIBC_2.{most:?}", file.display());
    }
}

#[test]
#[ignore = "compiles everything again as it is released, and asks PyPI and Debian's mirror"]
fn packages_work_where_there_is_no_toolchain() {
    if !is_root("install packages") || !["unshare", "mmdebstrap"].into_iter().all(has) || !has_cargo_deb() {
        return;
    }
    let scratch = Scratch::new("released");
    let [archive, wheel, package] = released(&scratch);
    check_wheel(&wheel, &scratch);
    for suite in ["bookworm", "trixie"] {
        let Some(root) = debian(suite, &scratch) else { continue };
        for (script, package) in [("archive.sh", &archive), ("wheel.sh", &wheel), ("debian.sh", &package)] {
            println!("{suite}: {script}");
            try_package(script, package, &scratch, &root);
        }
    }
    // The archive's program needs no file of a distribution.
    let empty = scratch.directory("empty");
    run(Command::new("tar").args(["-C", &empty, "--strip-components=1", "-xzf"]).arg(&archive));
    let said = run(&mut command(&["chroot", &empty, "/bin/uzswap", "--version"]));
    assert_eq!(said, concat!("uzswap ", env!("CARGO_PKG_VERSION")));
}

#[test]
#[ignore = "compiles everything twice as it is released"]
fn two_folders_make_the_same_archive() {
    let scratch = Scratch::new("folders");
    let files = Command::new("git").args(["ls-files", "-z"]).current_dir(own("../..")).output();
    let Some(files) = files.ok().filter(|output| output.status.success()) else {
        testkit::skip!("tool", "git does not list the sources");
        return;
    };
    let archives = ["one", "another"].map(|name| {
        let folder = scratch.path(name);
        for file in String::from_utf8(files.stdout.clone()).unwrap().split_terminator('\0') {
            let (from, to) = (own("../..").join(file), folder.join(file));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            match fs::read_link(&from) {
                Ok(link) => symlink(link, to).unwrap(),
                Err(_) => drop(fs::copy(from, to).unwrap()),
            }
        }
        let mut script = Command::new(folder.join("crates/program/packaging/archive"));
        fs::read(run(script.env("SOURCE_DATE_EPOCH", "1700000000").env_remove("CARGO_TARGET_DIR"))).unwrap()
    });
    assert!(archives[0] == archives[1], "the archives differ");
}
