//! `uzswap check` for users and scripts.

#[allow(dead_code)]
mod support;

use serde_json::Value;
use support::uzswap;

#[test]
fn every_row_is_answered_and_a_no_has_a_fix() {
    let output = uzswap().args(["check", "--json"]).output().expect("the program starts");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = answer["rows"].as_array().expect("rows");
    let mut complete = true;
    for row in rows {
        let (ok, needed) = (row["ok"].as_bool().unwrap(), row["needed"].as_bool().unwrap());
        assert!(!row["detail"].as_str().unwrap().is_empty());
        assert_eq!(ok, row["fix"].is_null(), "a fix for a no, and only then: {row}");
        complete &= ok || !needed;
    }
    assert_eq!(answer["ok"], complete);
    assert_eq!(output.status.code(), Some(if complete { 0 } else { 1 }));
    let has = |name: &str| rows.iter().any(|row| row["name"].as_str().unwrap().contains(name));
    for (_, name) in sys::userfaultfd::feature::NAMES {
        assert!(has(name), "{name}");
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
    let run = uzswap().args(["run", "--ram", "64M", "--", "true"]).output().expect("the program starts");
    if complete {
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert!(has("trial run"));
    }
}

#[test]
fn people_see_what_is_needed_and_what_is_not() {
    let output = uzswap().arg("check").output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let (needed, other) = text.split_once("Good to know").expect("two parts");
    assert!(needed.contains("userfaultfd") && needed.contains("moving pages"), "{text}");
    assert!(other.contains("device node") && other.contains("with its full function"), "{text}");
}
