//! Ours by the kernel's, from one run.

use std::collections::BTreeMap;

use super::drive::Driven;
use super::job::PhaseReport;
use super::managed::Managed;
use super::versus::KernelZswap;

/// Ratios by name. Throughputs: above 1 is better; latencies, CPU time and bytes of the disk: below
/// 1 is better.
pub fn ratios(ours: &Managed, kernel: &KernelZswap) -> BTreeMap<String, f64> {
    let mut ratios = times(&ours.driven, &kernel.driven);
    for (name, ours, kernel) in [
        ("disk_written", ours.disk_written_bytes, kernel.disk_written_bytes),
        ("disk_read", ours.disk_read_bytes, kernel.disk_read_bytes),
    ] {
        if ours > 0 && kernel > 0 {
            ratios.insert(name.to_owned(), ours as f64 / kernel as f64);
        }
    }
    ratios
}

fn times(ours: &Driven, kernel: &Driven) -> BTreeMap<String, f64> {
    let mut ratios = BTreeMap::new();
    let mut add = |name: String, ours: f64, kernel: f64| {
        if kernel > 0.0 {
            ratios.insert(name, ours / kernel);
        }
    };
    for (ours, kernel) in ours.phases.iter().zip(&kernel.phases) {
        let name = ours.phase.name();
        add(format!("{name}_throughput"), ours.bytes_per_second, kernel.bytes_per_second);
        add(format!("{name}_cpu"), ours.cpu_seconds, kernel.cpu_seconds);
        for (key, of) in LATENCIES {
            add(format!("{name}_{key}"), of(ours), of(kernel));
        }
    }
    add("elapsed".to_owned(), ours.elapsed_seconds, kernel.elapsed_seconds);
    add("cpu".to_owned(), ours.cpu_seconds, kernel.cpu_seconds);
    ratios
}

type Figure = fn(&PhaseReport) -> f64;

/// Latencies of a phase; 0 for phases without.
const LATENCIES: [(&str, Figure); 4] = [
    ("p50", |phase| phase.latency.as_ref().map_or(0.0, |latency| latency.p50_us)),
    ("p90", |phase| phase.latency.as_ref().map_or(0.0, |latency| latency.p90_us)),
    ("p99", |phase| phase.latency.as_ref().map_or(0.0, |latency| latency.p99_us)),
    ("fault_p50", |phase| phase.latency.as_ref().map_or(0.0, |latency| latency.fault_p50_us)),
];

#[cfg(test)]
mod tests {
    use super::super::task::Phase;
    use super::*;

    #[test]
    fn ours_is_divided_by_the_kernel_s() {
        let driven = |rate: f64, cpu_seconds: f64| Driven {
            elapsed_seconds: 1.0,
            cpu_seconds,
            user_seconds: 0.0,
            system_seconds: cpu_seconds,
            phases: vec![PhaseReport {
                phase: Phase::Fill,
                elapsed_seconds: 1.0,
                cpu_seconds,
                bytes: 1,
                bytes_per_second: rate,
                task_bytes_per_second: vec![rate],
                latency: None,
            }],
        };
        let ratios = times(&driven(300.0, 1.0), &driven(200.0, 4.0));
        assert_eq!((ratios["fill_throughput"], ratios["fill_cpu"], ratios["elapsed"]), (1.5, 0.25, 1.0));
        assert!(!ratios.contains_key("fill_p50"), "no ratio of what was not measured");
    }
}
