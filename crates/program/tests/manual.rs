//! Manual pages and completions, checked with the programs that read them.

mod support;

use std::process::Command;

use support::{has, printed, uzswap, uzswap_with, Scratch};

fn completions(shell: &str) -> String {
    printed(uzswap().args(["completions", shell]))
}

#[test]
fn every_command_has_a_page_that_names_its_options() {
    let scratch = Scratch::new("man");
    let directory = scratch.path("man1");
    printed(uzswap().arg("man").arg(&directory));
    let page = |name: &str| {
        std::fs::read_to_string(directory.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    assert!(page("uzswap.1").contains("uzswap\\-run(1)"));
    assert!(page("uzswap-run.1").contains("\\-\\-ram") && page("uzswap-run.1").contains("make \\-j8"));
    assert!(page("uzswap-run.1").contains(".SH NOTES\n"));
    for name in ["uzswap-top.1", "uzswap-check.1", "uzswap-pages-capture.1", "uzswap-device-swap.1"] {
        assert!(page(name).contains(".SH NAME"), "{name}");
    }
    let names: Vec<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for hidden in ["uzswap-trial-task.1", "uzswap-bench.1", "uzswap-help.1"] {
        assert!(!names.contains(&hidden.to_owned()), "{hidden} is not for users");
    }
    if has("mandoc") {
        for name in &names {
            let mut mandoc = Command::new("mandoc");
            printed(mandoc.args(["-T", "lint", "-W", "error"]).arg(directory.join(name)));
        }
        let text = printed(Command::new("mandoc").args(["-T", "utf8"]).arg(directory.join("uzswap-run.1")));
        assert!(text.contains("Exit status") && text.contains("uzswap 0."), "{text}");
    }
}

/// Packages install `docs/user` and `docs/operate` without the folder `docs`.
#[test]
fn help_names_documents_that_are_installed() {
    let mut named = 0;
    for command in [&["run"][..], &["device"], &["device", "ublk"], &["device", "swap"], &["top"], &["pause"]]
    {
        let help = uzswap_with(&[command, &["--help"]].concat()).assert_status(0).printed.clone();
        assert!(!help.contains("docs/"), "{help}");
        for word in help.split(|c: char| !c.is_ascii_alphanumeric() && !"/.-".contains(c)) {
            if let Some(document) = word.trim_end_matches('.').strip_suffix(".md") {
                assert!(support::own(&format!("../../docs/{document}.md")).exists(), "{document}.md");
                named += 1;
            }
        }
    }
    assert!(named >= 4, "{named}");
    uzswap_with(&["--help"]).assert_prints(&["Write manual pages", "share/doc/uzswap"]);
}

#[test]
fn bash_completes_commands_and_options() {
    if !has("bash") {
        return;
    }
    let scratch = Scratch::new("bash");
    let file = scratch.write("uzswap", completions("bash"));
    let complete = |words: &str| {
        let script = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _uzswap uzswap \
             \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file
        );
        printed(Command::new("bash").args(["--norc", "-c", &script]))
    };
    assert_eq!(complete("uzswap ru"), "run\n");
    assert_eq!(complete("uzswap run --rep"), "--report\n");
    assert!(complete("uzswap top --").contains("--prometheus\n"));
    assert_eq!(complete("uzswap completions z"), "zsh\n");
}

#[test]
fn zsh_and_fish_read_theirs() {
    let scratch = Scratch::new("shells");
    if has("zsh") {
        let file = scratch.write("_uzswap", completions("zsh"));
        printed(Command::new("zsh").arg("-n").arg(&file));
        let script = format!("fpath=({} $fpath); autoload -Uz compinit; compinit -u -D; whence -w _uzswap; print $_comps[uzswap]",
            scratch.path("").display());
        assert_eq!(printed(Command::new("zsh").args(["-f", "-c", &script])), "_uzswap: function\n_uzswap\n");
    }
    if has("fish") {
        let file = scratch.write("uzswap.fish", completions("fish"));
        let mut fish = Command::new("fish");
        let script = format!("source {}; complete -C 'uzswap run --rep'", file);
        let found = printed(fish.env("HOME", scratch.path("")).args(["--no-config", "-c", &script]));
        assert!(found.starts_with("--report\t"), "{found}");
    }
}

#[test]
fn other_shells_are_refused_with_those_there_are() {
    uzswap_with(&["completions", "csh"]).assert_status(125).assert_says(&["bash, zsh, fish"]);
}
