//! Typed attributes.

use std::io;
use std::str::FromStr;

use super::discovery::Problem;
use super::Tree;

/// Reads the attributes of one directory, and collects problems.
pub struct Attributes<'a> {
    tree: &'a dyn Tree,
    directory: String,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Attributes<'a> {
    pub fn new(tree: &'a dyn Tree, directory: String, problems: &'a mut Vec<Problem>) -> Self {
        Attributes { tree, directory, problems }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    fn problem(&mut self, name: &str, reason: String) {
        self.problems.push(Problem { path: self.tree.shown(&self.path(name)), reason });
    }

    /// An attribute that some kernels or devices lack.
    pub fn optional_text(&mut self, name: &str) -> Option<String> {
        match self.tree.read(&self.path(name)) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => None,
            Err(error) => {
                self.problem(name, format!("cannot be read: {error}"));
                None
            }
        }
    }

    /// A required attribute; `None` is noted as a problem.
    pub fn text(&mut self, name: &str) -> Option<String> {
        match self.tree.read(&self.path(name)) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) => {
                self.problem(name, format!("cannot be read: {error}"));
                None
            }
        }
    }

    fn parse<T>(&mut self, name: &str, text: Option<String>, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = text?;
        let value = parse(&text);
        if value.is_none() {
            self.problem(name, format!("{text:?} is not understood"));
        }
        value
    }

    /// A number, decimal or with 0x.
    pub fn number(&mut self, name: &str) -> Option<u64> {
        let text = self.text(name);
        self.parse(name, text, number)
    }

    /// A number that some kernels or devices lack.
    pub fn optional_number(&mut self, name: &str) -> Option<u64> {
        let text = self.optional_text(name);
        self.parse(name, text, number)
    }

    /// A number of 32 bits, or `default` with the problem noted.
    pub fn count(&mut self, name: &str) -> u32 {
        let text = self.text(name);
        self.parse(name, text, |text| number(text).and_then(|value| u32::try_from(value).ok())).unwrap_or(0)
    }

    /// A number of 32 bits that some kernels or devices lack.
    pub fn optional_count(&mut self, name: &str) -> Option<u32> {
        let text = self.optional_text(name);
        self.parse(name, text, |text| number(text).and_then(|value| u32::try_from(value).ok()))
    }

    /// 0 or 1.
    pub fn optional_flag(&mut self, name: &str) -> Option<bool> {
        let text = self.optional_text(name);
        self.parse(name, text, |text| match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        })
    }

    /// A number; below zero means none.
    pub fn optional_index(&mut self, name: &str) -> Option<u32> {
        let text = self.optional_text(name);
        let value = self.parse(name, text, |text| text.parse::<i64>().ok())?;
        u32::try_from(value).ok()
    }

    /// One of a set of words.
    pub fn word<T: FromStr>(&mut self, name: &str) -> Option<T> {
        let text = self.text(name);
        self.parse(name, text, |text| text.parse().ok())
    }
}

/// Decimal, or hexadecimal with 0x.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
