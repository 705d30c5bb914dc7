//! `uzswap top`: runs are seen while they last.

#[allow(dead_code)]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::uzswap;

/// What `top --once --json` answers about one run, if anything.
fn look(pid: u32) -> Option<Value> {
    let output =
        uzswap().args(["top", "--once", "--json", "--interval", "0.2"]).output().expect("top starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trees: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    trees.as_array().expect("an array").iter().find(|tree| tree["pid"] == pid).cloned()
}

/// A job that wants twice its budget, and stays after its first phase until its input ends.
fn job() -> Child {
    let mut command = uzswap();
    command.args(["run", "--quiet", "--ram", "32M", "--compressor", "zstd", "--folio", "32K", "--"]);
    command.arg(env!("CARGO_BIN_EXE_uzswap")).args(["bench", "usemem-task", "--index", "0", "--tasks", "1"]);
    command.args(["--bytes", "67108864"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("run starts")
}

#[test]
fn a_run_is_seen_with_its_budget_and_use_while_it_lasts() {
    if !support::can_manage() {
        return;
    }
    let mut run = job();
    let mut input = run.stdin.take().unwrap();
    let mut output = BufReader::new(run.stdout.take().unwrap()).lines();
    let pid = run.id();
    std::io::Write::write_all(&mut input, b"fill\n").unwrap();
    // The first line says that it is ready, the second that its memory is full.
    assert!(output.next().unwrap().unwrap().contains("ready"));
    assert!(output.next().unwrap().unwrap().contains("done"));
    let tree = look(pid).expect("the run is seen");
    let number = |name: &str| tree[name].as_f64().unwrap_or_else(|| panic!("{name} in {tree:#}"));
    assert_eq!(number("ram_limit_bytes"), f64::from(32 << 20));
    assert_eq!((number("folio_bytes"), tree["compressor"].as_str()), (32768.0, Some("zstd")));
    assert!(number("ram_used_bytes") > 0.0 && number("ram_peak_bytes") >= number("ram_used_bytes"));
    assert!(number("ram_wanted_bytes") > f64::from(60 << 20), "{tree:#}");
    assert!(number("stored_pages") > 1000.0 && number("compression_ratio") > 1.0);
    assert!(number("zswpout") >= number("stored_pages") && number("zswpout_per_second") >= 0.0);
    let program = tree["program"].as_array().unwrap();
    assert!(program[0].as_str().unwrap().ends_with("uzswap") && program[1] == "bench");
    let processes = tree["processes"].as_array().unwrap();
    assert!(processes.len() == 1 && processes[0]["managed"] == true, "{processes:?}");

    let table = uzswap().args(["top", "--once", "--interval", "0.05"]).output().expect("top starts");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let line = table.lines().find(|line| line.trim_start().starts_with(&format!("{pid} ")));
    let line = line.unwrap_or_else(|| panic!("{pid} in {table}"));
    assert!(table.contains("BUDGET") && line.contains("32 MiB"), "{table}");

    drop(input);
    assert!(run.wait().unwrap().success());
    assert!(look(pid).is_none(), "the run is over");
}

#[test]
fn looks_follow_each_other_until_nobody_reads() {
    let mut top = uzswap();
    top.args(["top", "--json", "--interval", "0.05"]).stdout(Stdio::piped());
    let mut top = top.spawn().expect("top starts");
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let trees: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).expect("a line of JSON");
        assert!(trees.is_array());
    }
    drop(lines);
    assert!(top.wait().unwrap().success());
}

#[test]
fn without_any_run_it_says_so() {
    // In a process namespace of its own nothing else runs. Not everywhere may one be made.
    let alone = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--fork", "--pid", "--mount-proc", env!("CARGO_BIN_EXE_uzswap")]).args(arguments);
        command.output().ok().filter(|output| output.status.success())
    };
    let (Some(table), Some(json)) = (alone(&["top", "--once"]), alone(&["top", "--once", "--json"])) else {
        println!("skipped: no process namespace can be made");
        return;
    };
    assert!(String::from_utf8_lossy(&table.stdout).contains("No program runs"));
    assert_eq!(String::from_utf8_lossy(&json.stdout), "[]\n");
}
