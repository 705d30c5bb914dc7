//! `uzswap-lab bench program`, from end to end.

use serde_json::Value;

mod support;

use support::{can_manage, lab};

/// Fills 200 MiB with words, uses half of it, and prints a result. It runs long enough that the
/// samples of its use find the peak.
const JOB: &str = "my @lines = map { \"line number $_ of many, some of which are alike\" } 1..1500000; \
                   my $sum = 0; $sum += length $_ for @lines[0..750000]; print \"$sum\\n\"";

fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}

/// The kernel's side, if it can be measured, too.
fn versus() -> Vec<&'static str> {
    let zswap = std::path::Path::new("/sys/module/zswap/parameters/enabled");
    match is_root() && zswap.exists() {
        true => vec!["--versus", "kernel-zswap"],
        false => {
            testkit::skip!("swap", "the kernel's zswap needs root and a kernel that has it");
            Vec::new()
        }
    }
}

#[test]
fn every_side_runs_as_often_and_is_exported() {
    if !can_manage() {
        return;
    }
    let json = std::env::temp_dir().join(format!("uzswap-lab-program-{}.json", std::process::id()));
    let versus = versus();
    let export = format!("--json={}", json.display());
    let mut arguments = vec!["bench", "program", "--ram", "60%", "--runs", "2", "--warmup", "1", &export];
    arguments.extend(&versus);
    arguments.extend(["--", "perl", "-e", JOB]);
    let output = lab(&arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && said.contains("another comparison") {
        testkit::skip!("swap", "{said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("MEAN") && table.contains(" ± ") && !table.contains("DIFFERENT"), "{table}");

    let measured: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    let sides = measured["sides"].as_array().unwrap();
    let names: Vec<&str> = sides.iter().map(|side| side["name"].as_str().unwrap()).collect();
    let wanted: &[&str] =
        if versus.is_empty() { &["bare", "uzswap"] } else { &["bare", "uzswap", "kernel zswap"] };
    assert_eq!(names, wanted);
    for side in sides {
        assert_eq!(side["runs"].as_array().unwrap().len(), 2, "{side}");
        let [mean, min, max] =
            ["mean_seconds", "min_seconds", "max_seconds"].map(|name| side[name].as_f64().unwrap());
        assert!(0.0 < min && min <= mean && mean <= max, "{side}");
    }
    assert!(sides[1]["runs"][0]["pages_out"].as_u64().unwrap() > 0, "{}", sides[1]);
    // In turns, and equally many of each.
    let turns: Vec<&str> = said.lines().filter(|line| line.contains(", run ")).collect();
    assert_eq!(turns.len(), 2 * wanted.len(), "{said}");
    for (turn, line) in turns.iter().enumerate() {
        assert!(line.contains(wanted[turn % wanted.len()]), "{turn}: {said}");
    }
}

#[test]
fn the_least_memory_is_searched_for() {
    if !can_manage() {
        return;
    }
    let mut arguments = vec!["bench", "program", "--slowdown", "900%", "--runs", "1", "--json"];
    arguments.extend(["--", "perl", "-e", JOB]);
    let output = lab(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [uzswap] = found["sides"].as_array().unwrap().as_slice() else { panic!("{found}") };
    let attempts = uzswap["attempts"].as_array().unwrap();
    assert!((2..=7).contains(&attempts.len()), "{found}");
    let least = uzswap["least"]["limit_bytes"].as_u64().unwrap();
    let within = |attempt: &&Value| attempt["is_within"] == true;
    assert!(attempts.iter().filter(within).all(|attempt| attempt["is_same"] == true), "{found}");
    assert!(attempts.iter().filter(within).any(|attempt| attempt["limit_bytes"] == least), "{found}");
    assert!(least < found["wanted_bytes"].as_u64().unwrap(), "ten times as long is long: {found}");
}

#[test]
fn slowdown_and_memories_exclude_each_other() {
    let output = lab(&["bench", "program", "--slowdown", "5%", "--ram", "50%", "--", "true"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be used with"));
    let output = lab(&["bench", "program", "--slowdown", "often", "--", "true"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("write a percentage"));
}
