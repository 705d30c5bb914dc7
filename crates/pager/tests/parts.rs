//! The rules about the pager's parts: no circle among them, no call upwards, and methods of
//! `Pager` in its own file alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What models and tests take from the crate, and what all of it stands on, is no part.
const NOT_PARTS: [&str; 4] = ["lib", "model", "trial", "sync"];

/// The code of a file: without comments, and without what follows the line that begins its tests.
fn code_of(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(all(test, not(feature = \"shuttle\")))]\nmod tests").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Every file of a folder, with the part that it belongs to.
fn files(folder: &Path, part: Option<&str>, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let part = part.unwrap_or(&name);
        if path.is_dir() {
            files(&path, Some(part), found);
        } else if !NOT_PARTS.contains(&part) && name != "interleavings" {
            found.push((part.to_owned(), code_of(&path)));
        }
    }
}

fn all_files() -> Vec<(String, String)> {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), None, &mut found);
    found
}

/// For each part, the others that it names.
fn parts() -> BTreeMap<String, BTreeSet<String>> {
    let found = all_files();
    let names: BTreeSet<String> = found.iter().map(|(part, _)| part.clone()).collect();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (part, code) in &found {
        let named = code.split("crate::").skip(1);
        let named = named.filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
        let others = named.filter(|name| names.contains(*name) && name != part).map(str::to_owned);
        uses.entry(part.clone()).or_default().extend(others);
    }
    uses
}

/// All that a part reaches.
fn reached(uses: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(part) = left.pop() {
        for next in &uses[&part] {
            if reached.insert(next.clone()) {
                left.push(next.clone());
            }
        }
    }
    reached
}

#[test]
fn no_part_reaches_itself() {
    let uses = parts();
    assert!(uses["fault"].contains("reclaim") && uses["reclaim"].contains("pages"), "{uses:#?}");
    let circle: Vec<_> = uses.keys().filter(|part| reached(&uses, part).contains(*part)).collect();
    assert!(circle.is_empty(), "{circle:?} import each other in a circle: {uses:#?}");
}

#[test]
fn making_room_never_leads_to_a_fault_and_moving_pages_to_neither() {
    let uses = parts();
    let pairs = [
        ("reclaim", "fault"),
        ("pages", "fault"),
        ("pages", "reclaim"),
        ("pages", "program"),
        ("fault", "lifecycle"),
        ("lifecycle", "fork"),
        ("quiesce", "pages"),
        ("fork", "pager"),
    ];
    for (lower, higher) in pairs {
        assert!(!reached(&uses, lower).contains(higher), "{lower} reaches {higher}: {uses:#?}");
    }
}

#[test]
fn only_the_file_of_the_pager_writes_its_methods() {
    let found = all_files();
    let writes = |code: &str| code.lines().any(|line| line.starts_with("impl Pager {"));
    let written: BTreeSet<&str> =
        found.iter().filter(|(_, code)| writes(code)).map(|(part, _)| part.as_str()).collect();
    assert_eq!(written, ["pager"].into());
}

#[test]
fn the_pager_has_few_fields_and_all_of_them_are_private() {
    let code = code_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/pager.rs"));
    let body = code.split("pub struct Pager {\n").nth(1).unwrap().split('}').next().unwrap();
    let fields: Vec<&str> = body.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert!(fields.len() < 10 && fields.iter().all(|field| !field.starts_with("pub")), "{fields:?}");
}
