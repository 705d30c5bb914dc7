//! README's first example works and prints what README shows, except for figures that vary.

mod support;

use support::{can_manage, has, own, uzswap, Ran};

fn shape(line: &str) -> String {
    let is_figure = |word: &str| word.starts_with(|byte: char| byte.is_ascii_digit());
    let mask = |word: &str| if is_figure(word) { "N".to_owned() } else { word.to_owned() };
    match line.split_once("stored as ") {
        None => line.split(' ').map(mask).collect::<Vec<_>>().join(" "),
        Some((begin, _)) => format!("{begin}stored as"),
    }
}

fn forms(text: &str) -> Vec<(String, f64)> {
    let line = text.lines().find_map(|line| line.split_once("stored as ")).expect("forms").1;
    let form = |part: &str| {
        let words: Vec<_> = part.trim().split(' ').collect();
        (words[0].to_owned(), words[1].parse().unwrap())
    };
    line.split(',').map(form).collect()
}

#[test]
fn the_first_example_prints_what_the_readme_shows() {
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
    let shapes = |lines: Vec<&str>| lines.into_iter().map(shape).collect::<Vec<_>>();
    assert_eq!(shapes(ran.said.lines().collect()), shapes(of_uzswap), "{ran}");
    let (found, expected) = (forms(&ran.said), forms(&shown.join("\n")));
    assert_eq!(found[0].0, expected[0].0, "most pages have this form");
    assert!(found[0].1 > 50.0 && expected[0].1 > 50.0);
}
