//! Third-party code in the product: notices, sources, licences. Equals deny.toml, without
//! cargo-deny. THIRD-PARTY-NOTICES.md is made of cargo's own sources. After new dependencies:
//!
//! ```text
//! UZSWAP_TEST_WRITE=1 cargo test -p uzswap --test notices
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

const PRODUCT: [&str; 6] =
    ["uzswap", "uzswap-agent", "uzswap-preload", "uzswap-nbdkit", "uzswap-capi", "uzswap-python"];
const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// C libraries inside crates: the crate, the library, the file with its licence.
const C_LIBRARIES: [(&str, &str, &str); 4] = [
    // Both have the same author; the package omits the library's own copy of the licence.
    ("aegis", "libaegis", "LICENSE"),
    ("libdeflate-sys", "libdeflate", "libdeflate/COPYING"),
    ("lz4-sys", "LZ4", "liblz4/lib/LICENSE"),
    ("zstd-sys", "Zstandard", "zstd/LICENSE"),
];

/// Every crate of the product has one of these, or offers one of them.
const LICENCES: [&str; 4] = ["MIT", "Apache-2.0", "BSD-3-Clause", "Zlib"];

struct Crate {
    name: String,
    version: String,
    licence: String,
    repository: String,
    directory: PathBuf,
    compiles_c: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn metadata() -> Option<&'static Value> {
    static METADATA: OnceLock<Option<Value>> = OnceLock::new();
    let ask = || {
        let mut command = Command::new(env!("CARGO"));
        command.args(["metadata", "--format-version", "1", "--locked", "--offline"]).current_dir(root());
        for platform in PLATFORMS {
            command.args(["--filter-platform", platform]);
        }
        let output = command.output().unwrap();
        if !output.status.success() {
            testkit::skip!("tool", "{}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Some(serde_json::from_slice(&output.stdout).expect("cargo writes JSON"))
    };
    METADATA.get_or_init(ask).as_ref()
}

/// Third-party crates in the product: ordinary dependencies, without proc macros.
fn crates(metadata: &Value) -> Vec<Crate> {
    let by_id = |list: &'static str, metadata: &Value| -> BTreeMap<String, Value> {
        let (outer, inner) = list.split_once('.').unwrap_or((list, ""));
        let all = if inner.is_empty() { &metadata[outer] } else { &metadata[outer][inner] };
        self::list(all).iter().map(|one| (text(&one["id"]), one.clone())).collect()
    };
    let (packages, nodes) = (by_id("packages", metadata), by_id("resolve.nodes", metadata));
    let is_ours = |package: &Value| package["source"].is_null();
    let mut wanted: Vec<&String> = packages
        .iter()
        .filter(|(_, package)| is_ours(package) && PRODUCT.contains(&text(&package["name"]).as_str()))
        .map(|(id, _)| id)
        .collect();
    assert_eq!(wanted.len(), PRODUCT.len());
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    while let Some(id) = wanted.pop() {
        let package = &packages[id];
        let runs_in_compiler = list(&package["targets"])
            .iter()
            .any(|target| list(&target["kind"]).contains(&"proc-macro".into()));
        if runs_in_compiler || !seen.insert(id) {
            continue;
        }
        for dependency in list(&nodes[id]["deps"]) {
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                let (id, _) = packages.get_key_value(&text(&dependency["pkg"])).expect("cargo knows it");
                wanted.push(id);
            }
        }
        if is_ours(package) {
            continue;
        }
        let builds_with = |name: &str| {
            let is_it =
                |one: &Value| one["name"] == name && one["kind"] == "build" && one["optional"] == false;
            list(&package["dependencies"]).iter().any(is_it)
        };
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        found.push(Crate {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: text(&package["license"]),
            repository: text(&package["repository"]),
            directory: manifest.parent().unwrap().to_owned(),
            compiles_c: builds_with("cc") || builds_with("cmake"),
        });
    }
    found.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    found
}

/// Returns the licence text that is used: the shortest of those that the crate offers.
fn licence(one: &Crate) -> String {
    let names = ["LICENSE-MIT", "LICENSE", "LICENSE.txt", "LICENSE.md", "COPYING", "LICENSE-APACHE"];
    let path = names.map(|name| one.directory.join(name)).into_iter().find(|path| path.exists());
    let path = path.unwrap_or_else(|| panic!("{} {} has no licence", one.name, one.version));
    fs::read_to_string(path).unwrap()
}

