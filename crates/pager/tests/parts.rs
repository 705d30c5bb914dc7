//! The rules for the parts of `address_space`, `pager` and `agent` that cargo does not enforce:
//! layers inside `pager`, the size of types and functions, and the documents' links.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Layers of `pager`, lowest first. A file imports no layer above its own, so making room never
/// leads to a fault.
const LAYERS: [&str; 15] = [
    "config",
    "files",
    "quiesce",
    "gate",
    "gauge",
    "registrations",
    "executable",
    "kept",
    "process",
    "reclaim",
    "fault",
    "lifecycle",
    "fork",
    "roles",
    "pager",
];

const FIELDS_MAX: usize = 9;
const METHODS_MAX: usize = 40;
const FUNCTION_LINES_MAX: usize = 80;

/// The code of a file without comments and without the tests at its end.
fn code_of(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let tests = ["\n#[cfg(test)]\nmod ", "\n#[cfg(all(test, not(feature = \"shuttle\")))]\nmod "];
    let end = tests.iter().filter_map(|tests| text.find(tests)).min().unwrap_or(text.len());
    let lines = text[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The files of a crate with their code, except models and tests.
fn files_of(name: &str) -> Vec<(String, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
    let (mut found, mut left) = (Vec::new(), vec![source.clone()]);
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let module = path.strip_prefix(&source).unwrap().with_extension("").display().to_string();
        if !["model", "interleavings", "testing", "routes", "tracker/tests"].contains(&module.as_str()) {
            found.push((module, code_of(&path)));
        }
    }
    assert!(found.len() > 10, "{name}");
    found
}

#[test]
fn imports_of_the_pager_go_from_higher_layers_to_lower_ones() {
    let height = |module: &str| LAYERS.iter().position(|layer| *layer == module);
    let mut seen = BTreeSet::new();
    for (module, code) in files_of("pager").into_iter().filter(|(module, _)| module != "lib") {
        let layer = module.split('/').next().unwrap().to_owned();
        let own = height(&layer).unwrap_or_else(|| panic!("{module} has no place in LAYERS"));
        for path in code.split("crate::").skip(1) {
            let first = path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            // Other paths name items of `lib.rs`.
            let Some(other) = height(first) else { continue };
            assert!(other <= own, "{module} imports {first}, of a higher layer");
            seen.insert((layer.clone(), first.to_owned()));
        }
    }
    assert!(seen.contains(&("fault".into(), "reclaim".into())), "imports are seen: {seen:?}");
}

/// The name behind `word` in a declaration at the start of a line.
fn name_after<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let rest = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ").strip_prefix(word)?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// The type of an impl block that begins on a line.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl").filter(|_| line.ends_with('{'))?;
    let rest = rest.rsplit(" for ").next().unwrap();
    let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest };
    let name = rest.trim_start_matches(' ').trim_start_matches("&'static ");
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Parameters and fields with a page, a block or pages of one have a type of `units`, never a
/// number.
#[test]
fn pages_blocks_and_slots_have_types_of_their_own() {
    const NAMES: [&str; 10] =
        ["mask", "present", "moved", "page", "needed", "key", "block", "base", "owner", "slot"];
    let numbers = ["u16", "u32", "u64", "u128", "usize"];
    let bare = |code: &str| -> Vec<String> {
        let words = |name: &str, number: &str| {
            let ends = [",", ")", "\n"].map(|end| format!("{name}: {number}{end}"));
            ends.into_iter().chain([format!("{name}: Option<{number}>"), format!("{name}: &{number}")])
        };
        let all = NAMES.iter().flat_map(|name| numbers.iter().flat_map(move |number| words(name, number)));
        let is_whole = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        all.filter(|word| code.match_indices(word.as_str()).any(|(at, _)| is_whole(at))).collect()
    };
    assert_eq!(bare("fn f(mask: u32, stray_mask: u32) {"), ["mask: u32,"]);
    for name in ["address_space", "pager"] {
        for (module, code) in files_of(name).into_iter().filter(|(module, _)| module != "units") {
            assert_eq!(bare(&code), [""; 0], "{name}/{module}");
        }
    }
}

