//! The trees in Prometheus' text format, version 0.0.4.

use std::fmt::Write;

use ledger::{bucket_range_ns, Counter, Unit, BUCKETS, COUNTERS};

use super::figures::Tree;
use super::find::RunningTree;

/// Bounds of the latency histogram's buckets: powers of two from 1 µs to 17 s.
const EXPONENTS: std::ops::RangeInclusive<u32> = 10..=34;

struct Known<'a> {
    found: &'a RunningTree,
    tree: &'a Tree,
    labels: Labels,
}

impl Known<'_> {
    /// Its labels, and more of them.
    fn with<const MORE: usize>(&self, more: [(&'static str, String); MORE]) -> Labels {
        self.labels.iter().cloned().chain(more).collect()
    }
}

type Labels = Vec<(&'static str, String)>;

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str, samples: &[(&str, Labels, f64)]) {
        if samples.is_empty() {
            return;
        }
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (suffix, labels, value) in samples {
            let labels: Vec<String> =
                labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
            let _ = writeln!(self.0, "{name}{suffix}{{{}}} {value}", labels.join(","));
        }
    }

    fn each(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        known: &[Known<'_>],
        of: impl Fn(&Known<'_>) -> f64,
    ) {
        let samples: Vec<_> = known.iter().map(|one| ("", one.labels.clone(), of(one))).collect();
        self.family(name, kind, help, &samples);
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Formats all trees. Both slices have the same order. Empty if no tree runs.
pub fn text(found: &[RunningTree], trees: &[Tree]) -> String {
    let labels = |tree: &Tree| vec![("pid", tree.pid.to_string()), ("program", program(&tree.program))];
    let known = found.iter().zip(trees).map(|(found, tree)| Known { found, tree, labels: labels(tree) });
    let known: Vec<Known<'_>> = known.collect();
    let mut text = Text::default();
    levels(&mut text, &known);
    counters(&mut text, &known);
    processes(&mut text, &known);
    text.0
}

fn program(words: &[String]) -> String {
    words.first().map_or("", |path| path.rsplit('/').next().unwrap_or(path)).to_owned()
}

fn levels(text: &mut Text, known: &[Known<'_>]) {
    type Level = (&'static str, &'static str, fn(&Tree) -> u64);
    let info = known.iter().map(|one| ("", one.with([("compressor", one.tree.compressor.clone())]), 1.0));
    let info: Vec<_> = info.collect();
    text.family("uzswap_tree_info", "gauge", "A process tree under uzswap run, and how it is paged.", &info);
    let levels: [Level; 9] = [
        ("uzswap_ram_limit_bytes", "The budget of a tree.", |tree| tree.ram_limit_bytes),
        ("uzswap_ram_used_bytes", "Anonymous resident memory, pools and staging included.", |tree| {
            tree.ram_used_bytes
        }),
        ("uzswap_ram_peak_bytes", "The most that was used so far.", |tree| tree.ram_peak_bytes),
        ("uzswap_ram_wanted_bytes", "What would be used now without uzswap.", |tree| tree.ram_wanted_bytes),
        ("uzswap_stored_bytes", "Bytes of the pages in the pools, as they were before.", |tree| {
            tree.stored_pages.saturating_mul(4096)
        }),
        ("uzswap_pool_bytes", "Bytes of the pools.", |tree| tree.pool_total_size),
        ("uzswap_staged_bytes", "Bytes of pages that are evicted and not yet compressed.", |tree| {
            tree.staged_bytes
        }),
        ("uzswap_swap_file_limit_bytes", "What the swap file may take; 0 without one.", |tree| {
            tree.swap_limit_bytes
        }),
        ("uzswap_swap_file_live_bytes", "Bytes in the swap file that are needed.", |tree| {
            tree.swap_live_bytes
        }),
    ];
    for (name, help, of) in levels {
        text.each(name, "gauge", help, known, |one| of(one.tree) as f64);
    }
    text.each("uzswap_processes", "gauge", "Live processes of a tree.", known, |one| {
        one.tree.processes.len() as f64
    });
}

fn counters(text: &mut Text, known: &[Known<'_>]) {
    for line in COUNTERS {
        text.each(line.prometheus, "counter", line.sentence(), known, |one| {
            let sum = one.found.snapshot.sum(line.counter) as f64;
            match line.unit {
                Unit::Nanoseconds => sum / 1e9,
                Unit::Pages | Unit::Times | Unit::Bytes => sum,
            }
        });
    }
    let mut forms = Vec::new();
    for one in known {
        let of_form =
            |(form, pages): (&String, &u64)| ("", one.with([("form", form.clone())]), *pages as f64);
        forms.extend(one.tree.forms.iter().map(of_form));
    }
    let help = "Pages stored, by the form they were stored in.";
    text.family("uzswap_form_pages_total", "counter", help, &forms);
    let mut faults = Vec::new();
    for one in known {
        let counts = one.found.snapshot.fault_counts();
        faults.extend(histogram(&counts, &one.labels, one.found.snapshot.sum(Counter::FaultNs)));
    }
    let help = "From reading a page fault to having served it.";
    text.family("uzswap_fault_duration_seconds", "histogram", help, &faults);
}

/// Histogram samples from counts of latencies in nanoseconds and their sum.
fn histogram(counts: &[u64; BUCKETS], labels: &Labels, sum_ns: u64) -> Vec<(&'static str, Labels, f64)> {
    let below = |bound: u64| {
        let buckets = counts.iter().enumerate().filter(|(bucket, _)| bucket_range_ns(*bucket).1 <= bound);
        buckets.fold(0u64, |sum, (_, count)| sum.saturating_add(*count))
    };
    let with = |bound: String| labels.iter().cloned().chain([("le", bound)]).collect();
    let all = below(u64::MAX) as f64;
    let bounds = EXPONENTS.map(|exponent| 1u64 << exponent);
    let buckets =
        bounds.map(|bound| ("_bucket", with((bound as f64 / 1e9).to_string()), below(bound) as f64));
    let sum = ("_sum", labels.clone(), sum_ns as f64 / 1e9);
    let rest = [("_bucket", with("+Inf".to_owned()), all), sum, ("_count", labels.clone(), all)];
    buckets.chain(rest).collect()
}

fn processes(text: &mut Text, known: &[Known<'_>]) {
    type Level = (&'static str, &'static str, fn(&super::figures::Process) -> u64);
    let levels: [Level; 2] = [
        (
            "uzswap_process_resident_bytes",
            "Anonymous resident memory of a process, pool and staging included.",
            |process| process.resident_bytes,
        ),
        ("uzswap_process_pool_bytes", "Bytes of a process's pool.", |process| process.pool_total_size),
    ];
    for (name, help, of) in levels {
        let mut samples = Vec::new();
        for one in known {
            for process in &one.tree.processes {
                let more = [("process", process.pid.to_string()), ("name", process.name.clone())];
                samples.push(("", one.with(more), of(process) as f64));
            }
        }
        text.family(name, "gauge", help, &samples);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        assert_eq!(program(&["/usr/bin/sort".into(), "-n".into()]), "sort");
        assert_eq!(program(&[]), "");
    }

    #[test]
    fn buckets_add_up() {
        let mut counts = [0; BUCKETS];
        counts[ledger::bucket_of(500)] = 3;
        counts[ledger::bucket_of(5000)] = 4;
        counts[ledger::bucket_of(1 << 38)] = 2;
        let samples = histogram(&counts, &vec![("pid", "1".to_owned())], 1_500_000_000);
        assert_eq!(samples[0].1[1], ("le", "0.000001024".to_owned()));
        let values: Vec<f64> = samples.iter().map(|(_, _, value)| *value).collect();
        assert_eq!((values[0], values[3], values[24]), (3.0, 7.0, 7.0));
        assert_eq!(values[25..], [9.0, 1.5, 9.0]);
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        assert_eq!(text(&[], &[]), "");
    }
}
