//! The rules for the pager's parts: imports in the order of layers, no cycle, no upward call, and
//! methods of `Pager` only in its own file.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Not parts.
const NOT_PARTS: [&str; 2] = ["lib", "testing"];

/// The code of a file without comments and without the tests at its end.
fn code_of(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The layers, lowest first. A layer imports only those below it, so there is no circle, and making
/// room never leads to a fault.
const LAYERS: [&str; 15] = [
    "config",
    "files",
    "quiesce",
    "gate",
    "gauge",
    "registrations",
    "executable",
    "kept",
    "program",
    "reclaim",
    "fault",
    "lifecycle",
    "fork",
    "roles",
    "pager",
];

/// The paths in `use` statements and code, from `crate` or `super`, with groups in braces expanded.
fn paths(code: &str) -> Vec<Vec<String>> {
    let is_path = |c: char| c.is_alphanumeric() || "_:{}, \n".contains(c);
    let mut found = Vec::new();
    for (at, word) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let line = code[..at].rsplit('\n').next().unwrap();
        let is_import = line.trim_start().starts_with("use ") || line.trim_start().starts_with("pub");
        let rest = &code[at..];
        let end = match is_import {
            true => rest.find(';').unwrap(),
            false => rest.find(|c: char| !is_path(c) || "{}, \n".contains(c)).unwrap_or(rest.len()),
        };
        assert!(rest.starts_with(word));
        let text: String = rest[..end].split_whitespace().collect();
        let (prefix, group) = text.split_once('{').unwrap_or((&text, ""));
        let prefix: Vec<&str> = prefix.split("::").filter(|part| !part.is_empty()).collect();
        let group = group.trim_end_matches('}');
        // The first part of a group's member suffices: it names a module or an item.
        for member in group.split([',', '{', '}']) {
            let first = member.split("::").next().filter(|first| !first.is_empty());
            let path = prefix.iter().copied().chain(first);
            found.push(path.map(str::to_owned).collect());
        }
    }
    found
}

/// For each layer, its imported layers and the importing file.
fn imports_of_layers() -> BTreeSet<(&'static str, &'static str, String)> {
    let mut found = BTreeSet::new();
    for (module, code) in all_files() {
        let layer = layer_of(&module);
        for path in paths(&code) {
            let mut at = module.clone();
            let ups = path.iter().take_while(|part| *part == "super").count();
            at.truncate(if ups == 0 { 0 } else { at.len() - ups.min(at.len()) });
            at.extend(path.into_iter().filter(|part| part != "super" && part != "crate"));
            let is_part = at.first().is_some_and(|first| LAYERS.contains(&first.as_str()));
            if is_part && layer_of(&at) != layer {
                found.insert((layer, layer_of(&at), module.join("/")));
            }
        }
    }
    found
}

fn layer_of(path: &[String]) -> &'static str {
    LAYERS.into_iter().find(|layer| *layer == path[0]).unwrap_or_else(|| {
        panic!("{path:?} is in no layer: give it a place in LAYERS");
    })
}

/// The code of every file of a part, with the path of its module.
fn all_files() -> Vec<(Vec<String>, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut found, mut left) = (Vec::new(), vec![source.clone()]);
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let name = path.strip_prefix(&source).unwrap().with_extension("");
        let mut module: Vec<String> = name.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        module.pop_if(|last| last == "mod");
        if !NOT_PARTS.contains(&module.last().unwrap().as_str()) {
            found.push((module, code_of(&path)));
        }
    }
    found
}

#[test]
fn imports_go_from_higher_layers_to_lower_ones() {
    let height = |layer: &str| LAYERS.iter().position(|other| *other == layer).unwrap();
    let found = imports_of_layers();
    let has = |from, to| found.iter().any(|(layer, other, _)| (*layer, *other) == (from, to));
    assert!(has("fault", "reclaim") && has("reclaim", "program"));
    let upwards: Vec<_> = found.iter().filter(|(from, to, _)| height(from) < height(to)).collect();
    assert!(upwards.is_empty(), "imports from a lower layer to a higher one: {upwards:#?}");
}

#[test]
fn only_the_file_of_the_pager_writes_its_methods() {
    let writes = |code: &str| code.lines().any(|line| line.starts_with("impl Pager {"));
    let writing =
        all_files().into_iter().filter(|(_, code)| writes(code)).map(|(module, _)| module.join("/"));
    assert_eq!(writing.collect::<Vec<_>>(), ["pager"]);
}

/// The structures of a file with the declarations of their fields.
fn structures(code: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_inside = false;
    for line in code.lines() {
        let opened = line.split_once("struct ").filter(|_| line.ends_with('{') && !line.starts_with(' '));
        if let Some((_, name)) = opened {
            found.push((name.to_owned(), Vec::new()));
            is_inside = true;
        }
        is_inside &= !line.starts_with('}');
        let field =
            line.strip_prefix("    ").filter(|field| is_inside && !field.starts_with([' ', '#', '}']));
        found.last_mut().unwrap_or(&mut Default::default()).1.extend(field.map(str::to_owned));
    }
    found
}

/// A part that would exceed this is divided.
#[test]
fn every_structure_has_few_fields_and_the_pager_s_are_private() {
    let files = all_files();
    let all: Vec<_> = files.iter().flat_map(|(_, code)| structures(code)).collect();
    let fields = |name: &str| &all.iter().find(|(other, _)| other.starts_with(name)).unwrap().1;
    assert!(all.len() > 30 && fields("Reclaimer ").len() > 5, "structures are found: {all:#?}");
    let many: Vec<_> = all.iter().filter(|(_, fields)| fields.len() > 15).collect();
    assert!(many.is_empty(), "{many:#?}");
    let pager = fields("Pager ");
    assert!(!pager.is_empty() && pager.iter().all(|field| !field.starts_with("pub")), "{pager:?}");
}

/// The functions that docs/internals/pager.md links to, with their files.
fn linked() -> Vec<(String, std::path::PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals");
    let text = fs::read_to_string(folder.join("pager.md")).unwrap();
    let definitions = text.lines().filter_map(|line| line.strip_prefix("[`")?.split_once("`]: "));
    definitions.map(|(name, path)| (name.to_owned(), folder.join(path))).collect()
}

#[test]
fn links_of_the_document_lead_to_the_named_functions() {
    let linked = linked();
    assert!(linked.len() > 20, "{linked:?}");
    for (name, path) in linked {
        let code = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (of, function) = name.rsplit_once("::").unwrap_or(("", &name));
        let is_there = code.contains(&format!("fn {function}(")) || code.contains(&format!("fn {function}<"));
        let of = of.rsplit("::").next().unwrap();
        let of_type = |line: &str| line.starts_with("impl") && line.contains(of);
        assert!(
            is_there && (of.is_empty() || code.lines().any(of_type)),
            "{name} is not in {}",
            path.display()
        );
    }
}

#[test]
fn a_page_is_followed_through_few_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals");
    let text = fs::read_to_string(folder.join("pager.md")).unwrap();
    let linked = linked();
    for (heading, most) in [("\n## Out\n", 15), ("\n## In\n", 10)] {
        let section = text.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
        let names = section.split("[`").skip(1).filter_map(|rest| Some(rest.split_once("`]")?.0));
        let files: BTreeSet<_> =
            names.map(|name| &linked.iter().find(|(other, _)| other == name).unwrap().1).collect();
        assert!((5..=most).contains(&files.len()), "{heading}: {files:#?}");
    }
}
