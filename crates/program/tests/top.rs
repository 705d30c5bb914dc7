//! `uzswap top`: runs are visible while they last.

mod support;
#[path = "support/terminal.rs"]
mod terminal;

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{can_manage, has, printed, run, uzswap, uzswap_with, Ran, Scratch, Started, PROGRAM};
use terminal::Terminal;

fn look(pid: u32) -> Option<Value> {
    let trees = uzswap_with(&["top", "--once", "--json", "--interval", "0.2"]).assert_status(0).json();
    trees.as_array().expect("an array").iter().find(|tree| tree["pid"] == pid).cloned()
}

/// Starts a job that wants twice its budget, has used all of it, and waits for its input's end.
fn job() -> Option<Started> {
    if !can_manage() {
        return None;
    }
    let task = [PROGRAM, "trial-task", "67108864"];
    let mut job = Started::new(&mut run("32M", &["--quiet", "--compressor", "zstd"], &task));
    job.tell("fill\n");
    // The first line says that it is ready, the second that its memory is full.
    assert!(job.line().contains("ready"));
    assert!(job.line().contains("done"));
    Some(job)
}

/// A top that is started, and its lines.
fn top(arguments: &[&str]) -> (std::process::Child, std::io::Lines<BufReader<ChildStdout>>) {
    let mut top = uzswap().arg("top").args(arguments).stdout(Stdio::piped()).spawn().expect("top starts");
    let lines = BufReader::new(top.stdout.take().unwrap()).lines();
    (top, lines)
}

#[test]
fn a_run_is_seen_with_its_budget_and_use_while_it_lasts() {
    let Some(job) = job() else { return };
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

    let table = uzswap_with(&["top", "--once", "--interval", "0.05"]).printed;
    let line = table.lines().find(|line| line.trim_start().starts_with(&format!("{pid} ")));
    let line = line.unwrap_or_else(|| panic!("{pid} in {table}"));
    assert!(table.contains("BUDGET") && line.contains("32 MiB"), "{table}");

    job.end().assert_status(0);
    assert!(look(pid).is_none(), "the run is over");
}

#[test]
fn looks_repeat_until_the_reader_closes() {
    let (mut top, mut lines) = top(&["--json", "--interval", "0.05"]);
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
        let isolated = ["--fork", "--pid", "--mount-proc", PROGRAM, "top", "--once"];
        Some(Ran::of(Command::new("unshare").args(isolated).args(arguments)))
            .filter(|ran| ran.status == Some(0))
    };
    let (Some(table), Some(json)) = (alone(&[]), alone(&["--json"])) else {
        testkit::skip!("namespace", "no process namespace can be made");
        return;
    };
    table.assert_prints(&["No program runs"]);
    assert_eq!(json.printed, "[]\n");
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
fn prometheus_reads_tops_output() {
    let Some(job) = job() else { return };
    let text = uzswap_with(&["top", "--prometheus"]).assert_quiet().printed.clone();
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
    if has("promtool") {
        let scratch = Scratch::new("prometheus");
        let file = std::fs::File::open(scratch.write("metrics", &text)).unwrap();
        printed(Command::new("promtool").args(["check", "metrics"]).stdin(file));
    }
    job.end().assert_status(0);
    uzswap_with(&["top", "--prometheus", "--json"]).assert_status(125);
}

#[test]
fn a_textfile_stays_current_and_goes_at_the_end() {
    let scratch = Scratch::new("textfile");
    let file = scratch.path("uzswap.prom");
    let Some(job) = job() else { return };
    let (mut top, _lines) = top(&["--interval", "0.05", "--textfile", file.to_str().unwrap()]);
    let pid = format!("pid=\"{}\"", job.pid());
    let wait_until = |what: &str, is: &dyn Fn() -> bool| {
        let tries = (0..1000).find(|_| {
            is() || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        });
        assert!(tries.is_some(), "{what}");
    };
    wait_until("the run is in the file", &|| {
        std::fs::read_to_string(&file).is_ok_and(|text| text.contains(&pid))
    });
    // Each text is whole.
    assert!(!samples(&std::fs::read_to_string(&file).unwrap()).is_empty());
    job.end().assert_status(0);
    wait_until("the run is gone", &|| std::fs::read_to_string(&file).is_ok_and(|text| !text.contains(&pid)));
    // SAFETY: a signal to this test's child.
    unsafe { libc::kill(top.id() as i32, libc::SIGTERM) };
    assert!(top.wait().unwrap().success());
    let left: Vec<_> = std::fs::read_dir(file.parent().unwrap()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    uzswap_with(&["top", "--textfile", "/nonexistent/uzswap.prom"]).assert_status(125);
}

#[test]
fn a_terminal_shows_a_line_for_each_tree_details_on_a_key_and_is_restored() {
    let Some(job) = job() else { return };
    let pid = job.pid().to_string();
    let mut top = Terminal::start(uzswap().args(["top", "--interval", "0.05", &pid]));
    let shown = top.wait_for("q quit");
    assert!(shown.contains("\x1b[?1049h") && shown.contains("FAULTS/s"), "{shown:?}");
    let shown = top.wait_for(&format!("{pid} uzswap trial"));
    assert!(!shown.contains("PROCESS "), "{shown:?}");
    top.press("\r");
    let shown = top.wait_for("PROCESS ") + &top.wait_for("sort (now by process id)");
    assert!(shown.contains("faults/s ") && shown.contains("of 32 MiB") && shown.contains('█'), "{shown:?}");
    top.press("s");
    top.wait_for("sort (now by used memory)");
    top.press("q");
    let shown = top.wait_for("\x1b[?1049l");
    assert!(shown.contains("\x1b[?25h"), "the cursor is visible again: {shown:?}");
    assert!(top.end().0.success());
    for end in ["\x03", ""] {
        let mut top = Terminal::start(uzswap().args(["top", "--interval", "3600"]));
        top.wait_for("q quit");
        match end {
            "" => assert!(support::signal(top.child.id(), libc::SIGTERM)),
            key => top.press(key),
        }
        top.wait_for("\x1b[?1049l");
        assert!(top.end().0.success(), "{end:?}");
    }
    job.end().assert_status(0);
}

/// The first two lines come with the program's input still open, so no timing decides.
#[test]
fn progress_is_one_line_on_a_terminal_alone_and_is_erased() {
    if !can_manage() {
        return;
    }
    let job =
        "import sys; data = [b'%d ' % n * 900 for n in range(20000)]; sys.stdin.readline(); print('over')";
    let mut terminal = Terminal::start(&mut run("32M", &["--progress", "-q"], &["python3", "-c", job]));
    let shown = terminal.wait_for("faults/s") + &terminal.wait_for("faults/s");
    assert!(shown.contains("\r\x1b[Kuzswap: ") && shown.contains(" of 32 MiB, "), "{shown:?}");
    assert!(!shown.contains('\n'), "one line: {shown:?}");
    terminal.press("\n");
    terminal.wait_for("over");
    let (status, rest) = terminal.end();
    assert!(status.success() && rest.ends_with("\r\x1b[K"), "{rest:?}");

    let mut piped = run("32M", &["--progress", "-q"], &["sh", "-c", "sleep 1.2"]);
    support::Ran::of(&mut piped).assert_quiet();
}
