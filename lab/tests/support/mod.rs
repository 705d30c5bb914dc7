//! Helpers of the laboratory's tests.

use std::path::PathBuf;
use std::process::{Command, Output};

use sys::userfaultfd::Userfaultfd;

pub fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uzswap-lab")).args(arguments).output().expect("the program starts")
}

/// Whether programs can be managed here; skips if not.
#[allow(dead_code)]
pub fn can_manage() -> bool {
    let opened = Userfaultfd::open(0);
    if let Err(error) = &opened {
        testkit::skip!("userfaultfd", "{error}");
    }
    opened.map(Userfaultfd::close).is_ok()
}

/// A directory of one test, removed at its end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uzswap-lab-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
