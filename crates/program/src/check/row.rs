//! One property of this machine.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The property.
    pub name: String,
    /// Whether `uzswap run` needs it. Other rows are informative.
    pub needed: bool,
    /// Whether the machine has it.
    pub ok: bool,
    pub detail: String,
    /// Advice if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// What `uzswap run` does without it, if it is missing and `run` works nevertheless.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

impl Row {
    /// A property without which `uzswap run` does not work; `fix` is kept only when it is missing.
    pub fn needed(name: &str, ok: bool, detail: impl Into<String>, fix: &str) -> Self {
        let (name, fix) = (name.to_owned(), (!ok).then(|| fix.to_owned()));
        Row { name, needed: true, ok, detail: detail.into(), fix, limit: None }
    }

    /// An informative property.
    pub fn known(name: &str, ok: bool, detail: impl Into<String>, fix: &str) -> Self {
        Row { needed: false, ..Row::needed(name, ok, detail, fix) }
    }

    /// A property without which `uzswap run` works with a limit.
    pub fn limiting(name: &str, ok: bool, detail: impl Into<String>, fix: &str, limit: &str) -> Self {
        Row { limit: (!ok).then(|| limit.to_owned()), ..Row::known(name, ok, detail, fix) }
    }
}

/// Returns whether every needed property is there.
pub fn is_complete(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.ok || !row.needed)
}

/// Returns whether `uzswap run` works here, and with which limits, as one sentence.
pub fn verdict(rows: &[Row]) -> String {
    let missing: Vec<_> =
        rows.iter().filter(|row| row.needed && !row.ok).map(|row| row.name.as_str()).collect();
    let limits: Vec<_> = rows.iter().filter_map(|row| row.limit.as_deref()).collect();
    match (&missing[..], &limits[..]) {
        ([], []) => "`uzswap run` works here with its full function.".to_owned(),
        ([], _) => format!("`uzswap run` works here; {}.", limits.join("; ")),
        _ => format!("`uzswap run` does not work here: {}.", missing.join(", ")),
    }
}

/// Formats the rows for people, with colours; each fix appears once.
pub fn table(rows: &[Row]) -> String {
    const GOOD: Style = AnsiColor::Green.on_default();
    const BAD: Style = AnsiColor::Red.on_default();
    const LIMITED: Style = AnsiColor::Yellow.on_default();
    const BOLD: Style = Style::new().bold();
    let mut text = String::new();
    let mut told = Vec::new();
    for (needed, title) in [(true, "Needed by `uzswap run`"), (false, "Good to know")] {
        writeln!(text, "{BOLD}{title}{BOLD:#}").expect("to a string");
        for row in rows.iter().filter(|row| row.needed == needed) {
            let (word, style) = match (row.ok, needed) {
                (true, _) => ("yes", GOOD),
                (false, true) => ("no", BAD),
                (false, false) => ("no", LIMITED),
            };
            writeln!(text, "  {style}{word:3}{style:#}  {:28} {}", row.name, row.detail)
                .expect("to a string");
            if let Some(fix) = row.fix.as_ref().filter(|fix| !told.contains(fix)) {
                told.push(fix);
                writeln!(text, "       {:28} fix: {fix}", "").expect("to a string");
            }
        }
        text.push('\n');
    }
    let style = if is_complete(rows) { GOOD.bold() } else { BAD.bold() };
    writeln!(text, "{style}{}{style:#}", verdict(rows)).expect("to a string");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_needs_decide() {
        let need = Row::needed("moving", true, "works", "upgrade");
        let known = Row::known("huge pages", false, "never", "echo madvise");
        let rows = [need.clone(), known];
        assert!(is_complete(&rows) && rows[0].fix.is_none());
        assert_eq!(verdict(&rows), "`uzswap run` works here with its full function.");
        let text = anstream::adapter::strip_str(&table(&rows)).to_string();
        let (needed, other) = text.split_once("Good to know").unwrap();
        assert!(needed.contains("yes  moving") && other.contains("no   huge pages"), "{text}");
        assert!(other.contains("fix: echo madvise") && other.ends_with("full function.\n"), "{text}");
        let twice = [Row::needed("one", false, "no", "upgrade"), Row::known("other", false, "no", "upgrade")];
        assert_eq!(table(&twice).matches("fix: upgrade").count(), 1);
        let limited = [need.clone(), Row::limiting("forks", false, "no", "sudo", "forks bring pages in")];
        assert!(is_complete(&limited));
        assert_eq!(verdict(&limited), "`uzswap run` works here; forks bring pages in.");
        let rows = [Row { ok: false, fix: Some("upgrade".into()), ..need }];
        assert!(!is_complete(&rows));
        assert_eq!(verdict(&rows), "`uzswap run` does not work here: moving.");
    }
}
