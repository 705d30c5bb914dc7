//! Pages brought in over memory: a line for each policy.

use super::Replay;
use crate::drawing::{lines, Curve};

/// The drawing.
pub fn svg(replay: &Replay) -> String {
    let memory_max = replay.rows.iter().map(|row| row.memory_pages).max().unwrap_or(0);
    let mut curves: Vec<Curve> = Vec::new();
    for row in &replay.rows {
        let point = (row.memory_pages as f64, row.pages_in as f64);
        match curves.iter_mut().find(|curve| curve.name == row.policy) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { name: row.policy.clone(), points: vec![point] }),
        }
    }
    for curve in &mut curves {
        curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let across = format!("memory, MiB: 0 to {:.0}", memory_max as f64 / 256.0);
    lines(&replay.command, &across, "pages in", &curves)
}
