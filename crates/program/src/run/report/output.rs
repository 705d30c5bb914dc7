//! The report's files.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::run::report::history::Told;
use crate::run::report::page;
use crate::run::report::Report;

/// The files, opened before the program starts, so that errors appear early.
pub struct Output(Vec<One>);

struct One {
    path: PathBuf,
    file: File,
    /// The file's state after it was written; none if it cannot be written again.
    written: Option<State>,
}

/// A file's length, and the time of its last change.
type State = (u64, i64, i64);

fn state_of(status: &Metadata) -> State {
    (status.size(), status.mtime(), status.mtime_nsec())
}

#[derive(Serialize)]
struct Whole<'a> {
    program: Vec<String>,
    #[serde(flatten)]
    report: &'a Report,
    #[serde(flatten)]
    told: &'a Told,
}

impl Output {
    pub fn create(paths: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| {
            let file = File::create(path).with_context(|| {
                format!("cannot write the report {}: choose another path with --report", path.display())
            })?;
            Ok(One { path: path.clone(), file, written: None })
        };
        paths.iter().map(open).collect::<Result<_>>().map(Output)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes each file: a page if the name ends in .html, else JSON. Closes files that are not
    /// regular, so that their readers see the end.
    pub fn write(&mut self, program: &[OsString], report: &Report, told: &Told) -> Result<()> {
        let json = json(program, report, told)?;
        for one in &mut self.0 {
            let written = one.file.write_all(one.text(&json).as_bytes());
            let status = written.and_then(|()| one.file.metadata());
            let status = status.with_context(|| format!("cannot write the report {}", one.path.display()))?;
            one.written = status.is_file().then(|| state_of(&status));
        }
        self.0.retain(|one| one.written.is_some());
        Ok(())
    }

    /// Rewrites the files that are unchanged since: another run may use the same file now.
    pub fn write_again(&mut self, program: &[OsString], report: &Report, told: &Told) -> Result<()> {
        let json = json(program, report, told)?;
        for one in &self.0 {
            let again = one.write_again(&json);
            again.with_context(|| format!("cannot write the report {}", one.path.display()))?;
        }
        Ok(())
    }
}

impl One {
    fn text(&self, json: &str) -> String {
        match is_page(&self.path) {
            true => page::html(json),
            false => json.to_owned() + "\n",
        }
    }

    fn write_again(&self, json: &str) -> io::Result<()> {
        if Some(state_of(&self.file.metadata()?)) != self.written {
            return Ok(());
        }
        let text = self.text(json);
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }
}

fn json(program: &[OsString], report: &Report, told: &Told) -> Result<String> {
    let program = program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    serde_json::to_string_pretty(&Whole { program, report, told }).context("cannot write the report")
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
