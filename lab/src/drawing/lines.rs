//! Lines over a quantity that is measured at a few places.

use std::fmt::Write;

use super::{drawing, COLOURS, WIDTH};
use program::markup::escaped;

const HEIGHT: f64 = 420.0;
/// Left, right, top, bottom.
const MARGIN: [f64; 4] = [80.0, 130.0, 40.0, 50.0];

/// A line, from its first point on.
pub struct Curve {
    /// Its name.
    pub name: String,
    /// In order.
    pub points: Vec<(f64, f64)>,
}

/// The drawing; both axes begin at 0. `across` is written below, with its largest value in its own
/// words; `up` at the side.
pub fn lines(title: &str, across: &str, up: &str, curves: &[Curve]) -> String {
    let [left, right, top, bottom] = MARGIN;
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let across_max = points().map(|(at, _)| *at).fold(1.0, f64::max);
    let up_max = points().map(|(_, value)| *value).fold(1.0, f64::max);
    let x = |at: f64| left + (WIDTH - left - right) * at / across_max;
    let y = |value: f64| HEIGHT - bottom - (HEIGHT - top - bottom) * value / up_max;
    let mut content = String::new();
    let mut line =
        |what: std::fmt::Arguments<'_>| content.write_fmt(what).expect("a string takes everything");
    line(format_args!(
        "<path d=\"M{left} {top}V{base}H{end}\" stroke=\"black\" fill=\"none\"/>\n<text x=\"{left}\" y=\"{below}\">{}</text>\n\
         <text x=\"5\" y=\"{top}\">{up_max:.0}</text>\n<text x=\"5\" y=\"{}\">{}</text>\n",
        escaped(across),
        top + 16.0,
        escaped(up),
        base = HEIGHT - bottom,
        end = WIDTH - right,
        below = HEIGHT - 15.0,
    ));
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let places: Vec<String> =
            curve.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        line(format_args!("<polyline points=\"{}\" stroke=\"{colour}\" fill=\"none\"/>\n", places.join(" ")));
        for (at, value) in &curve.points {
            line(format_args!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>\n",
                x(*at),
                y(*value)
            ));
        }
        line(format_args!(
            "<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>\n",
            WIDTH - right + 15.0,
            top + 16.0 * index as f64,
            escaped(&curve.name)
        ));
    }
    drawing(title, HEIGHT, &content)
}