fn begins_function(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().take_while(|word| !word.contains("fn")).collect();
    let is_modifier = |word: &&str| word.starts_with("pub") || ["unsafe", "extern", "\"C\""].contains(word);
    line.contains("fn ") && words.iter().all(is_modifier)
}

#[derive(Default)]
struct Sizes {
    fields: BTreeMap<String, usize>,
    methods: BTreeMap<String, usize>,
    functions: BTreeMap<String, usize>,
}

fn measure(name: &str, code: &str, sizes: &mut Sizes) {
    let (mut structure, mut block, mut function) = (None, None, None);
    for (number, line) in code.lines().enumerate() {
        if let Some(found) = name_after(line, "struct ").filter(|_| line.ends_with('{')) {
            let found = format!("{name}::{found}");
            assert_eq!(sizes.fields.insert(found.clone(), 0), None, "one noun for two types: {found}");
            structure = Some(found);
        }
        block = implemented(line).map(|found| format!("{name}::{found}")).or(block);
        let is_member = line.starts_with("    ") && !line.starts_with("     ");
        if let Some(structure) = structure.as_ref().filter(|_| is_member && line.contains(": ")) {
            *sizes.fields.get_mut(structure).unwrap() += 1;
        }
        if begins_function(line) && (is_member || !line.starts_with(' ')) {
            let of = block.as_ref().filter(|_| is_member);
            of.into_iter().for_each(|of| *sizes.methods.entry(of.clone()).or_default() += 1);
            function = Some((number, line.trim().to_owned(), if is_member { "    }" } else { "}" }));
        }
        if let Some((begun, found, _)) = function.take_if(|(_, _, end)| line == *end) {
            sizes.functions.insert(format!("{name}: {found}"), number - begun + 1);
        }
        if line == "}" {
            (structure, block) = (None, None);
        }
    }
}

/// A type or function beyond the limits is divided.
#[test]
fn types_and_functions_are_of_a_size_to_be_read() {
    let mut sizes = Sizes::default();
    for name in ["address_space", "pager", "agent"] {
        for (module, code) in files_of(name) {
            measure(name, &code, &mut sizes);
            assert!(!code.contains("too_many_arguments"), "{name}/{module}");
        }
    }
    let found = (&sizes.fields, &sizes.methods, &sizes.functions);
    assert_eq!(found.0["pager::Pager"], 5);
    assert!(found.0.len() > 50 && found.1["address_space::AddressSpace"] > 20 && found.2.len() > 500);
    for (sizes, most) in [(found.0, FIELDS_MAX), (found.1, METHODS_MAX), (found.2, FUNCTION_LINES_MAX)] {
        let more: Vec<_> = sizes.iter().filter(|(_, size)| **size > most).collect();
        assert!(more.is_empty(), "more than {most}: {more:#?}");
    }
}

#[test]
fn sizes_are_measured() {
    let code = "pub struct A<T> {\n    a: u8,\n    pub b: T,\n}\nimpl<T> Drop for A<T> {\n    pub unsafe fn drop(&mut self) {\n        let x: u8 = 1;\n    }\n}\nfn free() {\n}";
    let mut sizes = Sizes::default();
    measure("c", code, &mut sizes);
    assert_eq!((sizes.fields["c::A"], sizes.methods["c::A"]), (2, 1));
    assert_eq!(sizes.functions.into_values().collect::<Vec<_>>(), [2, 3]);
}

/// The functions that docs/internals/pager.md links to, with their files.
fn linked() -> Vec<(String, PathBuf)> {
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
        let is_of_type = of.is_empty() || code.lines().any(of_type);
        assert!(is_there && is_of_type, "{name} is not in {}", path.display());
    }
}
