//! The document of the report has the table of counters.
//!
//! `UZSWAP_TEST_WRITE=1` writes the table into the document.

use std::fmt::Write;
use std::path::Path;

use ledger::COUNTERS;

const BEGIN: &str = "<!-- the table of counters, written by crates/ledger/tests/counters.rs -->\n";
const END: &str = "<!-- end of the table -->\n";

/// The rows as Markdown.
fn table() -> String {
    let mut text = String::from("| name | in | Prometheus | what |\n|---|---|---|---|\n");
    for line in COUNTERS {
        let name =
            if line.is_kernels { format!("**`{}`**", line.report) } else { format!("`{}`", line.report) };
        writeln!(text, "| {name} | {} | `{}` | {} |", line.unit.name(), line.prometheus, line.sentence())
            .unwrap();
    }
    text
}

#[test]
fn the_document_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/user/report.md");
    let Ok(document) = std::fs::read_to_string(&path) else {
        testkit::skip!("build", "{} is not there: this is not the whole repository", path.display());
        return;
    };
    let begin = document.find(BEGIN).expect("the document has a mark where the table begins") + BEGIN.len();
    let end = document.find(END).expect("the document has a mark where the table ends");
    if std::env::var_os("UZSWAP_TEST_WRITE").is_some() {
        std::fs::write(&path, format!("{}{}{}", &document[..begin], table(), &document[end..])).unwrap();
        return;
    }
    assert!(
        document[begin..end] == table(),
        "docs/user/report.md has another table than crates/ledger/src/counters.rs: write it with UZSWAP_TEST_WRITE=1"
    );
}
