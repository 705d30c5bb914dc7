//! The processes as a tree, each with its lifetime within the run.

use std::fmt::Write;

use serde_json::Value;

use super::figures::{count, seconds, size, Figures};
use crate::markup::escaped;

pub fn html(figures: &Figures<'_>) -> String {
    let processes = figures.list("processes");
    if processes.is_empty() {
        return "<p>No process was there long enough to be seen.</p>\n".to_owned();
    }
    let mut text = String::from(
        "<div class=\"wide\"><table class=\"tree\">\n<thead><tr><th>process</th><th class=\"life\">from start to end</th>\
         <th>peak</th><th>wanted</th><th>out</th><th>in</th><th>faults</th><th>took</th></tr></thead>\n<tbody>\n",
    );
    let total = figures.number("elapsed_seconds").max(1e-9);
    for (at, depth) in order(processes) {
        row(&mut text, &processes[at], depth, total);
    }
    text.push_str("</tbody></table></div>\n");
    let left_out = figures.number("processes_left_out");
    if left_out > 0.0 {
        let _ = writeln!(text, "<p>{} more, which wanted less.</p>", figures.count("processes_left_out"));
    }
    text
}

/// Returns indexes and depths, children after their parents, processes without a parent at the top.
fn order(processes: &[Value]) -> Vec<(usize, usize)> {
    let number = |at: usize, key: &str| processes[at][key].as_u64();
    let is_top = |at: usize| {
        number(at, "parent").is_none_or(|parent| !processes.iter().any(|other| other["number"] == parent))
    };
    let mut open: Vec<(usize, usize)> =
        (0..processes.len()).rev().filter(|at| is_top(*at)).map(|at| (at, 0)).collect();
    let mut order = Vec::new();
    while let Some((at, depth)) = open.pop() {
        order.push((at, depth));
        let own = number(at, "number");
        let is_child = |child: &usize| number(*child, "parent") == own && !is_top(*child);
        open.extend((0..processes.len()).rev().filter(is_child).map(|child| (child, depth + 1)));
    }
    order
}

fn row(text: &mut String, process: &Value, depth: usize, total: f64) {
    let number = |key: &str| process[key].as_f64().unwrap_or(0.0);
    let start = (number("started_seconds") / total).clamp(0.0, 1.0);
    let end = process["ended_seconds"].as_f64().map_or(1.0, |end| (end / total).clamp(start, 1.0));
    let text_of = |key: &str| process[key].as_str().unwrap_or_default();
    let (command, name) = (text_of("command"), text_of("name"));
    let life = format!(
        "{} to {}",
        seconds(number("started_seconds")),
        process["ended_seconds"].as_f64().map_or("after the end".to_owned(), seconds)
    );
    let _ = writeln!(
        text,
        "<tr><td><div class=\"name\" style=\"padding-left:{:.1}em\" title=\"{}\"><b>{}</b> <span class=\"pid\">{}{}</span></div></td>\
         <td class=\"life\" title=\"{life}\"><i style=\"margin-left:{:.2}%;width:{:.2}%\"></i></td>\
         <td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        // Limits the indent, so deep trees fit on the page.
        depth.min(12) as f64,
        escaped(command),
        escaped(if name.is_empty() { "(gone)" } else { name }),
        process["pid"],
        if process["emulated"] == true { ", emulated device" } else { "" },
        start * 100.0,
        ((end - start) * 100.0).max(0.5),
        size(number("ram_peak_bytes")),
        size(number("ram_wanted_peak_bytes")),
        count(number("zswpout")),
        count(number("zswpin")),
        count(number("faults")),
        seconds(number("fault_seconds")),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_process_on_an_emulated_device_is_marked() {
        let marked = |emulated: bool| {
            let mut text = String::new();
            row(&mut text, &json!({"pid": 7, "emulated": emulated}), 0, 1.0);
            text.contains(">7, emulated device</span>")
        };
        assert!(marked(true) && !marked(false));
    }

    #[test]
    fn children_follow_their_parents() {
        let one = |number: u32, parent: Option<u32>| json!({"number": number, "parent": parent});
        let parents = [None, Some(0), Some(0), Some(1), Some(99), Some(2)];
        let processes: Vec<Value> = (0..).zip(parents).map(|(number, parent)| one(number, parent)).collect();
        assert_eq!(order(&processes), [(0, 0), (1, 1), (3, 2), (2, 1), (5, 2), (4, 0)]);
    }
}
