//! Escaping and axis ticks for HTML and SVG.

/// Escapes text for markup, including quoted attributes.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Markup may not contain control characters, even escaped.
            control if control.is_control() && !matches!(control, '\n' | '\t') => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// About four ticks from 0 to the first that is at least `most`, in steps of 1, 2 or 5 × 10^n.
pub fn ticks(most: f64) -> Vec<f64> {
    let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
    let power = 10f64.powf((most / 4.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| step * 5.0 >= most);
    let step = step.unwrap_or(10.0 * power);
    let count = (most / step - 1e-9).ceil().max(1.0) as usize;
    (0..=count).map(|number| number as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_texts_is_text() {
        assert_eq!(escaped("a <b> & \"c\"\x1b"), "a &lt;b&gt; &amp; &quot;c&quot;\u{fffd}");
    }

    #[test]
    fn ticks_are_round_and_reach_the_most() {
        assert_eq!(ticks(128.0), [0.0, 50.0, 100.0, 150.0]);
        assert_eq!(ticks(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.0).len(), 5 + 1);
        for most in [1e-9, 0.3, 1.0, 7.7, 999.0, 1e12, f64::NAN, f64::INFINITY] {
            let ticks = ticks(most);
            assert!((2..=7).contains(&ticks.len()), "{most}: {ticks:?}");
            assert!(!most.is_finite() || ticks[ticks.len() - 1] >= most * (1.0 - 1e-6), "{most}: {ticks:?}");
        }
    }
}
