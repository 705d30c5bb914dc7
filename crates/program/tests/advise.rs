//! `uzswap advise`: budgets that were tried, and memory that was used.

mod support;

use support::{can_manage, command, has, is_root, uzswap_with, Started};

/// Builds a list of some 100 MiB, slower than pages can leave, and reads it once.
const LIST: &str =
    "print(sum(page[7] for page in [bytes([i % 251]) * 4000 for i in range(25_000) if sum(range(3000))]))";
/// Builds a list, says so, and waits, or reads the list for ever.
const WAITS: &str =
    "import sys; pages = [bytes([i % 251]) * 4000 for i in range(25_000)]; print(1, flush=True)\n\
                     while sys.argv[1] == 'read': sum(page[7] for page in pages)\n\
                     sys.stdin.read()";

#[test]
fn a_budget_is_tried_and_the_command_for_it_is_the_last_line() {
    if !can_manage() || !has("python3") {
        return;
    }
    let advise = |more: &[&str], program: &[&str]| {
        uzswap_with(&[&["advise", "--budget", "67%"], more, &["--"], program].concat())
    };
    // Any slowdown is accepted, so the machine's load does not matter.
    let any = ["--slowdown", "10000%"];
    let table = advise(&[&any[..], &["--json"]].concat(), &["python3", "-c", LIST]).assert_status(0).json();
    let (row, wanted) = (&table["rows"][0], table["wanted_bytes"].as_u64().unwrap());
    assert!(wanted > 80 << 20, "{table:#}");
    assert_eq!(row["budget_bytes"].as_u64(), Some((wanted as f64 * 0.67) as u64));
    assert!(row["pages_in"].as_u64().unwrap() > 100 && row["kernel_kills"] == true, "{table:#}");
    let text = advise(&any, &["python3", "-c", LIST]).assert_status(0).printed.clone();
    assert!(text.lines().last().unwrap().starts_with("uzswap run --ram "), "{text}");
    assert!(text.ends_with(&format!("python3 -c '{LIST}'\n")) && text.contains(" killed"), "{text}");

    let failed = advise(&[], &["python3", "-c", "import sys; sys.exit(3)"]);
    failed.assert_status(125).assert_says(&["ended with status 3"]);
    advise(&[], &["true"]).assert_status(125).assert_says(&["no budget is smaller than 16 MiB"]);
    uzswap_with(&["advise", "--budget", "x", "--", "true"]).assert_status(125).assert_says(&["--budget"]);
    uzswap_with(&["advise"]).assert_status(125);
}

#[test]
fn a_process_that_waits_uses_less_memory_than_one_that_reads() {
    if !has("python3") || !is_root("read the memory of other processes") {
        return;
    }
    let used_share = |what: &str| {
        let mut program = Started::new(&mut command(&["python3", "-c", WAITS, what]));
        program.line();
        let pid = program.pid().to_string();
        let watched =
            uzswap_with(&["advise", "--pid", &pid, "--seconds", "2", "--json"]).assert_status(0).json();
        let text = uzswap_with(&["advise", "--pid", &pid, "--seconds", "1"]).assert_status(0).printed.clone();
        let resident = watched["resident_bytes"].as_u64().unwrap();
        assert!(resident > 100 << 20 && watched["compression_ratio"].as_f64().unwrap() > 2.0, "{watched:#}");
        let windows = watched["windows"].as_array().unwrap();
        assert_eq!(windows.len(), 2, "1 and 2 seconds");
        assert_eq!(text.contains("uzswap attach --ram"), what == "wait", "{text}");
        windows[1]["used_bytes"].as_u64().unwrap() * 100 / resident
    };
    let [waits, reads] = ["wait", "read"].map(used_share);
    assert!(waits < 20 && reads > 60, "{waits} %, {reads} %");
    uzswap_with(&["advise", "--pid", "4194304"]).assert_status(125).assert_says(&["no process"]);
}
