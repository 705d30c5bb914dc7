//! The trees as a table.

use std::fmt::Write;

use super::figures::{Latency, Tree};
use crate::size::Size;

const NAME_MAX: usize = 28;

pub fn table(trees: &[Tree]) -> String {
    if trees.is_empty() {
        return "No program runs under `uzswap run`, or none that you may look at.\n".to_owned();
    }
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:>7} {:NAME_MAX$} {:>5} {:>8} {:>8} {:>8} {:>6} {:>9} {:>9} {:>9} {:>8} {:>8}",
        "PID",
        "PROGRAM",
        "PROCS",
        "BUDGET",
        "USED",
        "WANTED",
        "RATIO",
        "OUT/s",
        "IN/s",
        "FAULTS/s",
        "P50 us",
        "P99 us"
    );
    for tree in trees {
        let _ = writeln!(
            text,
            "{:>7} {:NAME_MAX$} {:>5} {:>8} {:>8} {:>8} {:>6} {:>9.0} {:>9.0} {:>9.0} {:>8} {:>8}",
            tree.pid,
            name(&tree.program),
            tree.processes.len(),
            Size::from(tree.ram_limit_bytes),
            Size::from(tree.ram_used_bytes),
            Size::from(tree.ram_wanted_bytes),
            if tree.stored_pages == 0 { "-".to_owned() } else { format!("{:.2}", tree.compression_ratio) },
            tree.zswpout_per_second,
            tree.zswpin_per_second,
            tree.faults_per_second,
            microseconds(tree.fault_latency_us, |latency| latency.p50),
            microseconds(tree.fault_latency_us, |latency| latency.p99),
        );
        if tree.swap_pages > 0 {
            let _ = writeln!(
                text,
                "{:>7} in the swap file: {} pages, {} of {}; {}/s written; {} faults from disk, p50 {} us",
                "",
                tree.swap_pages,
                Size::from(tree.swap_live_bytes),
                Size::from(tree.swap_limit_bytes),
                Size::from(tree.swap_bytes_written_per_second as u64),
                tree.disk_faults,
                microseconds(tree.disk_fault_latency_total_us, |latency| latency.p50),
            );
        }
    }
    text
}

fn microseconds(latency: Option<Latency>, of: fn(Latency) -> f64) -> String {
    latency.map_or_else(|| "-".to_owned(), |latency| format!("{:.1}", of(latency)))
}

/// The command in one line, without its directory, control characters and excess length.
fn name(program: &[String]) -> String {
    let words = program.join(" ");
    let directory = program.first().and_then(|path| path.rfind('/')).map_or(0, |slash| slash + 1);
    let mut name: String = words[directory..].chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if name.chars().count() > NAME_MAX {
        name = name.chars().take(NAME_MAX - 1).chain(['…']).collect();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_their_column() {
        let words = |words: &[&str]| name(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(words(&["/usr/bin/sort", "-n", "/a\x1b[2J"]), "sort -n /a?[2J");
        let long = words(&["python3", "a-script-with-a-very-long-name.py"]);
        assert!(long.chars().count() == NAME_MAX && long.ends_with('…'), "{long}");
    }

    #[test]
    fn no_tree_is_said() {
        assert!(table(&[]).contains("No program runs"));
    }
}
