//! `uzswap top`: runs are visible while they last.

#[allow(dead_code)]
mod support;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use support::uzswap;

fn look(pid: u32) -> Option<Value> {
    let output =
        uzswap().args(["top", "--once", "--json", "--interval", "0.2"]).output().expect("top starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trees: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    trees.as_array().expect("an array").iter().find(|tree| tree["pid"] == pid).cloned()
}

/// A job that wants twice its budget, has used all of it, and waits to be ended.
struct Job {
    run: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Job {
    fn start() -> Self {
        let mut command = uzswap();
        command.args(["run", "--quiet", "--ram", "32M", "--compressor", "zstd", "--"]);
        command.arg(env!("CARGO_BIN_EXE_uzswap"));
        command.args(["trial-task", "67108864"]);
        let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run starts");
        let mut input = run.stdin.take().unwrap();
        input.write_all(b"fill\n").unwrap();
        // The first line says that it is ready, the second that its memory is full.
        let mut output = BufReader::new(run.stdout.take().unwrap()).lines();
        assert!(output.next().unwrap().unwrap().contains("ready"));
        assert!(output.next().unwrap().unwrap().contains("done"));
        Job { run, input, output }
    }

    fn pid(&self) -> u32 {
        self.run.id()
    }

    fn end(mut self) {
        drop(self.input);
        self.output.for_each(|_| {});
        assert!(self.run.wait().unwrap().success());
    }
}

#[test]
fn a_run_is_seen_with_its_budget_and_use_while_it_lasts() {
    if !support::can_manage() {
        return;
    }
    let job = Job::start();
    let pid = job.pid();
    let tree = look(pid).expect("the run is seen");
    let number = |name: &str| tree[name].as_f64().unwrap_or_else(|| panic!("{name} in {tree:#}"));
    assert_eq!(number("ram_limit_bytes"), f64::from(32 << 20));
    assert_eq!(tree["compressor"].as_str(), Some("zstd"));
    assert!(number("ram_used_bytes") > 0.0 && number("ram_peak_bytes") >= number("ram_used_bytes"));
    assert!(number("ram_wanted_bytes") > f64::from(60 << 20), "{tree:#}");
    assert!(number("stored_pages") > 1000.0 && number("compression_ratio") > 1.0);
    assert!(number("zswpout") >= number("stored_pages") && number("zswpout_per_second") >= 0.0);
    let program = tree["program"].as_array().unwrap();
    assert!(program[0].as_str().unwrap().ends_with("uzswap") && program[1] == "trial-task");
    let processes = tree["processes"].as_array().unwrap();
    assert!(processes.len() == 1 && processes[0]["managed"] == true, "{processes:?}");

    let table = uzswap().args(["top", "--once", "--interval", "0.05"]).output().expect("top starts");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let line = table.lines().find(|line| line.trim_start().starts_with(&format!("{pid} ")));
    let line = line.unwrap_or_else(|| panic!("{pid} in {table}"));
    assert!(table.contains("BUDGET") && line.contains("32 MiB"), "{table}");

    job.end();
    assert!(look(pid).is_none(), "the run is over");
}

#[test]
fn looks_repeat_until_the_reader_closes() {
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
    // A new process namespace contains no run. Some machines forbid making one.
    let alone = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--fork", "--pid", "--mount-proc", env!("CARGO_BIN_EXE_uzswap")]).args(arguments);
        command.output().ok().filter(|output| output.status.success())
    };
    let (Some(table), Some(json)) = (alone(&["top", "--once"]), alone(&["top", "--once", "--json"])) else {
        testkit::skip!("namespace", "no process namespace can be made");
        return;
    };
    assert!(String::from_utf8_lossy(&table.stdout).contains("No program runs"));
    assert_eq!(String::from_utf8_lossy(&json.stdout), "[]\n");
}

/// A sample of Prometheus' text format: name, labels, value.
type Sample = (String, Vec<(String, String)>, f64);

/// Parses the format strictly by its specification: a family has one HELP and one TYPE line, before
/// its samples, which are adjacent; names, labels and values are well formed; samples are unique.
fn samples(text: &str) -> Vec<Sample> {
    let is_name = |name: &str, more: &str| {
        let mut characters = name.chars();
        let is = |c: char| c.is_ascii_alphabetic() || c == '_' || more.contains(c);
        characters.next().is_some_and(is) && characters.all(|c| is(c) || c.is_ascii_digit())
    };
    assert!(text.ends_with('\n'));
    let (mut family, mut kind, mut seen) = (String::new(), String::new(), Vec::new());
    let mut samples: Vec<Sample> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(is_name(name, ":") && help.ends_with('.') && !seen.contains(&name), "{line}");
            seen.push(name);
            (family, kind) = (name.to_owned(), String::new());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, of) = rest.split_once(' ').expect("a type");
            assert!(
                name == family && kind.is_empty() && ["gauge", "counter", "histogram"].contains(&of),
                "{line}"
            );
            kind = of.to_owned();
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        } else {
            let (name, rest) = line.split_once('{').expect("labels");
            let suffix = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line} in {family}"));
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line}");
            let (mut labels, mut rest) = (Vec::new(), rest);
            while let Some((key, more)) =
                rest.strip_prefix('}').is_none().then(|| rest.split_once("=\"").unwrap())
            {
                assert!(is_name(key, ""), "{line}");
                let (mut value, mut characters) = (String::new(), more.chars());
                loop {
                    match characters.next().expect("a quote ends") {
                        '"' => break,
                        '\\' => value.push(match characters.next() {
                            Some('n') => '\n',
                            Some(other @ ('\\' | '"')) => other,
                            other => panic!("{other:?} escaped in {line}"),
                        }),
                        other => value.push(other),
                    }
                }
                labels.push((key.to_owned(), value));
                rest = characters.as_str().trim_start_matches(',');
            }
            let value: f64 = rest[1..].strip_prefix(' ').expect("a space").parse().expect("a number");
            assert!(!samples.iter().any(|(other, its, _)| other == name && *its == labels), "{line} twice");
            samples.push((name.to_owned(), labels, value));
        }
    }
    samples
}

