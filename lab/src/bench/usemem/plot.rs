//! The result as bars.

use super::drive::Driven;
use super::managed::Managed;
use super::versus::KernelZswap;
use super::Plan;
use crate::drawing::{Bars, BLUE, RED};
use program::size::Size;

/// The drawing: throughput of each phase, latency of touches, time and memory; ours beside the
/// kernel's if it was measured.
pub fn svg(plan: &Plan, managed: &Managed, kernel: Option<&KernelZswap>) -> String {
    let (total, ram) = (Size::from(plan.total_bytes()), Size::from(plan.ram_bytes));
    let mut bars = Bars::new(&format!("usemem: {total} in {ram}"));
    let own = ("uzswap", &managed.driven, RED);
    let runs: Vec<(&str, &Driven, &'static str)> = match kernel {
        Some(kernel) => vec![own, (kernel.kind, &kernel.driven, BLUE)],
        None => vec![own],
    };
    bars.section("throughput, MB/s: more is better");
    for phase in &managed.driven.phases {
        for (name, driven, colour) in &runs {
            if let Some(phase) = driven.phases.iter().find(|other| other.phase == phase.phase) {
                let rate = phase.bytes_per_second / 1e6;
                bars.bar(&format!("{}, {name}", phase.phase.name()), rate, &format!("{rate:.1}"), colour);
            }
        }
    }
    bars.section("touch latency, us: less is better");
    for at in 0..3 {
        for (name, driven, colour) in &runs {
            if let Some(latency) = driven.phases.iter().find_map(|phase| phase.latency.as_ref()) {
                let (what, us) =
                    [("p50", latency.p50_us), ("p90", latency.p90_us), ("p99", latency.p99_us)][at];
                bars.bar(&format!("{what}, {name}"), us, &format!("{us:.1}"), colour);
            }
        }
    }
    bars.section("whole job, s");
    for (name, driven, colour) in &runs {
        for (what, seconds) in [("elapsed", driven.elapsed_seconds), ("CPU", driven.cpu_seconds)] {
            bars.bar(&format!("{what}, {name}"), seconds, &format!("{seconds:.2}"), colour);
        }
    }
    bars.section("peak of memory");
    let mut memory = vec![("uzswap", managed.ram_peak_bytes, RED)];
    if let Some(kernel) = kernel {
        let beside = if kernel.pool_within_limit { 0 } else { kernel.pool_peak_bytes };
        memory.push((kernel.kind, kernel.cgroup_peak_bytes.saturating_add(beside), BLUE));
    }
    for (name, bytes, colour) in memory {
        bars.bar(name, bytes as f64, &Size::from(bytes).to_string(), colour);
    }
    bars.svg()
}
