//! The report as a page: one self-contained file, light or dark, readable on a telephone.
//!
//! The page is made from the JSON report, which it carries, so their figures agree. Every figure is
//! marked with its name in `data-figure` and its value in `data-value`.

mod chart;
mod figures;
mod lost;
mod tree;

use std::fmt::Write;

use serde_json::Value;

use crate::markup::escaped;
use chart::{Chart, Line, Unit};
use figures::{count, percent, size, Figures};

/// Returns the page of a JSON report.
pub fn html(json: &str) -> String {
    let value: Value = serde_json::from_str(json).expect("a report is JSON");
    let figures = Figures(&value);
    let words: Vec<&str> = figures.list("program").iter().filter_map(Value::as_str).collect();
    let command = escaped(&words.join(" "));
    let style = include_str!("page.css");
    let script = include_str!("page.js");
    // A script's text may not contain its end tag.
    let data = value.to_string().replace('<', "\\u003c");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>uzswap run: {command}</title>\n<style>\n{style}</style>\n\
         </head>\n<body>\n<header><h1>{command}</h1>\n{}</header>\n{}\
         <h2>Memory</h2>\n{}<h2>Paging</h2>\n{}<h2>Faults</h2>\n{}<h2>What pages were stored as</h2>\n{}\
         <h2>Processes</h2>\n<div class=\"card\">{}</div>\n<h2>What was lost, and where</h2>\n<div class=\"card\">{}</div>\n\
         {}<p class=\"dim\">uzswap {}</p>\n<script type=\"application/json\" id=\"report\">{data}</script>\n\
         <script>\n{script}</script>\n</body>\n</html>\n",
        about(&figures),
        tiles(&figures),
        memory(&figures),
        paging(&figures),
        faults(&figures),
        forms(&figures),
        tree::html(&figures),
        lost::html(&figures),
        all(&value),
        env!("CARGO_PKG_VERSION"),
    )
}

fn about(figures: &Figures<'_>) -> String {
    let emulated = match figures.value("emulated") {
        Value::Bool(true) => {
            "<strong> The compressor worked on an emulated device: times say nothing of a real one.</strong>"
        }
        _ => "",
    };
    format!(
        "<p class=\"dim\">Status {}, after {}, in {} of memory; compressor {}.{emulated}</p>\n",
        figures.count("exit_status"),
        figures.seconds("elapsed_seconds"),
        figures.size("ram_limit_bytes"),
        figures.marked("compressor", figures.text("compressor")),
    )
}

fn tiles(figures: &Figures<'_>) -> String {
    let mut text = String::from("<div class=\"tiles\">\n");
    let mut tile = |value: String, what: &str, more: String| {
        let _ = writeln!(text, "<div><small>{what}</small><b>{value}</b><small>{more}</small></div>");
    };
    let limit = figures.number("ram_limit_bytes").max(1.0);
    let ratio = match figures.number("compression_ratio") {
        0.0 => "-".to_owned(),
        ratio => format!("{ratio:.2}"),
    };
    for (name, what) in [("ram_peak_bytes", "peak of memory"), ("ram_wanted_peak_bytes", "wanted")] {
        let share = percent(figures.number(name) / limit);
        tile(figures.size(name), what, format!("{share} of the budget"));
    }
    tile(
        figures.marked("compression_ratio", &ratio),
        "compression ratio",
        format!(
            "{} in {} at the peak",
            size(figures.number("stored_pages_peak") * 4096.0),
            size(figures.number("pool_total_size_at_peak"))
        ),
    );
    tile(figures.count("zswpout"), "pages out", format!("{} in", figures.count("zswpin")));
    tile(figures.count("faults"), "faults", format!("took {}", figures.seconds("fault_seconds_total")));
    tile(
        figures.us("fault_latency_us.p50"),
        "median of faults",
        format!("p99 {}, mean {}", figures.us("fault_latency_us.p99"), figures.us("fault_latency_us.mean")),
    );
    text.push_str("</div>\n");
    text
}

fn ends(figures: &Figures<'_>) -> Vec<f64> {
    figures.column("end_seconds").into_iter().flatten().collect()
}

fn memory(figures: &Figures<'_>) -> String {
    let line =
        |name, class, column, is_area| Line { name, class, column, values: figures.column(column), is_area };
    Chart {
        title: "Memory over time",
        unit: Unit::Bytes,
        ends: &ends(figures),
        lines: vec![
            line("wanted", "wanted", "ram_wanted_bytes", false),
            line("used", "used", "ram_used_bytes", true),
            line("of it compressed", "pool", "pool_total_size", true),
        ],
        level: Some(("budget", figures.number("ram_limit_bytes"))),
    }
    .html()
}

