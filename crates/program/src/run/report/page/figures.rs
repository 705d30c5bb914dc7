//! Access to the report's figures by name, and their formatting.

use serde_json::Value;

use crate::markup::escaped;
use crate::size::Size;

pub struct Figures<'a>(pub &'a Value);

impl Figures<'_> {
    /// Returns a value by its dotted name.
    pub fn value(&self, name: &str) -> &Value {
        let pointer = format!("/{}", name.replace('.', "/"));
        self.0.pointer(&pointer).unwrap_or_else(|| panic!("the report has {name}"))
    }

    /// Returns a number; 0 for one that JSON cannot represent.
    pub fn number(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::Null => 0.0,
            value => value.as_f64().unwrap_or_else(|| panic!("{name} is a number")),
        }
    }

    pub fn text(&self, name: &str) -> &str {
        self.value(name).as_str().unwrap_or_else(|| panic!("{name} is a text"))
    }

    pub fn list(&self, name: &str) -> &[Value] {
        self.value(name).as_array().unwrap_or_else(|| panic!("{name} is an array"))
    }

    /// Returns a column of the series; null becomes `None`.
    pub fn column(&self, name: &str) -> Vec<Option<f64>> {
        self.list(&format!("series.{name}")).iter().map(Value::as_f64).collect()
    }

    /// Formats a figure, marked with its name and its value.
    pub fn marked(&self, name: &str, shown: &str) -> String {
        let value = escaped(&self.value(name).to_string());
        format!("<span data-figure=\"{}\" data-value=\"{value}\">{}</span>", escaped(name), escaped(shown))
    }

    pub fn size(&self, name: &str) -> String {
        self.marked(name, &size(self.number(name)))
    }

    pub fn count(&self, name: &str) -> String {
        self.marked(name, &count(self.number(name)))
    }

    pub fn seconds(&self, name: &str) -> String {
        self.marked(name, &seconds(self.number(name)))
    }

    /// Formats microseconds, marked.
    pub fn us(&self, name: &str) -> String {
        self.marked(name, &seconds(self.number(name) / 1e6))
    }
}

pub fn size(bytes: f64) -> String {
    Size::from(bytes as u64).to_string()
}

/// Formats a whole number in groups of three digits.
pub fn count(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a duration in a suitable unit, with three digits.
pub fn seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        value if value <= 0.0 => return "0 s".to_owned(),
        value if value < 1e-3 => (value * 1e6, "µs"),
        value if value < 1.0 => (value * 1e3, "ms"),
        value if value < 600.0 => (value, "s"),
        value if value < 36_000.0 => (value / 60.0, "min"),
        value => (value / 3600.0, "h"),
    };
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_for_people() {
        assert_eq!((count(999.0).as_str(), count(1_234_567.0).as_str()), ("999", "1\u{202f}234\u{202f}567"));
        let shown = [0.0, 5.94e-6, 0.000_376_8, 0.0244, 4.4, 99.96, 1200.0, 86_400.0].map(seconds);
        assert_eq!(shown, ["0 s", "5.94 µs", "377 µs", "24.4 ms", "4.40 s", "100 s", "20.0 min", "24.0 h"]);
    }

    #[test]
    fn a_figure_carries_its_name_and_value() {
        let value = serde_json::json!({"a": {"b": 1536}, "c": "<"});
        let figures = Figures(&value);
        assert_eq!(figures.size("a.b"), "<span data-figure=\"a.b\" data-value=\"1536\">1.5 KiB</span>");
        assert!(figures.marked("c", "<").contains("data-value=\"&quot;&lt;&quot;\">&lt;<"));
    }
}
