//! The trees as a table of 79 columns, one line a tree, and the details of one.

use std::fmt::Write;

use super::figures::{Latency, Tree};
use super::minute::Minute;
use crate::size::Size;

const NAME_MAX: usize = 16;

pub const NONE: &str = "No program runs under `uzswap run`, or none that you may look at.";

/// Returns the line of column titles.
pub fn titles() -> String {
    format!(
        "{:>7} {:NAME_MAX$} {:>4} {:>8} {:>8} {:>8} {:>5} {:>8} {:>7}",
        "PID", "PROGRAM", "PROC", "BUDGET", "USED", "WANTED", "RATIO", "FAULTS/s", "P99 us"
    )
}

/// Returns a tree's line.
pub fn line(tree: &Tree) -> String {
    format!(
        "{:>7} {:NAME_MAX$} {:>4} {:>8} {:>8} {:>8} {:>5} {:>8} {:>7}",
        tree.pid,
        name(&tree.program),
        tree.processes.len(),
        Size::from(tree.ram_limit_bytes),
        Size::from(tree.ram_used_bytes),
        Size::from(tree.ram_wanted_bytes),
        if tree.stored_pages == 0 { "-".to_owned() } else { format!("{:.2}", tree.compression_ratio) },
        if tree.paused { "paused".to_owned() } else { format!("{:.0}", tree.faults_per_second) },
        microseconds(tree.fault_latency_us, |latency| latency.p99),
    )
}

/// Returns the table, for output that is no terminal.
pub fn table(trees: &[Tree]) -> String {
    if trees.is_empty() {
        return format!("{NONE}\n");
    }
    [titles()].into_iter().chain(trees.iter().map(line)).fold(String::new(), |text, line| text + &line + "\n")
}

/// Returns a tree's details: pages, swap file, the last minute and the processes.
pub fn details(tree: &Tree, minute: &Minute) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{}: {} pages out, {} in; {:.0} out/s, {:.0} in/s ({})",
            tree.pid,
            tree.zswpout,
            tree.zswpin,
            tree.zswpout_per_second,
            tree.zswpin_per_second,
            tree.compressor
        ),
        format!(
            "{} faults, p50 {}, p99 {}; peak {} of {}",
            tree.faults,
            with_unit(tree.fault_latency_total_us, |latency| latency.p50),
            with_unit(tree.fault_latency_total_us, |latency| latency.p99),
            Size::from(tree.ram_peak_bytes),
            Size::from(tree.ram_limit_bytes)
        ),
    ];
    if tree.swap_pages > 0 {
        lines.push(format!(
            "swap file: {} of {}, {}/s written; {} faults, p50 {}",
            Size::from(tree.swap_live_bytes),
            Size::from(tree.swap_limit_bytes),
            Size::from(tree.swap_bytes_written_per_second as u64),
            tree.disk_faults,
            with_unit(tree.disk_fault_latency_total_us, |latency| latency.p50),
        ));
    }
    lines.extend(minute.lines(tree));
    lines
        .push(format!("{:>7} {:NAME_MAX$} {:>8} {:>8} {:>9}", "PID", "PROCESS", "RESIDENT", "POOL", "PAGES"));
    for process in &tree.processes {
        let mut line = String::new();
        let _ = write!(
            line,
            "{:>7} {:NAME_MAX$} {:>8} {:>8} {:>9}{}",
            process.pid,
            process.name,
            Size::from(process.resident_bytes),
            Size::from(process.pool_total_size),
            process.stored_pages,
            if process.managed { "" } else { "  no pager yet" }
        );
        lines.push(line);
    }
    lines
}

fn microseconds(latency: Option<Latency>, of: fn(Latency) -> f64) -> String {
    latency.map_or_else(|| "-".to_owned(), |latency| format!("{:.1}", of(latency)))
}

fn with_unit(latency: Option<Latency>, of: fn(Latency) -> f64) -> String {
    latency.map_or_else(|| "-".to_owned(), |latency| format!("{:.1} us", of(latency)))
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
    fn a_tree_is_one_line_of_80_columns_and_a_pause_is_marked() {
        let tree = Tree {
            pid: 4_194_304,
            program: vec!["python3".into(), "a-script-with-a-very-long-name.py".into()],
            ram_limit_bytes: 1023 << 30,
            ram_used_bytes: 1023 << 20,
            ram_wanted_bytes: 1023 << 30,
            stored_pages: 1,
            compression_ratio: 99.99,
            faults_per_second: 9_999_999.0,
            fault_latency_us: Some(Latency { p50: 9.0, p99: 12345.6 }),
            ..Tree::default()
        };
        assert!(line(&tree).chars().count() <= 80 && !line(&tree).contains("paused"), "{}", line(&tree));
        assert_eq!(titles().chars().count(), line(&tree).chars().count());
        assert!(line(&Tree { paused: true, ..tree }).contains(" paused "));
        assert!(table(&[]).contains("No program runs"));
    }
}
