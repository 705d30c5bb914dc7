//! The table and the bars.

use std::fmt::Write;

use super::outcome::Outcome;
use super::Measured;
use crate::drawing::{Bars, BLUE, GREY, RED};
use program::size::Size;

/// One line of the table, one bar.
struct Line<'a> {
    name: String,
    outcome: &'a Outcome,
    is_same: bool,
    pages_in: Option<u64>,
    pages_out: u64,
    ratio: f64,
    peak_bytes: u64,
    disk_bytes: u64,
}

fn lines(measured: &Measured) -> Vec<Line<'_>> {
    let mut lines = vec![Line {
        name: "bare".to_owned(),
        outcome: &measured.bare,
        is_same: true,
        pages_in: None,
        pages_out: 0,
        ratio: 0.0,
        peak_bytes: measured.wanted_bytes,
        disk_bytes: 0,
    }];
    for row in &measured.rows {
        let ram = Size::from(row.ram_bytes);
        lines.push(Line {
            name: format!("uzswap, {ram}"),
            outcome: &row.uzswap.outcome,
            is_same: row.uzswap.is_same,
            pages_in: Some(row.uzswap.pages_in),
            pages_out: row.uzswap.pages_out,
            ratio: row.uzswap.ratio,
            peak_bytes: super::field(&row.uzswap.report, "ram_peak_bytes"),
            disk_bytes: row.uzswap.disk_written_bytes,
        });
        if let Some(kernel) = &row.kernel {
            lines.push(Line {
                name: format!("{}, {ram}", kernel.kind),
                outcome: &kernel.outcome,
                is_same: kernel.is_same,
                pages_in: Some(kernel.figures.pages_in),
                pages_out: kernel.figures.pages_out,
                ratio: kernel.figures.ratio,
                peak_bytes: kernel.figures.total_peak_bytes,
                disk_bytes: kernel.figures.disk_written_bytes,
            });
        }
    }
    lines
}

/// The table.
pub fn table(measured: &Measured) -> String {
    let mut text = format!("{}\n", measured.command);
    let _ = writeln!(
        text,
        "{:24} {:>9} {:>7} {:>8} {:>8} {:>10} {:>10} {:>6} {:>9} {:>9}  OUTPUT",
        "", "SECONDS", "BARE", "USER", "SYSTEM", "PAGES IN", "PAGES OUT", "RATIO", "PEAK", "WRITTEN"
    );
    for line in lines(measured) {
        let outcome = line.outcome;
        let _ = writeln!(
            text,
            "{:24} {:>9.2} {:>6.2}x {:>8.2} {:>8.2} {:>10} {:>10} {:>6.2} {:>9} {:>9}  {}",
            line.name,
            outcome.elapsed_seconds,
            outcome.elapsed_seconds / measured.bare.elapsed_seconds,
            outcome.user_seconds,
            outcome.system_seconds,
            line.pages_in.map_or(String::new(), |pages| pages.to_string()),
            line.pages_out,
            line.ratio,
            Size::from(line.peak_bytes).to_string(),
            if line.disk_bytes == 0 { String::new() } else { Size::from(line.disk_bytes).to_string() },
            if line.is_same {
                "same".to_owned()
            } else {
                format!("DIFFERENT, status {}", outcome.exit_status)
            },
        );
    }
    for row in &measured.rows {
        if let Some(kernel) = &row.kernel {
            let _ = writeln!(
                text,
                "in {}: elapsed {:.2}, pages in {:.2} of the kernel's",
                Size::from(row.ram_bytes),
                row.uzswap.outcome.elapsed_seconds / kernel.outcome.elapsed_seconds,
                row.uzswap.pages_in as f64 / kernel.figures.pages_in.max(1) as f64,
            );
        }
    }
    text
}

/// The times as bars.
pub fn svg(measured: &Measured) -> String {
    let mut bars = Bars::new(&measured.command);
    for line in lines(measured) {
        let colour = match &line.name {
            name if name.starts_with("kernel") => BLUE,
            name if name.starts_with("uzswap") => RED,
            _ => GREY,
        };
        let seconds = line.outcome.elapsed_seconds;
        bars.bar(&line.name, seconds, &format!("{seconds:.2} s"), colour);
    }
    bars.svg()
}