#[test]
fn prometheus_reads_what_top_prints_for_it() {
    let prometheus = || {
        let output = uzswap().args(["top", "--prometheus"]).output().expect("top starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    if !support::can_manage() {
        return;
    }
    let job = Job::start();
    let text = prometheus();
    let pid = job.pid().to_string();
    let all = samples(&text);
    let own: Vec<&Sample> =
        all.iter().filter(|(_, labels, _)| labels[0] == ("pid".into(), pid.clone())).collect();
    let value = |name: &str| {
        let found: Vec<f64> = own.iter().filter(|sample| sample.0 == name).map(|sample| sample.2).collect();
        assert_eq!(found.len(), 1, "{name} in {text}");
        found[0]
    };
    assert_eq!(value("uzswap_ram_limit_bytes"), f64::from(32 << 20));
    assert!(value("uzswap_ram_wanted_bytes") > f64::from(60 << 20) && value("uzswap_processes") == 1.0);
    assert!(value("uzswap_stored_pages_total") > 1000.0 && value("uzswap_pool_bytes") > 0.0);
    assert!(value("uzswap_process_resident_bytes") > 0.0);
    let buckets: Vec<(f64, f64)> = own
        .iter()
        .filter(|sample| sample.0 == "uzswap_fault_duration_seconds_bucket")
        .map(|(_, labels, count)| {
            let (key, bound) = labels.last().unwrap();
            assert_eq!(key, "le");
            (if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() }, *count)
        })
        .collect();
    assert!(buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1), "{buckets:?}");
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, value("uzswap_fault_duration_seconds_count"))));
    if support::has("promtool") {
        let scratch = support::Scratch::new("prometheus");
        let file = std::fs::File::open(scratch.write("metrics", &text)).unwrap();
        let judged = Command::new("promtool").args(["check", "metrics"]).stdin(file).output().unwrap();
        assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
    }
    job.end();
    let clash = uzswap().args(["top", "--prometheus", "--json"]).output().expect("top starts");
    assert_eq!(clash.status.code(), Some(125));
}

#[test]
fn the_last_minute_is_drawn_below_the_table() {
    if !support::can_manage() {
        return;
    }
    let job = Job::start();
    let mut top = uzswap();
    let mut top = top.args(["top", "--interval", "0.05"]).stdout(Stdio::piped()).spawn().expect("top starts");
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let title = format!("The last minute of {}", job.pid());
    lines.by_ref().map(Result::unwrap).find(|line| *line == title).expect("drawn");
    let used = lines.next().unwrap().unwrap();
    assert!(used.trim_start().starts_with("used ") && used.ends_with(" of 32 MiB"), "{used}");
    assert!(used.contains(['▅', '▆', '▇', '█']), "it uses what it may: {used}");
    drop(lines);
    top.wait().unwrap();
    job.end();
}
