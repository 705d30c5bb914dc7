//! `uzswap-lab bench usemem`, as a user calls it.

#[allow(dead_code)]
mod support;

use std::path::PathBuf;

use serde_json::Value;
use support::{can_manage, lab};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A file of pages with a pattern, which compress to about a third.
fn pages_file(name: &str, pages: usize) -> PathBuf {
    let path = std::env::temp_dir().join(format!("uzswap-usemem-{}-{name}.pages", std::process::id()));
    let mut state = 1u32;
    let words = (0..pages * 1024).map(|index| {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        if index % 3 == 0 {
            state >> 8
        } else {
            (index / 64) as u32
        }
    });
    let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
    std::fs::write(&path, bytes).unwrap();
    path
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value:#}"))
}

#[test]
fn a_small_job_gives_its_figures_as_json() {
    if !can_manage() {
        return;
    }
    let output =
        lab(&["bench", "usemem", "--tasks", "2", "--size", "64M", "--ram", "50%", "--batch", "4", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(number(&result, "/tasks"), 2.0);
    assert_eq!(number(&result, "/ram_bytes"), f64::from(64 << 20));
    assert!(result["managed"]["report"]["series"].is_null(), "a series is for pictures");
    // Index words: half of each is zeros.
    let forms = result["managed"]["forms"].as_object().expect("forms");
    assert!(
        forms.values().filter_map(Value::as_u64).sum::<u64>()
            >= number(&result, "/managed/counters/zswpout") as u64
    );
    let phases = result["managed"]["phases"].as_array().expect("phases");
    let names: Vec<_> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["fill", "read", "touch"]);
    for phase in phases {
        assert_eq!(number(phase, "/bytes"), f64::from(128 << 20));
        let rates: Vec<_> = phase["task_bytes_per_second"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rate| rate.as_f64().unwrap())
            .collect();
        assert!(rates.len() == 2 && rates.iter().all(|rate| *rate > 0.0));
        assert!((number(phase, "/bytes_per_second") - rates.iter().sum::<f64>()).abs() < 1.0);
        assert!(number(phase, "/elapsed_seconds") > 0.0 && number(phase, "/cpu_seconds") > 0.0);
    }
    let latency = &phases[2]["latency"];
    assert_eq!(number(latency, "/touches"), f64::from(2 * (64 << 8)));
    assert!(number(latency, "/p50_us") <= number(latency, "/p90_us"));
    assert!(number(latency, "/p90_us") <= number(latency, "/p99_us"));
    assert!(phases[0]["latency"].is_null());
    // Memory holds half of the pages, so pages went out and came back.
    let managed = &result["managed"];
    assert!(number(managed, "/counters/zswpout") > 1000.0, "{managed:#}");
    assert!(number(managed, "/counters/zswpin") > 1000.0, "{managed:#}");
    // Requests hold `--batch` pages, except for the last of a scan.
    let [batches, pages] = ["/report/batches", "/report/pages_per_batch"].map(|path| number(managed, path));
    assert!((3.0..=4.0).contains(&pages), "{managed:#}");
    assert!((batches * pages - number(managed, "/counters/compress_units")).abs() < 1.0, "{managed:#}");
    assert_eq!(number(managed, "/report/ram_limit_bytes"), number(&result, "/ram_bytes"));
    assert!(number(managed, "/ram_peak_bytes") > 0.0 && number(managed, "/elapsed_seconds") > 0.0);
    assert!(number(managed, "/cpu_seconds") > 0.0 && number(managed, "/compression_ratio") > 1.0);
}

#[test]
fn random_bytes_go_to_disk_and_come_back() {
    if !can_manage() {
        return;
    }
    let output =
        lab(&["bench", "usemem", "--size", "64M", "--ram", "32M", "--random", "--swap", "128M", "--json"]);
    if text(&output.stderr).contains("--swap-dir") {
        testkit::skip!("kernel", "{}", text(&output.stderr));
        return;
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(result["random"], true);
    let managed = &result["managed"];
    for figure in ["/disk_written_bytes", "/disk_read_bytes"] {
        assert!(number(managed, figure) > f64::from(24 << 20), "{figure}: {managed:#}");
    }
    assert_eq!(number(managed, "/report/swap/bytes_written"), number(managed, "/disk_written_bytes"));
}

#[test]
fn pages_of_files_come_back_and_the_table_has_the_phases() {
    if !can_manage() {
        return;
    }
    let files = [pages_file("a", 300), pages_file("b", 77)];
    let list = files.each_ref().map(|path| path.to_str().unwrap()).join(",");
    let output = lab(&["bench", "usemem", "--size", "64M", "--compressor", "zstd", "--pages", &list]);
    for path in files {
        std::fs::remove_file(path).unwrap();
    }
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    for word in ["fill", "read", "touch", "p50", "p99", "zswpout", "CPU", "elapsed", "-b.pages"] {
        assert!(out.contains(word), "{word} in {out}");
    }
    // Not on a terminal: whole lines only, one a phase.
    let lines: Vec<_> = err.lines().filter(|line| line.starts_with("managed: ")).collect();
    assert!(lines.len() == 3 && !err.contains('\r'), "{err}");
}

#[test]
fn bad_arguments_are_refused_before_anything_runs() {
    for (arguments, word) in [
        (["--size", "12Q"], "512M"),
        (["--ram", "10K"], "16 MiB"),
        (["--pages", "/nonexistent.pages"], "nonexistent.pages"),
        (["--tasks", "0"], "--tasks"),
    ] {
        let output = lab(&["bench", "usemem", arguments[0], arguments[1]]);
        assert!(!output.status.success());
        let err = text(&output.stderr);
        assert!(err.contains(word), "{arguments:?}: {err}");
    }
    let output = lab(&["bench", "usemem", "--size", "64M", "--compressor", "lzx"]);
    let err = text(&output.stderr);
    assert!(!output.status.success() && err.contains("lz4") && err.contains("managed job failed"), "{err}");
}
