//! Bars from the left, in sections that have a scale each.

use std::fmt::Write;

use super::{drawing, WIDTH};
use program::markup::escaped;

/// From the left, of names; from the right, of values.
const LEFT: f64 = 190.0;
const RIGHT: f64 = 90.0;
const STEP: f64 = 26.0;

struct Bar {
    name: String,
    value: f64,
    shown: String,
    colour: &'static str,
}

/// A drawing of bars.
pub struct Bars {
    title: String,
    sections: Vec<(String, Vec<Bar>)>,
}

impl Bars {
    /// One without bars.
    pub fn new(title: &str) -> Self {
        Bars { title: title.to_owned(), sections: Vec::new() }
    }

    /// What follows has a scale of its own, under a heading; an empty one takes no room.
    pub fn section(&mut self, heading: &str) {
        self.sections.push((heading.to_owned(), Vec::new()));
    }

    /// A bar, and its value as it is written behind it.
    pub fn bar(&mut self, name: &str, value: f64, shown: &str, colour: &'static str) {
        if self.sections.is_empty() {
            self.section("");
        }
        let bar = Bar { name: name.to_owned(), value, shown: shown.to_owned(), colour };
        self.sections.last_mut().expect("made above").1.push(bar);
    }

    /// The drawing.
    pub fn svg(&self) -> String {
        let (mut content, mut y) = (String::new(), 34.0);
        for (heading, bars) in self.sections.iter().filter(|(_, bars)| !bars.is_empty()) {
            if !heading.is_empty() {
                let _ = writeln!(
                    content,
                    "<text x=\"10\" y=\"{:.0}\" font-weight=\"bold\">{}</text>",
                    y + 14.0,
                    escaped(heading)
                );
                y += STEP;
            }
            let longest =
                bars.iter().map(|bar| bar.value).filter(|value| value.is_finite()).fold(1e-9, f64::max);
            for Bar { name, value, shown, colour } in bars {
                let share = if value.is_finite() { (value / longest).max(0.0) } else { 0.0 };
                let width = (WIDTH - LEFT - RIGHT) * share;
                let _ = writeln!(
                    content,
                    "<text x=\"10\" y=\"{at:.0}\">{}</text><rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"18\" \
                     fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{at:.0}\">{}</text>",
                    escaped(name),
                    LEFT + width + 6.0,
                    escaped(shown),
                    at = y + 14.0,
                );
                y += STEP;
            }
        }
        drawing(&self.title, y + 6.0, &content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_has_its_own_scale() {
        let mut bars = Bars::new("a <b> & c");
        bars.bar("one", 1.0, "1 s", super::super::RED);
        bars.section("ratio");
        bars.bar("two", 500.0, "500", super::super::BLUE);
        bars.bar("half", 250.0, "250", super::super::BLUE);
        bars.bar("none", f64::NAN, "-", super::super::BLUE);
        bars.section("nothing");
        let svg = bars.svg();
        let widths: Vec<&str> =
            svg.split("width=\"").skip(2).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(widths, ["440.0", "440.0", "220.0", "0.0"], "{svg}");
        assert!(svg.contains("a &lt;b&gt; &amp; c") && svg.ends_with("</svg>\n") && !svg.contains("nothing"));
    }
}
