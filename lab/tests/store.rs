//! `uzswap-lab bench store`, as a user calls it.

#[allow(dead_code)]
mod support;

use std::process::Output;

use support::lab;

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A device that reports success and writes nothing loses every page. It is refused before any file
/// of pages is opened.
#[test]
fn devices_that_do_no_work_are_refused() {
    let output = lab(&["bench", "store", "--pages", "/nowhere", "--compressor", "deflate-iaa:work=null"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(error(&output).contains("leave out work="), "{}", error(&output));
}

#[test]
fn files_that_are_none_are_named() {
    let output = lab(&["bench", "usemem", "--size", "64M", "--pages", "/tmp"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(error(&output).contains("uzswap-lab: ") && error(&output).contains("/tmp is no plain file"));
}
