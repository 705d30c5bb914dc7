//! Published packages can be built from a registry. The long test packs every package, unpacks
//! them, and installs the program from there, as `cargo install uzswap` does:
//!
//! ```text
//! cargo test -p uzswap --test packages -- --ignored --nocapture
//! ```

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::{can_manage, own, printed, Scratch};

fn siblings(manifest: &str, section: &str) -> BTreeSet<String> {
    let section = format!("[{section}]");
    let lines = manifest.lines().skip_while(|line| *line != section).skip(1);
    lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ']).next())
        .filter(|name| sibling(name).is_some())
        .map(str::to_owned)
        .collect()
}

fn sibling(name: &str) -> Option<PathBuf> {
    let folders = ["../../crates", "../../accel"].map(|folder| own(folder).join(name));
    folders.into_iter().find(|folder| folder.join("Cargo.toml").exists())
}

/// A package has the sources of the files it embeds. Only its users would notice a missing crate.
#[test]
fn all_that_the_agent_is_made_of_is_carried() {
    let mut wanted = BTreeSet::from(["agent".to_owned(), "preload".to_owned()]);
    let mut looked_at = BTreeSet::new();
    while let Some(name) = wanted.difference(&looked_at).next().cloned() {
        let manifest = fs::read_to_string(sibling(&name).unwrap().join("Cargo.toml")).unwrap();
        wanted.extend(siblings(&manifest, "dependencies"));
        looked_at.insert(name);
    }
    let entries = fs::read_dir(own("carried")).unwrap().map(|entry| entry.unwrap());
    let carried: BTreeSet<String> = entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert_eq!(carried, wanted, "carried/ has a folder for each crate that the agent and the object need");
    for name in carried {
        for (link, file) in [("src", "src"), ("manifest.toml", "Cargo.toml"), ("build.rs", "build.rs")] {
            let (link, file) = (own("carried").join(&name).join(link), sibling(&name).unwrap().join(file));
            assert_eq!(link.exists(), file.exists(), "{}", link.display());
            if file.exists() {
                let [link, file] = [link, file].map(|path| path.canonicalize().unwrap());
                assert_eq!(link, file);
            }
        }
    }
}

#[test]
#[ignore = "compiles everything again as it is released, and asks the registry"]
fn the_program_is_installed_from_its_package() {
    // Not in the target directory, below the repository's workspace and settings.
    let scratch = Scratch::public("packages");
    let cargo = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(own(".")).env_remove("CARGO_TARGET_DIR");
        cargo
    };
    let (packed, unpacked) = (scratch.path("packed"), scratch.path("unpacked"));
    let mut pack = cargo();
    pack.args(["package", "--workspace", "--no-verify", "--allow-dirty", "--quiet", "--target-dir"]);
    printed(pack.arg(&packed));
    fs::create_dir_all(&unpacked).unwrap();
    for entry in fs::read_dir(packed.join("package")).unwrap() {
        let package = entry.unwrap().path();
        if package.extension().is_some_and(|extension| extension == "crate") {
            printed(Command::new("tar").arg("-xzf").arg(&package).arg("-C").arg(&unpacked));
        }
    }
    // Far from the repository; the folders imitate a registry that has these packages.
    let version = env!("CARGO_PKG_VERSION");
    let mut install = cargo();
    install.current_dir(&unpacked).args(["install", "--path", &format!("uzswap-{version}")]);
    install.arg("--root").arg(scratch.path("root")).arg("--target-dir").arg(scratch.path("target"));
    for entry in fs::read_dir(&unpacked).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let name = name.strip_suffix(&format!("-{version}")).unwrap();
        if name != "uzswap" {
            let patch = format!("patch.crates-io.{name}.path={:?}", folder.to_str().unwrap());
            install.args(["--config", &patch]);
        }
    }
    printed(&mut install);
    let program = scratch.path("root/bin/uzswap");
    assert_eq!(printed(Command::new(&program).arg("--version")), format!("uzswap {version}\n"));
    if can_manage() {
        let job = "pages = [bytes([n % 251]) * 9000 for n in range(30000)]; print(sum(map(len, pages)))";
        let said = printed(Command::new(&program).args(["run", "--ram", "64M", "--", "python3", "-c", job]));
        assert_eq!(said, "270000000\n");
    }
}
