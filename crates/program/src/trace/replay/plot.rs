//! Pages brought in over memory, as an SVG drawing: a line for each policy.

use std::fmt::Write;

use super::Replay;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
/// Left, right, top, bottom.
const MARGIN: [f64; 4] = [80.0, 130.0, 40.0, 50.0];
const COLOURS: [&str; 8] =
    ["#d62728", "#7f7f7f", "#bcbd22", "#17becf", "#1f77b4", "#ff7f0e", "#9467bd", "#2ca02c"];

/// The drawing.
pub fn svg(replay: &Replay) -> String {
    let [left, right, top, bottom] = MARGIN;
    let memory_max = replay.rows.iter().map(|row| row.memory_pages).max().unwrap_or(1).max(1) as f64;
    let in_max = replay.rows.iter().map(|row| row.pages_in).max().unwrap_or(1).max(1) as f64;
    let x = |pages: u64| left + (WIDTH - left - right) * pages as f64 / memory_max;
    let y = |pages: u64| HEIGHT - bottom - (HEIGHT - top - bottom) * pages as f64 / in_max;
    let mut policies: Vec<&str> = Vec::new();
    for row in &replay.rows {
        if !policies.contains(&row.policy.as_str()) {
            policies.push(&row.policy);
        }
    }
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut line = |what: std::fmt::Arguments<'_>| text.write_fmt(what).expect("a string takes everything");
    line(format_args!("<text x=\"{left}\" y=\"20\">{}</text>\n", escaped(&replay.command)));
    line(format_args!(
        "<path d=\"M{left} {top}V{base}H{end}\" stroke=\"black\" fill=\"none\"/>\n",
        base = HEIGHT - bottom,
        end = WIDTH - right
    ));
    line(format_args!(
        "<text x=\"{left}\" y=\"{}\">memory, MiB: 0 to {:.0}</text>\n",
        HEIGHT - 15.0,
        memory_max / 256.0
    ));
    line(format_args!(
        "<text x=\"5\" y=\"{top}\">{in_max:.0}</text>\n<text x=\"5\" y=\"{}\">pages in</text>\n",
        top + 16.0
    ));
    for (index, policy) in policies.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut points: Vec<(u64, u64)> = replay
            .rows
            .iter()
            .filter(|row| row.policy == *policy)
            .map(|row| (row.memory_pages, row.pages_in))
            .collect();
        points.sort_unstable();
        let places: Vec<String> = points.iter().map(|(m, n)| format!("{:.1},{:.1}", x(*m), y(*n))).collect();
        line(format_args!("<polyline points=\"{}\" stroke=\"{colour}\" fill=\"none\"/>\n", places.join(" ")));
        for (memory, pages_in) in &points {
            line(format_args!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>\n",
                x(*memory),
                y(*pages_in)
            ));
        }
        let at = top + 16.0 * index as f64;
        line(format_args!(
            "<text x=\"{}\" y=\"{at}\" fill=\"{colour}\">{policy}</text>\n",
            WIDTH - right + 15.0
        ));
    }
    text += "</svg>\n";
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