fn rates(figures: &Figures<'_>, column: &str) -> Vec<Option<f64>> {
    let mut start = 0.0;
    let rate = |(end, value): (&f64, Option<f64>)| {
        let width = end - std::mem::replace(&mut start, *end);
        value.map(|value| value / width.max(1e-6))
    };
    ends(figures).iter().zip(figures.column(column)).map(rate).collect()
}

fn paging(figures: &Figures<'_>) -> String {
    let line =
        |name, class, column| Line { name, class, column, values: rates(figures, column), is_area: false };
    Chart {
        title: "Pages a second",
        unit: Unit::Rate,
        ends: &ends(figures),
        lines: vec![line("out", "used", "zswpout"), line("in", "wanted", "zswpin")],
        level: None,
    }
    .html()
}

fn faults(figures: &Figures<'_>) -> String {
    let ends = ends(figures);
    let values = rates(figures, "faults");
    let line = Line { name: "faults", class: "used", column: "faults", values, is_area: true };
    let title = "Faults a second";
    let rate = Chart { title, unit: Unit::Rate, ends: &ends, lines: vec![line], level: None };
    let line =
        |name, class, column| Line { name, class, column, values: figures.column(column), is_area: false };
    let (half, most) =
        (("half are below", "used", "fault_p50_us"), ("99 % are below", "second", "fault_p99_us"));
    let lines = [half, most].map(|(name, class, column)| line(name, class, column)).into();
    let title = "Latency of faults";
    let latency = Chart { title, unit: Unit::Latency, ends: &ends, lines, level: None };
    format!("<div class=\"two\">{}{}</div>\n", rate.html(), latency.html())
}

fn forms(figures: &Figures<'_>) -> String {
    let forms = figures.value("forms").as_object().expect("forms are an object");
    let mut used: Vec<(&String, f64)> =
        forms.iter().map(|(name, pages)| (name, pages.as_f64().unwrap_or(0.0))).collect();
    used.sort_by(|a, b| b.1.total_cmp(&a.1));
    let total: f64 = used.iter().map(|(_, pages)| pages).sum();
    if total == 0.0 {
        return "<p>Nothing was stored: the program stayed below its budget.</p>\n".to_owned();
    }
    let mut text = String::from("<div class=\"card\"><table class=\"forms\"><tbody>\n");
    for (name, pages) in used.iter().filter(|(_, pages)| *pages > 0.0) {
        let share = pages / total;
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td><i style=\"width:{:.1}%\"></i></td><td>{}</td><td>{}</td></tr>",
            escaped(name),
            share * 100.0,
            percent(share),
            figures.marked(&format!("forms.{name}"), &count(*pages)),
        );
    }
    let _ = writeln!(
        text,
        "</tbody></table>\n<p class=\"dim\">{} requests compressed {:.1} pages each, {} decompressed {:.1} each; {} \
         pages repeat one word and took no memory.</p></div>",
        figures.count("batches"),
        figures.number("pages_per_batch"),
        figures.count("decompress_batches"),
        figures.number("pages_per_decompress_batch"),
        count(forms.get("same").and_then(Value::as_f64).unwrap_or(0.0)),
    );
    text
}

fn all(value: &Value) -> String {
    let mut text = String::from(
        "<details><summary>All figures</summary>\n<div class=\"card\"><table class=\"all\"><tbody>\n",
    );
    let mut open: Vec<(String, &Value)> = vec![(String::new(), value)];
    while let Some((name, value)) = open.pop() {
        match value {
            Value::Object(members) if name != "series" => {
                let prefix = if name.is_empty() { String::new() } else { format!("{name}.") };
                open.extend(members.iter().rev().map(|(key, value)| (format!("{prefix}{key}"), value)));
            }
            Value::Number(_) | Value::String(_) | Value::Bool(_) => {
                let (name, json) = (escaped(&name), escaped(&value.to_string()));
                let shown = value.as_str().map_or(json.clone(), escaped);
                let _ = writeln!(
                    text,
                    "<tr><td>{name}</td><td data-figure=\"{name}\" data-value=\"{json}\">{shown}</td></tr>"
                );
            }
            _ => {}
        }
    }
    text.push_str("</tbody></table></div></details>\n");
    text
}
