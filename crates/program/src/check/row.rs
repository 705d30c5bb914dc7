//! One property of this machine.

use std::fmt::Write;

use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The property.
    pub name: String,
    /// Whether full function of `uzswap run` needs it. Other rows are informative.
    pub needed: bool,
    /// Whether the machine has it.
    pub ok: bool,
    pub detail: String,
    /// Advice if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Row {
    /// A property that `uzswap run` needs; `fix` is kept only when it is missing.
    pub fn needed(name: &str, ok: bool, detail: impl Into<String>, fix: &str) -> Self {
        let (name, fix) = (name.to_owned(), (!ok).then(|| fix.to_owned()));
        Row { name, needed: true, ok, detail: detail.into(), fix }
    }

    /// An informative property.
    pub fn known(name: &str, ok: bool, detail: impl Into<String>, fix: &str) -> Self {
        Row { needed: false, ..Row::needed(name, ok, detail, fix) }
    }
}

/// Returns whether every needed property is there.
pub fn is_complete(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.ok || !row.needed)
}

/// Formats the rows for people; each fix appears once.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut told = Vec::new();
    for (needed, title) in [(true, "Needed by `uzswap run`"), (false, "Good to know")] {
        writeln!(text, "{title}").expect("to a string");
        for row in rows.iter().filter(|row| row.needed == needed) {
            let answer = if row.ok { "yes" } else { "no" };
            writeln!(text, "  {answer:3}  {:28} {}", row.name, row.detail).expect("to a string");
            if let Some(fix) = row.fix.as_ref().filter(|fix| !told.contains(fix)) {
                told.push(fix);
                writeln!(text, "       {:28} fix: {fix}", "").expect("to a string");
            }
        }
        text.push('\n');
    }
    let missing: Vec<_> =
        rows.iter().filter(|row| row.needed && !row.ok).map(|row| row.name.as_str()).collect();
    text.push_str(&match missing[..] {
        [] => "`uzswap run` works here with its full function.\n".to_owned(),
        _ => format!("`uzswap run` does not work here with its full function: {}.\n", missing.join(", ")),
    });
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
        let text = table(&rows);
        assert!(text.contains("fix: echo madvise") && text.contains("works here with its full"), "{text}");
        let (needed, other) = text.split_once("Good to know").unwrap();
        assert!(needed.contains("yes  moving") && other.contains("no   huge pages"), "{text}");
        let twice = [Row::needed("one", false, "no", "upgrade"), Row::known("other", false, "no", "upgrade")];
        assert_eq!(table(&twice).matches("fix: upgrade").count(), 1);
        let rows = [Row { ok: false, fix: Some("upgrade".into()), ..need }];
        assert!(!is_complete(&rows));
        assert!(table(&rows).contains("does not work here with its full function: moving."));
    }
}
