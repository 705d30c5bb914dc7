//! Runs a command bare, and then under uzswap with and without a swap file.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::support::{uzswap, Scratch};
use super::tree::{watch, Ended};

/// Exit status of a workload that this machine cannot run.
const CANNOT: i32 = 77;

/// Names and options: the pool alone, and a swap file behind it.
pub const WAYS: [(&str, &[&str]); 2] = [("pool", &[]), ("swap", &["--swap", "256M"])];

/// Runs a command bare and in every way. Each run must end with status 0 and print the same as the
/// bare one. Returns the reports by way; none where this machine cannot run the command.
///
/// A run that takes 20 times as long as the bare one plus a minute counts as a hang.
pub fn as_bare(name: &str, ram: &str, command: &[&str]) -> Vec<(&'static str, Value)> {
    as_bare_under(None, &WAYS, name, ram, command)
}

/// The same in the given ways, in a shell that has run a command before.
pub fn as_bare_under(
    before: Option<&str>,
    ways: &[(&'static str, &[&str])],
    name: &str,
    ram: &str,
    command: &[&str],
) -> Vec<(&'static str, Value)> {
    let scratch = Scratch::new(name);
    let directory = |name: &str| {
        let directory = scratch.path(name);
        std::fs::create_dir(&directory).unwrap();
        directory
    };
    let start = |program: &OsStr| match before {
        None => Command::new(program),
        Some(before) => {
            let mut shell = Command::new("bash");
            shell.arg("-c").arg(format!("{before} && exec \"$0\" \"$@\"")).arg(program);
            shell
        }
    };
    let mut alone = start(OsStr::new(command[0]));
    let bare = watch(alone.args(&command[1..]), &directory("bare"), Duration::from_secs(120));
    if bare.status.and_then(|status| status.code()) == Some(CANNOT) {
        testkit::skip!("kernel", "{name}: {}", bare.errors.trim_end());
        return Vec::new();
    }
    assert!(bare.status.is_some_and(|status| status.success()), "{name}, bare: {}", told(&bare));
    let run = |way: &'static str, options: &[&str]| {
        let (report, directory) = (scratch.path(&format!("{way}.json")), directory(way));
        let mut run = start(uzswap().get_program());
        run.args(["run", "--ram", ram, "--report"]).arg(&report).args(options).arg("--").args(command);
        let ended = watch(&mut run, &directory, bare.took * 20 + Duration::from_secs(60));
        assert!(ended.status.is_some_and(|status| status.success()), "{name}, {way}: {}", told(&ended));
        assert_eq!(ended.output, bare.output, "{name}, {way}: {}", ended.errors);
        let text = std::fs::read_to_string(&report).unwrap_or_else(|error| panic!("{name}: {error}"));
        let report: Value = serde_json::from_str(&text).expect("the report is JSON");
        println!("{name}, {way}: {:?}, bare {:?}, peak {}", ended.took, bare.took, report["ram_peak_bytes"]);
        (way, report)
    };
    ways.iter().map(|(way, options)| run(way, options)).collect()
}

fn told(ended: &Ended) -> String {
    let status = ended.status.map_or_else(|| "hangs".into(), |status| status.to_string());
    format!("{status} after {:?}\n{}{}", ended.took, ended.output, ended.errors)
}

/// Pages were evicted. The momentary excess depends on the machine's other load.
pub fn assert_paged(name: &str, reports: &[(&str, Value)]) {
    for (way, report) in reports {
        let evicted = report["zswpout"].as_u64().unwrap_or_else(|| panic!("{name}, {way}: {report}"));
        assert!(evicted > 1000, "{name}, {way}: nothing was evicted: {report}");
    }
}
