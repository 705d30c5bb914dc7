//! The table.

use std::fmt::Write;

use super::{Kind, Measured, Measurement};
use program::size::Size;

pub(super) fn table(measured: &Measured) -> String {
    let mut text = format!("{}\nwants {}\n", measured.command, Size::from(measured.wanted_bytes));
    let _ = writeln!(
        text,
        "{:24} {:>17} {:>17} {:>7} {:>7} {:>7} {:>9} {:>9} {:>6} {:>9} {:>8}  OUTPUT",
        "", "MEAN, S", "RANGE", "BARE", "USER", "SYSTEM", "PAGES IN", "OUT", "RATIO", "PEAK", "WRITTEN"
    );
    let bare = measured.sides[0].statistics.median_seconds;
    for side in &measured.sides {
        let (time, run) = (&side.statistics, side.median_run());
        let figures = &run.figures;
        let _ = writeln!(
            text,
            "{:24} {:>17} {:>17} {:>6.2}x {:>7.2} {:>7.2} {:>9} {:>9} {:>6.2} {:>9} {:>8}  {}",
            side.side.title(),
            format!("{:.3} ± {:.3}", time.mean_seconds, time.deviation_seconds),
            format!("{:.3} … {:.3}", time.min_seconds, time.max_seconds),
            time.median_seconds / bare,
            run.outcome.user_seconds,
            run.outcome.system_seconds,
            figures.pages_in,
            figures.pages_out,
            figures.ratio,
            Size::from(figures.peak_bytes).to_string(),
            if figures.disk_written_bytes == 0 {
                String::new()
            } else {
                Size::from(figures.disk_written_bytes).to_string()
            },
            match side.runs.iter().find(|run| !run.is_same) {
                None => "same".to_owned(),
                Some(run) => format!("DIFFERENT, status {}", run.outcome.exit_status),
            },
        );
    }
    for side in measured.sides.iter().filter(|side| !side.statistics.outliers.is_empty()) {
        let runs: Vec<String> = side.statistics.outliers.iter().map(|run| (run + 1).to_string()).collect();
        let _ = writeln!(
            text,
            "{}: outliers: run {}; repeat on a quiet machine, or with --warmup",
            side.side.title(),
            runs.join(", ")
        );
    }
    for kernel in measured.sides.iter().filter(|side| side.side.kind == Kind::Kernel) {
        let is_beside = |side: &&Measurement| {
            side.side.kind == Kind::Uzswap && side.side.ram_bytes == kernel.side.ram_bytes
        };
        if let Some(uzswap) = measured.sides.iter().find(is_beside) {
            let _ = writeln!(
                text,
                "in {}: median {:.2}, pages in {:.2} of the kernel's",
                Size::from(kernel.side.ram_bytes),
                uzswap.statistics.median_seconds / kernel.statistics.median_seconds,
                uzswap.median_run().figures.pages_in as f64
                    / kernel.median_run().figures.pages_in.max(1) as f64,
            );
        }
    }
    text
}
