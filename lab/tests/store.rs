//! `uzswap-lab bench store`, as a user calls it.

#[allow(dead_code)]
mod support;

use std::process::Output;

use support::{lab, Scratch};

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_rows_of_a_store_are_drawn() {
    let scratch = Scratch::new("store-plot");
    let (pages, plot) = (scratch.path("p.pages"), scratch.path("s.svg"));
    let words =
        (0..64 * 512u64).map(|number| if number % 3 == 0 { number * 0x9E37_79B9 } else { number / 64 });
    std::fs::write(&pages, words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    let (pages, plot) = (pages.to_str().unwrap(), plot.to_str().unwrap());
    let mut arguments = vec!["bench", "store", "--compressor", "lz4,none", "--batch", "1,8", "--rounds", "1"];
    arguments.extend(["--pages", pages, "--plot", plot]);
    let output = lab(&arguments);
    assert!(output.status.success(), "{}", error(&output));
    let svg = std::fs::read_to_string(plot).expect("a drawing");
    assert_eq!(svg.matches("<rect").count(), 1 + 4 * 3, "{svg}");
    assert!(svg.contains(">lz4, batch 8<"));
}

/// A device that reports success and writes nothing loses every page. It is refused before any file
/// of pages is looked for.
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
