//! Files that the report is written to.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use super::history::Told;
use super::page;
use super::report::Report;

/// The files, opened before the program starts: that they cannot be written is better said then.
pub struct Output(Vec<(PathBuf, File)>);

/// What is written: the report and the history as one object.
#[derive(Serialize)]
struct Whole<'a> {
    /// The program and its arguments.
    program: Vec<String>,
    #[serde(flatten)]
    report: &'a Report,
    #[serde(flatten)]
    told: &'a Told,
}

impl Output {
    /// Opens every file.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn create(paths: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| {
            let file = File::create(path).with_context(|| {
                format!("cannot write the report {}: choose another path with --report", path.display())
            })?;
            Ok((path.clone(), file))
        };
        paths.iter().map(open).collect::<Result<_>>().map(Output)
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes each: a page where the name ends like a page's, else JSON.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(self, program: &[std::ffi::OsString], report: &Report, told: &Told) -> Result<()> {
        let program = program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let json = serde_json::to_string_pretty(&Whole { program, report, told })
            .context("cannot write the report")?;
        for (path, mut file) in self.0 {
            let text = if is_page(&path) { page::html(&json) } else { json.clone() + "\n" };
            file.write_all(text.as_bytes())
                .with_context(|| format!("cannot write the report {}", path.display()))?;
        }
        Ok(())
    }
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("html") || end.eq_ignore_ascii_case("htm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_decides() {
        for (path, is) in
            [("r.html", true), ("a/R.HTM", true), ("r.json", false), ("html", false), ("/proc/1/fd/3", false)]
        {
            assert_eq!(is_page(Path::new(path)), is, "{path}");
        }
    }
}
