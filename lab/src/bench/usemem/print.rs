//! Output for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::drive::Driven;
use super::job::{Latency, PhaseReport};
use super::managed::Managed;
use super::versus::KernelZswap;
use super::Plan;
use program::run::forms_line;
use program::size::Size;

/// One line about a phase that has just ended.
pub fn phase_line(name: &str, phase: &PhaseReport) -> String {
    let mut line = format!(
        "{name}: {:5} {:8.1} MB/s, {:6.2} s, CPU {:6.2} s",
        phase.phase.name(),
        phase.bytes_per_second / 1e6,
        phase.elapsed_seconds,
        phase.cpu_seconds,
    );
    if let Some(Latency { p50_us, p90_us, p99_us, .. }) = phase.latency {
        write!(line, "; p50 {p50_us:.1} us, p90 {p90_us:.1} us, p99 {p99_us:.1} us").expect("to a string");
    }
    line
}

pub fn table(
    plan: &Plan,
    managed: &Managed,
    kernel: Option<&KernelZswap>,
    ratios: &BTreeMap<String, f64>,
) -> String {
    let mut text = String::new();
    plan_lines(&mut text, plan);
    run_table(&mut text, "managed by uzswap", &managed.driven);
    line(&mut text, "peak of memory", &format!("{}", Size::from(managed.ram_peak_bytes)));
    disk(&mut text, managed.disk_written_bytes, managed.disk_read_bytes);
    line(&mut text, "compression ratio", &format!("{:.2}", managed.compression_ratio));
    if let Some(forms) = forms_line(&managed.forms) {
        line(&mut text, "stored as", &forms);
    }
    counters(&mut text, managed.counters.iter());
    let Some(kernel) = kernel else { return text };
    text.push('\n');
    let compressor = kernel.compressor.iter().map(|name| format!(", {name}")).collect::<String>();
    run_table(&mut text, &format!("{}{compressor}", kernel.kind), &kernel.driven);
    let (group, pool) = (Size::from(kernel.cgroup_peak_bytes), Size::from(kernel.pool_peak_bytes));
    let memory = if kernel.pool_within_limit {
        format!("{group}, with a pool of {pool}")
    } else {
        format!("{group}, and a pool of {pool} beside it, which cgroups of version 1 do not count")
    };
    line(&mut text, "peak of memory", &memory);
    disk(&mut text, kernel.disk_written_bytes, kernel.disk_read_bytes);
    if kernel.compressor.is_some() {
        line(&mut text, "compression ratio", &format!("{:.2}", kernel.compression_ratio));
    }
    for (folio, pages) in kernel.stored_pages_by_folio.iter().filter(|(_, pages)| **pages > 0) {
        line(&mut text, &format!("pages stored, {folio} folios"), &pages.to_string());
    }
    counters(&mut text, kernel.counters.iter());
    for (name, value) in &kernel.settings {
        line(&mut text, name, value);
    }
    writeln!(text, "\nuzswap by {} (throughput: more is better; else less)", kernel.kind)
        .expect("to a string");
    for (name, ratio) in ratios {
        line(&mut text, name, &format!("{ratio:.2}"));
    }
    text
}

fn disk(text: &mut String, written: u64, read: u64) {
    if written + read > 0 {
        line(text, "disk", &format!("{} written, {} read", Size::from(written), Size::from(read)));
    }
}

fn plan_lines(text: &mut String, plan: &Plan) {
    let data = if plan.job.data.random {
        "random bytes".to_owned()
    } else if plan.job.data.pages.is_empty() {
        "index words".to_owned()
    } else {
        let names =
            plan.job.data.pages.iter().map(|path| path.file_name().unwrap_or_default().to_string_lossy());
        names.collect::<Vec<_>>().join(", ")
    };
    let (tasks, bytes) = (plan.job.tasks, plan.job.bytes as u64);
    let plural = if tasks == 1 { "task" } else { "tasks" };
    writeln!(text, "{tasks} {plural} of {} in {}; {data}\n", Size::from(bytes), Size::from(plan.ram_bytes),)
        .expect("to a string");
}

fn run_table(text: &mut String, title: &str, driven: &Driven) {
    let phases = &driven.phases;
    writeln!(text, "{title}").expect("to a string");
    writeln!(text, "  {:6} {:>10} {:>10} {:>10}   each task, MB/s", "phase", "MB/s", "elapsed s", "CPU s")
        .expect("to a string");
    for phase in phases {
        let each: Vec<_> =
            phase.task_bytes_per_second.iter().map(|rate| format!("{:.1}", rate / 1e6)).collect();
        writeln!(
            text,
            "  {:6} {:>10.1} {:>10.2} {:>10.2}   {}",
            phase.phase.name(),
            phase.bytes_per_second / 1e6,
            phase.elapsed_seconds,
            phase.cpu_seconds,
            each.join(" "),
        )
        .expect("to a string");
    }
    if let Some(latency) = phases.iter().find_map(|phase| phase.latency.as_ref()) {
        line(
            text,
            "touch latency",
            &format!(
                "p50 {:.2} us, p90 {:.1} us, p99 {:.1} us, most {:.0} us",
                latency.p50_us, latency.p90_us, latency.p99_us, latency.max_us
            ),
        );
        line(
            text,
            "touches that faulted",
            &format!(
                "{:.1} % (1 us or more); of these p50 {:.1} us, p99 {:.1} us",
                latency.fault_share * 100.0,
                latency.fault_p50_us,
                latency.fault_p99_us
            ),
        );
    }
    line(text, "elapsed", &format!("{:.2} s", driven.elapsed_seconds));
    line(text, "CPU", &format!("{:.2} s", driven.cpu_seconds));
}

fn counters<'a>(text: &mut String, counters: impl Iterator<Item = (&'a String, &'a u64)>) {
    let (zero, some): (Vec<_>, Vec<_>) = counters.partition(|(_, value)| **value == 0);
    for (name, value) in some {
        line(text, name, &value.to_string());
    }
    if !zero.is_empty() {
        let names: Vec<_> = zero.iter().map(|(name, _)| name.as_str()).collect();
        line(text, "none of", &names.join(", "));
    }
}

fn line(text: &mut String, name: &str, value: &str) {
    writeln!(text, "  {name:27} {value}").expect("to a string");
}
