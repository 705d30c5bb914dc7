//! `uzswap check` for users and scripts.

mod support;

use support::{can_manage, command, has, uzswap, uzswap_with, Ran, PROGRAM};

#[test]
fn every_row_is_answered_and_a_no_has_a_fix() {
    let check = uzswap_with(&["check", "--json"]);
    let shown = check.json();
    let rows = shown["rows"].as_array().expect("rows");
    let mut complete = true;
    for row in rows {
        let (ok, needed) = (row["ok"].as_bool().unwrap(), row["needed"].as_bool().unwrap());
        assert!(!row["detail"].as_str().unwrap().is_empty());
        assert_eq!(ok, row["fix"].is_null(), "a fix for a no, and only then: {row}");
        complete &= ok || !needed;
    }
    assert_eq!(shown["ok"], complete);
    check.assert_status(if complete { 0 } else { 1 });
    let has = |name: &str| rows.iter().any(|row| row["name"].as_str().unwrap().contains(name));
    let can_open = rows.iter().any(|row| row["name"] == "userfaultfd" && row["ok"] == true);
    for (_, name) in sys::userfaultfd::feature::NAMES {
        assert_eq!(has(name), can_open, "{name}");
    }
    for name in [
        "userfaultfd",
        "moving pages",
        "PAGEMAP_SCAN",
        "access tracking",
        "CAP_SYS_PTRACE",
        "sysctl",
        "device node",
        "Linux",
        "huge pages",
        "cgroup",
        "vector",
    ] {
        assert!(has(name), "{name}");
    }
    // The verdict matches an actual run.
    if complete {
        uzswap_with(&["run", "--ram", "64M", "--", "true"]).assert_status(0);
        assert!(has("trial run"));
    }
}

#[test]
fn the_check_shows_needed_and_unneeded_features() {
    let text = uzswap_with(&["check"]).printed;
    let (needed, other) = text.split_once("Good to know").expect("two parts");
    assert!(needed.contains("userfaultfd") && needed.contains("moving pages"), "{text}");
    assert!(other.contains("device node") && other.contains("\n`uzswap run` "), "{text}");
    assert!(!text.contains('\x1b'), "colours are for terminals");
    let coloured = Ran::of(uzswap().arg("check").env("CLICOLOR_FORCE", "1").env_remove("NO_COLOR")).printed;
    assert!(coloured.contains("\x1b[32myes\x1b[0m"), "{coloured}");
}

/// Without CAP_SYS_PTRACE `run` works with a limit, which is no failure.
#[test]
fn a_limit_is_part_of_the_verdict() {
    if !can_manage() || !has("setpriv") {
        return;
    }
    let cut = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", PROGRAM, "check"];
    let limited = Ran::of(&mut command(&cut));
    if limited.said.contains("setpriv")
        || limited.printed.contains("userfaultfd                  not permitted")
    {
        return testkit::skip!("root", "the capability cannot be given up, or root may not page without it");
    }
    limited.assert_status(0).assert_prints(&[
        "\n`uzswap run` works here; without CAP_SYS_PTRACE forks bring all pages in",
        "trial run",
    ]);
}
