//! Helpers of the laboratory's tests.

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
