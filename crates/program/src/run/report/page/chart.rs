//! Line charts over time. The drawing is stretched to the page's width, without its text.

use std::fmt::Write;

use super::figures::{count, seconds, size};
use crate::markup::{escaped, ticks};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 200.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    /// Events a second.
    Rate,
    /// Microseconds, on a logarithmic scale.
    Latency,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Rate => "rate",
            Unit::Latency => "us",
        }
    }

    fn shown(self, value: f64) -> String {
        match self {
            Unit::Bytes => size(value),
            Unit::Rate => count(value),
            Unit::Latency => seconds(value / 1e6),
        }
    }
}

pub struct Line {
    /// Its name, and its class in the style sheet.
    pub name: &'static str,
    pub class: &'static str,
    /// Its column in the series.
    pub column: &'static str,
    /// One value per interval, in the chart's unit.
    pub values: Vec<Option<f64>>,
    pub is_area: bool,
}

pub struct Chart<'a> {
    pub title: &'a str,
    pub unit: Unit,
    /// Ends of the intervals, in seconds.
    pub ends: &'a [f64],
    pub lines: Vec<Line>,
    /// A horizontal level with its name.
    pub level: Option<(&'static str, f64)>,
}

/// The vertical axis: the position of values, and the labels.
struct Axis {
    unit: Unit,
    least: f64,
    most: f64,
    labels: Vec<f64>,
}

impl Axis {
    fn new(unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        if unit == Unit::Latency {
            let least = values.iter().copied().filter(|value| *value > 0.0).fold(f64::MAX, f64::min);
            let from = if most > 0.0 { least.log10().floor() } else { 0.0 };
            let to = if most > 0.0 { most.log10().ceil().max(from + 1.0) } else { 1.0 };
            let labels = (from as i32..=to as i32).map(|power| 10f64.powi(power)).collect();
            return Axis { unit, least: from, most: to, labels };
        }
        // Counts have no fractional labels.
        let most = if unit == Unit::Rate { most.max(4.0) } else { most };
        // Ticks are round in the unit of the labels.
        let base = match unit {
            Unit::Bytes if most >= f64::from(1 << 30) => f64::from(1 << 30),
            Unit::Bytes => f64::from(1 << 20),
            _ => 1.0,
        };
        let labels: Vec<f64> = ticks(most / base).into_iter().map(|tick| tick * base).collect();
        Axis { unit, least: 0.0, most: labels[labels.len() - 1], labels }
    }

    /// Returns a value's height from 0 (bottom) to 1.
    fn share(&self, value: f64) -> f64 {
        let value = if self.unit == Unit::Latency { value.max(1e-3).log10() } else { value };
        ((value - self.least) / (self.most - self.least)).clamp(0.0, 1.0)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT * (1.0 - self.share(value))
    }
}

impl Chart<'_> {
    pub fn html(&self) -> String {
        let all = self.lines.iter().flat_map(|line| line.values.iter().flatten().copied());
        let axis = Axis::new(self.unit, all.chain(self.level.map(|(_, value)| value)));
        let mut text = format!(
            "<figure class=\"chart\" data-unit=\"{}\">\n<figcaption>{}</figcaption>\n<p class=\"legend\">",
            self.unit.name(),
            escaped(self.title)
        );
        let mut put = |what: std::fmt::Arguments<'_>| text.write_fmt(what).expect("to a string");
        for line in &self.lines {
            let Line { class, name, column, .. } = line;
            put(format_args!("<span class=\"key {class}\">{name} <b data-column=\"{column}\"></b></span> "));
        }
        if let Some((name, value)) = self.level {
            let value = escaped(&self.unit.shown(value));
            put(format_args!("<span class=\"key level\">{name} {value}</span> "));
        }
        put(format_args!("<span class=\"at\"></span></p>\n<div class=\"plot\"><div class=\"labels\">"));
        for value in &axis.labels {
            let (bottom, shown) = (axis.share(*value) * 100.0, escaped(&self.unit.shown(*value)));
            put(format_args!("<span style=\"bottom:{bottom:.2}%\">{shown}</span>"));
        }
        put(format_args!(
            "</div><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
            escaped(self.title)
        ));
        for value in &axis.labels {
            put(format_args!("<path class=\"grid\" d=\"M0 {y:.1}H{WIDTH}\"/>", y = axis.y(*value)));
        }
        for line in &self.lines {
            for path in self.paths(line, &axis) {
                let (class, first, last) = (line.class, path[0].0, path[path.len() - 1].0);
                let points = points(&path);
                if line.is_area {
                    put(format_args!(
                        "<path class=\"area {class}\" d=\"M{first:.1} {HEIGHT}L{points}L{last:.1} {HEIGHT}Z\"/>"
                    ));
                }
                put(format_args!("<path class=\"line {class}\" d=\"M{points}\"/>"));
            }
        }
        if let Some((_, value)) = self.level {
            put(format_args!("<path class=\"line level\" d=\"M0 {y:.1}H{WIDTH}\"/>", y = axis.y(value)));
        }
        put(format_args!("<path class=\"cursor\" d=\"\"/></svg></div>\n<div class=\"times\">"));
        let total = self.total();
        for time in times(total) {
            let left = time / total * 100.0;
            put(format_args!("<span style=\"left:{left:.2}%\">{}</span>", escaped(&time_label(time, total))));
        }
        text.push_str("</div>\n</figure>\n");
        text
    }

    fn total(&self) -> f64 {
        self.ends.last().copied().unwrap_or(0.0).max(1e-9)
    }

    /// Returns a path for each run of intervals with a value, as steps.
    fn paths(&self, line: &Line, axis: &Axis) -> Vec<Vec<(f64, f64)>> {
        let x = |seconds: f64| WIDTH * seconds / self.total();
        let mut paths: Vec<Vec<(f64, f64)>> = Vec::new();
        let (mut start, mut is_open) = (0.0, false);
        for (end, value) in self.ends.iter().zip(&line.values) {
            if let Some(value) = value {
                if !is_open {
                    paths.push(Vec::new());
                }
                let y = axis.y(*value);
                paths.last_mut().expect("pushed above").extend([(x(start), y), (x(*end), y)]);
            }
            (start, is_open) = (*end, value.is_some());
        }
        paths
    }
}