fn normal(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cut(text: &str) -> (Vec<String>, String) {
    let is_holder = |line: &&str| line.trim_start().starts_with("Copyright") && !line.contains("[yyyy]");
    let holders = text.lines().filter(is_holder).map(|line| line.trim().to_owned()).collect();
    let is_title = |line: &&str| ["MIT License", "The MIT License (MIT)"].contains(&line.trim());
    let rest: Vec<&str> =
        text.lines().filter(|line| !is_holder(line) && !is_title(line)).map(str::trim_end).collect();
    (holders, rest.join("\n").trim().to_owned())
}

fn notices(crates: &[Crate]) -> String {
    let mut all = String::from(
        "# Third-party notices\n\n\
         uzswap contains the works of others listed here. Each is under the licence that stands with it; uzswap itself is under MIT or\n\
         Apache-2.0 (LICENSE-MIT, LICENSE-APACHE). Programs also contain the Rust standard library (MIT OR Apache-2.0, copyright of The Rust\n\
         Project contributors, https://www.rust-lang.org). The agent inside the program, and all of a static program, contain parts of the GNU C\n\
         Library (LGPL-2.1-or-later, copyright of the Free Software Foundation and others, https://www.gnu.org/software/libc/) and of GCC's\n\
         runtime library (GPL-3.0-or-later with the GCC Runtime Library Exception, which allows that). Who wants another version of the C\n\
         library in them builds uzswap there.\n\n\
         Made by `crates/program/tests/notices.rs` from the sources that were compiled.\n\n## Libraries in C\n",
    );
    for (name, library, path) in C_LIBRARIES {
        let of = crates.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("{name} is not used"));
        let text = fs::read_to_string(of.directory.join(path)).unwrap();
        let version = of.version.split_once('+').map_or(String::new(), |(_, version)| format!(", {version}"));
        write!(
            all,
            "\n### {library} (in the crate {name} {}{version})\n\n",
            of.version.split('+').next().unwrap()
        )
        .unwrap();
        writeln!(
            all,
            "```text\n{}\n```",
            text.trim().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
        )
        .unwrap();
    }
    all.push_str("\n## Crates in Rust\n\n| crate | version | licence | from |\n|---|---|---|---|\n");
    for one in crates {
        let Crate { name, version, licence, repository, .. } = one;
        writeln!(all, "| {name} | {version} | {licence} | {repository} |").unwrap();
    }
    // Each text appears once, with the crates that use it.
    let mut texts: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for one in crates {
        let (holders, rest) = cut(&licence(one));
        let holders = if holders.is_empty() { String::new() } else { format!(": {}", holders.join("; ")) };
        let entry = texts.entry(normal(&rest)).or_insert_with(|| (rest, Vec::new()));
        entry.1.push(format!("{}{holders}", one.name));
    }
    let mut texts: Vec<_> = texts.into_values().collect();
    texts.sort_by_key(|(_, names)| (usize::MAX - names.len(), names[0].clone()));
    for (text, names) in texts {
        all.push_str("\n## Licence of\n\n");
        names.iter().for_each(|name| writeln!(all, "- {name}").unwrap());
        if text.contains("Apache License") && text.contains("TERMS AND CONDITIONS") {
            all.push_str("\nApache-2.0, as in LICENSE-APACHE.\n");
        } else {
            write!(all, "\n```text\n{text}\n```\n").unwrap();
        }
    }
    all
}

#[test]
fn the_notices_name_all_that_is_compiled_in() {
    let Some(metadata) = metadata() else { return };
    let wanted = notices(&crates(metadata));
    let path = root().join("THIRD-PARTY-NOTICES.md");
    if std::env::var_os("UZSWAP_TEST_WRITE").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let lines: BTreeSet<&str> = there.lines().collect();
    let missing: Vec<&str> = wanted.lines().filter(|line| !lines.contains(line)).collect();
    assert!(there == wanted, "write it again (UZSWAP_TEST_WRITE=1); it lacks: {missing:#?}");
}

#[test]
fn every_library_in_c_is_known() {
    let Some(metadata) = metadata() else { return };
    let crates = crates(metadata);
    let compile_c: Vec<&str> =
        crates.iter().filter(|one| one.compiles_c).map(|one| one.name.as_str()).collect();
    assert_eq!(compile_c, C_LIBRARIES.map(|(name, ..)| name), "C_LIBRARIES has all of them");
}

#[test]
fn every_licence_is_one_of_those_allowed() {
    let Some(metadata) = metadata() else { return };
    for one in crates(metadata) {
        let choices = one.licence.replace(" OR ", "/");
        let is_allowed = choices.split('/').any(|choice| LICENCES.contains(&choice.trim()));
        assert!(is_allowed, "{} {}: {}", one.name, one.version, one.licence);
    }
    let deny = fs::read_to_string(root().join("deny.toml")).unwrap();
    for licence in LICENCES {
        assert!(deny.contains(&format!("\"{licence}\"")), "deny.toml allows {licence}");
    }
}

#[test]
fn every_source_is_the_registry() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    for source in lock.lines().filter(|line| line.starts_with("source = ")) {
        assert_eq!(source, "source = \"registry+https://github.com/rust-lang/crates.io-index\"");
    }
}

#[test]
fn no_crate_of_the_product_comes_in_two_versions() {
    let Some(metadata) = metadata() else { return };
    let crates = crates(metadata);
    for two in crates.windows(2) {
        assert_ne!(two[0].name, two[1].name, "{} and {}", two[0].version, two[1].version);
    }
}

#[test]
fn packages_have_the_notices() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    assert!(read("crates/program/Cargo.toml").contains("THIRD-PARTY-NOTICES.md\", \"usr/share/doc/uzswap/\""));
    assert!(read("pyproject.toml").contains("THIRD-PARTY-NOTICES.md"));
    assert!(read("crates/program/packaging/archive").contains("THIRD-PARTY-NOTICES"));
    let link = root().join("crates/program/THIRD-PARTY-NOTICES.md");
    assert_eq!(link.canonicalize().unwrap(), root().join("THIRD-PARTY-NOTICES.md").canonicalize().unwrap());
    let output = Command::new(env!("CARGO"))
        .args(["package", "--package", "uzswap", "--list", "--allow-dirty", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        testkit::skip!("tool", "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    assert!(listed.lines().any(|file| file == "THIRD-PARTY-NOTICES.md"), "{listed}");
}
