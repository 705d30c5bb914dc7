//! The repository's rules about language: words to avoid, the width of comments and documents, and
//! valid references. The lint `missing_docs`, which the workspace denies, requires documentation of
//! public items; the last test checks that every crate follows it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS_MAX: usize = 100;

/// Words that a reader stops at. Each is matched as a whole word, in any case.
const BANNED: [&str; 16] = [
    "nobody",
    "nobody's",
    "somebody",
    "somebody's",
    "anybody",
    "whoever",
    "whomever",
    "whatever",
    "meanwhile",
    "anew",
    "lest",
    "answers",
    "as ever",
    "goes on",
    "let be",
    "is to be had",
];

/// Folders whose comments and messages are not checked yet. Documents have no exceptions.
const EXCEPTIONS: [&str; 0] = [];

/// Files that this repository did not write, or that list the words.
const FOREIGN: [&str; 4] =
    ["THIRD-PARTY-NOTICES.md", "LICENSE-MIT", "LICENSE-APACHE", "crates/testkit/tests/language.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files of the repository that people write, by their path from the root. Links are not
/// followed: their targets are found in their own place.
fn files() -> Vec<PathBuf> {
    let (root, mut found, mut open) = (root(), Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(root.join(&folder)).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let path = folder.join(&name);
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                let is_made = ["target", ".git", "node_modules", "__pycache__", "dist", "build-wheel"];
                let is_made = is_made.contains(&name.as_str()) || path.ends_with("fuzz/corpus");
                if !is_made {
                    open.push(path);
                }
            } else if kind.is_file() && !FOREIGN.iter().any(|foreign| path.ends_with(foreign)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A line of text that people read: its number, and the text without the code around it.
type Line = (usize, String);

fn words_of_source(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut number = 1;
    let mut said = String::new();
    let bytes: Vec<char> = text.chars().collect();
    let mut at = 0;
    let is_at = |at: usize, what: &str| what.chars().enumerate().all(|(k, c)| bytes.get(at + k) == Some(&c));
    while at < bytes.len() {
        if is_at(at, "//") {
            while at < bytes.len() && bytes[at] != '\n' {
                said.push(bytes[at]);
                at += 1;
            }
        } else if is_at(at, "/*") {
            while at < bytes.len() && !is_at(at, "*/") {
                said.push(bytes[at]);
                if bytes[at] == '\n' {
                    lines.push((number, std::mem::take(&mut said)));
                    number += 1;
                }
                at += 1;
            }
        } else if bytes[at] == '\'' {
            // A character, or a lifetime, which has no end.
            let end = if bytes.get(at + 1) == Some(&'\\') { 3 } else { 2 };
            at += if bytes.get(at + end) == Some(&'\'') { end + 1 } else { 1 };
        } else if bytes[at] == '"' {
            let mut hashes = 0;
            while hashes < at && bytes[at - 1 - hashes] == '#' {
                hashes += 1;
            }
            let is_raw = at > hashes && bytes[at - 1 - hashes] == 'r';
            let end = if is_raw { "\"".to_owned() + &"#".repeat(hashes) } else { "\"".to_owned() };
            at += 1;
            while at < bytes.len() && !is_at(at, &end) {
                if bytes[at] == '\\' && !is_raw {
                    at += 1;
                }
                match bytes.get(at) {
                    Some('\n') => {
                        lines.push((number, std::mem::take(&mut said)));
                        number += 1;
                    }
                    Some(other) => said.push(*other),
                    None => {}
                }
                at += 1;
            }
            at += end.len();
            said.push(' ');
        } else {
            if bytes[at] == '\n' {
                lines.push((number, std::mem::take(&mut said)));
                number += 1;
            }
            at += 1;
        }
    }
    lines.push((number, said));
    lines
}

/// The prose of a file; `None` for data.
fn words(path: &Path, text: &str) -> Option<Vec<Line>> {
    let all = || text.lines().enumerate().map(|(k, line)| (k + 1, line.to_owned())).collect();
    match path.extension().and_then(|end| end.to_str()) {
        Some("rs" | "c" | "h" | "cc" | "go" | "java" | "js") => Some(words_of_source(text)),
        Some("md" | "py" | "sh" | "toml" | "pl" | "rb" | "conf" | "rules") => Some(all()),
        None if text.starts_with("#!") => Some(all()),
        _ => None,
    }
}

fn banned(line: &str) -> Vec<&'static str> {
    // Names in code style are not words.
    let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``").to_lowercase();
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let has = |word: &str| {
        line.match_indices(word).any(|(at, _)| {
            !is_part(line[..at].chars().next_back()) && !is_part(line[at + word.len()..].chars().next())
        })
    };
    BANNED.iter().filter(|word| has(word)).copied().collect()
}

fn is_comment(path: &Path, line: &str) -> bool {
    let line = line.trim_start();
    match path.extension().and_then(|end| end.to_str()) {
        Some("rs" | "c" | "h" | "cc" | "go" | "java" | "js") => line.starts_with("//"),
        Some("md") => false,
        _ => line.starts_with("# ") || line.starts_with("#: "),
    }
}

fn is_excepted(path: &Path) -> bool {
    path.extension().is_none_or(|end| end != "md") && EXCEPTIONS.iter().any(|folder| path.starts_with(folder))
}

/// Clauses that describe a thing instead of naming it, in a comment: "what is left" for "the rest",
/// "is to be read", "so many bytes", "has it be read".
fn unnamed(comment: &str) -> usize {
    const VERBS: [&str; 21] = [
        "is", "was", "are", "were", "came", "comes", "goes", "went", "has", "had", "have", "it", "they",
        "can", "may", "must", "will", "would", "does", "do", "did",
    ];
    // Names in code style are not words.
    let text = comment.split('`').step_by(2).collect::<Vec<_>>().join("_").to_lowercase();
    let words: Vec<&str> =
        text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    let is_unnamed = |at: &usize| match (words[*at], words.get(at + 1).copied().unwrap_or_default()) {
        ("what", next) => VERBS.contains(&next),
        ("is" | "are" | "was" | "were", "to") | ("so", "many" | "much") => true,
        ("has" | "have" | "had" | "having", _) => words.iter().skip(at + 2).take(2).any(|word| *word == "be"),
        _ => false,
    };
    (0..words.len()).filter(is_unnamed).count()
}

/// Such clauses that each package's comments may have. Lower a number when you remove some.
const UNNAMED_MAX: &[(&str, usize)] = &[
    ("accel/command", 1),
    ("accel/iaa", 1),
    ("bindings/capi", 1),
    ("crates/address_space", 3),
    ("crates/ledger", 2),
    ("crates/nbdkit", 1),
    ("crates/pagecodec", 1),
    ("crates/pager", 2),
    ("crates/program", 6),
    ("crates/ublk", 1),
    ("crates/uzswap", 5),
    ("lab", 1),
];

#[test]
fn comments_name_their_subjects() {
    let mut counts = BTreeMap::<String, usize>::new();
    for path in files()
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs" || end == "py" || end == "c"))
    {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let mut parts = path.iter().map(|part| part.to_str().unwrap());
        let folder = match (parts.next().unwrap(), parts.next().unwrap_or_default()) {
            (top @ ("crates" | "accel" | "bindings"), package) => format!("{top}/{package}"),
            (top, _) => top.to_owned(),
        };
        let comments = text.lines().filter(|line| is_comment(path, line));
        *counts.entry(folder).or_default() += comments.map(unnamed).sum::<usize>();
    }
    let allowed =
        |folder: &str| UNNAMED_MAX.iter().find(|(name, _)| *name == folder).map_or(0, |(_, most)| *most);
    let found: Vec<String> = counts
        .iter()
        .filter(|(folder, count)| **count > allowed(folder))
        .map(|(folder, count)| format!("{folder}: {count}, allowed {}", allowed(folder)))
        .collect();
    report("Name the thing instead of describing it by a clause (CONTRIBUTING.md, Style)", &found);
}

#[test]
fn clauses_without_a_noun_are_counted() {
    for (comment, count) in [
        ("// What is left goes to disk, and what came in stays.", 2),
        ("/// Is to be read by so many threads", 2),
        ("/// Has the page be read, and had `x` be read.", 2),
        ("/// Returns the rest. It has been read; whether it is too large; what follows.", 0),
        ("// `what is` code", 0),
    ] {
        assert_eq!(unnamed(comment), count, "{comment}");
    }
}

fn report(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}: {} places\n{}", found.len(), found.join("\n"));
}

#[test]
fn documents_comments_and_messages_use_plain_words() {
    let mut found = Vec::new();
    for path in files().iter().filter(|path| !is_excepted(path)) {
        let Ok(text) = fs::read_to_string(root().join(path)) else { continue };
        for (number, line) in words(path, &text).unwrap_or_default() {
            for word in banned(&line) {
                found.push(format!("{}:{number}: {word:?}: {}", path.display(), line.trim()));
            }
        }
    }
    report("Name the thing, and say \"Returns\" (CONTRIBUTING.md, Style)", &found);
}

#[test]
fn names_of_tests_have_subjects() {
    let mut found = Vec::new();
    for path in files().iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let mut lines = text.lines().zip(1..);
        while let Some((line, _)) = lines.next() {
            if line.trim() != "#[test]" {
                continue;
            }
            let Some((name, number)) = lines.find(|(line, _)| line.trim_start().starts_with("fn ")) else {
                break;
            };
            if name
                .split(|c: char| !c.is_alphanumeric())
                .any(|word| matches!(word, "what" | "who" | "whoever"))
            {
                found.push(format!("{}:{number}:{name}", path.display()));
            }
        }
    }
    report("Name the thing that the test is about", &found);
}