/// Returns the unit of a time axis of `total` seconds, and its name.
fn unit_of_time(total: f64) -> (f64, &'static str) {
    match total {
        total if total < 1.0 => (1e-3, "ms"),
        total if total < 240.0 => (1.0, "s"),
        total if total < 4.0 * 3600.0 => (60.0, "min"),
        _ => (3600.0, "h"),
    }
}

/// Returns times from 0 to `total` seconds that are round in the axis' unit.
fn times(total: f64) -> Vec<f64> {
    let (unit, _) = unit_of_time(total);
    ticks(total / unit).into_iter().map(|tick| tick * unit).filter(|time| *time <= total).collect()
}

fn time_label(time: f64, total: f64) -> String {
    let (unit, name) = unit_of_time(total);
    // Ticks have at most a few decimals; the rest is the error of the division.
    format!("{} {name}", (time / unit * 1e6).round() / 1e6)
}

fn points(path: &[(f64, f64)]) -> String {
    path.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect::<Vec<_>>().join("L")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(unit: Unit, values: &[Option<f64>], level: Option<(&'static str, f64)>) -> String {
        let ends: Vec<f64> = (1..=values.len()).map(|end| end as f64).collect();
        let line = Line { name: "n", class: "c", column: "k", values: values.to_vec(), is_area: true };
        Chart { title: "t", unit, ends: &ends, lines: vec![line], level }.html()
    }

    #[test]
    fn a_level_is_in_the_picture_and_gaps_are_gaps() {
        let mib = f64::from(1 << 20);
        let html =
            chart(Unit::Bytes, &[Some(10.0 * mib), None, Some(20.0 * mib)], Some(("budget", 40.0 * mib)));
        assert!(html.contains("class=\"line level\" d=\"M0 0.0H1000\""), "{html}");
        assert_eq!(html.matches("class=\"line c\"").count(), 2);
        assert!(html.contains("d=\"M0.0 150.0L333.3 150.0\"") && html.contains(">40 MiB<"), "{html}");
    }

    #[test]
    fn latencies_are_by_decades() {
        let html = chart(Unit::Latency, &[Some(5.0), Some(500.0)], None);
        let labels: Vec<&str> = ["1.00 µs", "10.0 µs", "100 µs", "1.00 ms"].into();
        assert!(labels.iter().all(|label| html.contains(&format!(">{label}<"))), "{html}");
    }

    #[test]
    fn times_are_round() {
        let labels = |total| times(total).into_iter().map(|time| time_label(time, total)).collect::<Vec<_>>();
        assert_eq!(labels(7.83), ["0 s", "2 s", "4 s", "6 s"]);
        assert_eq!(labels(29.7), ["0 s", "10 s", "20 s"]);
        assert_eq!(labels(0.37), ["0 ms", "100 ms", "200 ms", "300 ms"]);
        assert_eq!(labels(3000.0), ["0 min", "10 min", "20 min", "30 min", "40 min", "50 min"]);
        assert_eq!(labels(20_000.0), ["0 h", "2 h", "4 h"]);
        assert_eq!(labels(1e-9)[0], "0 ms");
        assert!(chart(Unit::Rate, &[Some(1.0), Some(2.0)], None).contains("left:50.00%\">1 s<"));
    }

    #[test]
    fn nothing_at_all_is_a_chart_too() {
        for unit in [Unit::Bytes, Unit::Rate, Unit::Latency] {
            assert!(!chart(unit, &[], None).contains("NaN"));
            assert!(!chart(unit, &[None, Some(0.0)], None).contains("NaN"));
        }
        assert_eq!(chart(Unit::Rate, &[Some(0.0)], None).matches(">1<").count(), 1, "labels differ");
    }
}
