//! README's first example works and prints what README shows, except for figures that vary.

mod support;

use support::{can_manage, has, own, uzswap, Ran};

/// Replaces figures by N, so that lines of different runs are equal.
fn shape(line: &str) -> String {
    let is_figure = |word: &str| word.starts_with(|byte: char| byte.is_ascii_digit());
    let mask = |word: &str| if is_figure(word) { "N".to_owned() } else { word.to_owned() };
    line.split(' ').map(mask).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_first_example_prints_the_readmes_output() {
    if !can_manage() || !has("perl") {
        return;
    }
    let root = own("../..");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let mut lines = readme.lines().skip_while(|line| !line.contains("cargo run --release -- run"));
    let command = lines.next().expect("the first command").trim();
    let shown: Vec<_> = lines.skip(1).map_while(|line| line.strip_prefix("    ")).collect();
    let words: Vec<_> = command.strip_prefix("cargo run --release -- ").unwrap().split(' ').collect();
    let ran = Ran::of(uzswap().args(&words).current_dir(root));
    ran.assert_status(0);
    let (of_uzswap, of_program): (Vec<&str>, Vec<&str>) =
        shown.iter().partition(|line| line.starts_with("uzswap: "));
    assert_eq!(ran.printed.lines().collect::<Vec<_>>(), of_program);
    let (peak, cost) = ran.said.split_once('\n').expect("two lines of uzswap");
    assert_eq!(shape(peak), shape(of_uzswap[0]), "{ran}");
    assert!(
        shape(cost.trim_end()).starts_with("uzswap: N faults took N s of the threads' time, N %"),
        "{ran}"
    );
    assert_eq!(cost.lines().count(), 1, "{ran}");
}