#[test]
fn comments_and_documents_are_not_wide() {
    let mut found = Vec::new();
    for path in files().iter().filter(|path| !is_excepted(path)) {
        let Ok(text) = fs::read_to_string(root().join(path)) else { continue };
        if words(path, &text).is_none() {
            continue;
        }
        let is_document = path.extension().is_some_and(|end| end == "md");
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            let counts = is_document || is_comment(path, line);
            let said = if is_document { line } else { line.trim_start().trim_start_matches(['/', '!', '#']) };
            if counts && said.trim_start().starts_with("```") {
                is_code = !is_code;
            }
            is_code &= counts;
            // Tables, drawings, code and addresses cannot be wrapped.
            let is_drawn = said.contains(" | ") || said.trim().contains("  ") || said.contains("-->");
            let is_drawn = is_drawn || is_code || said.starts_with("    ") || said.contains("://");
            if counts && !is_drawn && line.chars().count() > COLUMNS_MAX {
                found.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    report("Wrap comments and documents at 100 columns", &found);
}

#[test]
fn references_lead_somewhere() {
    let mut found = Vec::new();
    for path in files() {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        let is_document = path.extension().is_some_and(|end| end == "md");
        let folder = path.parent().unwrap();
        let links = text.match_indices("](").filter(|_| is_document).map(|(at, _)| {
            let rest = &text[at + 2..];
            (folder.to_owned(), rest[..rest.find(')').unwrap_or(0)].to_owned())
        });
        // Documents that sources and other documents name by their path from the root.
        let named = text.match_indices("docs/").filter_map(|(at, _)| {
            let is_path = |c: char| c.is_ascii_alphanumeric() || "-_/.".contains(c);
            let is_start = !text[..at].chars().next_back().is_some_and(|c| is_path(c) || c == '*');
            let rest = &text[at..];
            let name = &rest[..rest.find(|c| !is_path(c)).unwrap_or(rest.len())];
            (is_start && name.ends_with(".md")).then(|| (PathBuf::new(), name.to_owned()))
        });
        for (folder, name) in links.chain(named).collect::<Vec<_>>() {
            let name = name.split('#').next().unwrap();
            let is_local = !name.is_empty() && !name.contains("://") && !name.contains(' ');
            if is_local && !root().join(&folder).join(name).exists() {
                found.push(format!("{}: {name}", path.display()));
            }
        }
    }
    report("References to files that are not there", &found);
}

#[test]
fn every_crate_denies_missing_documentation() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(workspace.contains("missing_docs = \"deny\""));
    for path in files().iter().filter(|path| path.ends_with("Cargo.toml")) {
        let manifest = fs::read_to_string(root().join(path)).unwrap();
        let is_member = manifest.contains("[package]") && !manifest.contains("[workspace]");
        assert!(!is_member || manifest.contains("[lints]\nworkspace = true"), "{}", path.display());
    }
}

#[test]
fn the_words_of_a_source_are_its_comments_and_strings() {
    let source =
        "fn nobody() { // whoever\n    say(\"meanwhile \\\" anew\", 'a', r#\"as \"ever\"#); }\n/* lest */";
    let said: Vec<_> = words_of_source(source).into_iter().map(|(_, line)| line).collect();
    assert_eq!(said, ["// whoever", "meanwhile \" anew as \"ever ", "/* lest "]);
    assert_eq!(banned("Whoever answers"), ["whoever", "answers"]);
    assert!(banned("the newest `answers` of anewton").is_empty());
}
