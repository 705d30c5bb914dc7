//! Sizes as formulas: `min(ram / 2, 4096)`, in MiB, as zram-generator has them.
//!
//! ```text
//! sum     = product { ("+" | "-") product }
//! product = atom { ("*" | "/") atom }
//! atom    = number | name | ("min" | "max") "(" sum { "," sum } ")" | "(" sum ")" | "-" atom
//! ```

use std::fmt;

/// Deepest nesting of parentheses and signs.
const DEPTH_MAX: u32 = 50;

/// Why a formula has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadFormula {
    formula: String,
    reason: String,
}

impl fmt::Display for BadFormula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no size: {}; for example min(ram / 2, 4096)", self.formula, self.reason)
    }
}

impl std::error::Error for BadFormula {}

/// The value of a formula; `names` are what it may name.
///
/// # Errors
/// When it is no formula, names something else, or its value is no number.
pub fn value(formula: &str, names: &[(&str, f64)]) -> Result<f64, BadFormula> {
    let mut parser = Parser { rest: formula.trim(), names, depth: 0 };
    let result = parser.sum().and_then(|value| match (parser.rest, value.is_finite()) {
        ("", true) => Ok(value),
        ("", false) => Err("its value is no number".to_owned()),
        (rest, _) => Err(format!("{rest:?} is left over")),
    });
    result.map_err(|reason| BadFormula { formula: formula.to_owned(), reason })
}

struct Parser<'a> {
    rest: &'a str,
    names: &'a [(&'a str, f64)],
    depth: u32,
}

impl<'a> Parser<'a> {
    fn take(&mut self, symbol: char) -> bool {
        match self.rest.strip_prefix(symbol) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|symbol| !is_part(symbol)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value += self.product()?;
            } else if self.take('-') {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.atom()?;
        loop {
            if self.take('*') {
                value *= self.atom()?;
            } else if self.take('/') {
                value /= self.atom()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn atom(&mut self) -> Result<f64, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("it is nested more than {DEPTH_MAX} deep"));
        }
        let value = self.atom_inside();
        self.depth -= 1;
        value
    }

    fn atom_inside(&mut self) -> Result<f64, String> {
        if self.take('-') {
            return Ok(-self.atom()?);
        }
        if self.take('(') {
            let value = self.sum()?;
            return if self.take(')') {
                Ok(value)
            } else {
                Err("a closing parenthesis is missing".to_owned())
            };
        }
        if self.rest.starts_with(|symbol: char| symbol.is_ascii_digit() || symbol == '.') {
            let text = self.take_while(|symbol| symbol.is_ascii_digit() || symbol == '.');
            return text.parse().map_err(|_| format!("{text:?} is no number"));
        }
        let name = self.take_while(|symbol| symbol.is_ascii_alphanumeric() || symbol == '-' || symbol == '_');
        if let Some((_, value)) = self.names.iter().find(|(known, _)| *known == name) {
            return Ok(*value);
        }
        let choose: fn(f64, f64) -> f64 = match name {
            "min" => f64::min,
            "max" => f64::max,
            "" if self.rest.is_empty() => return Err("it ends too early".to_owned()),
            "" => return Err(format!("{:?} is unexpected", self.rest)),
            other => return Err(format!("{other:?} is unknown")),
        };
        if !self.take('(') {
            return Err(format!("{name} has no parenthesis"));
        }
        let mut value = self.sum()?;
        while self.take(',') {
            value = choose(value, self.sum()?);
        }
        if self.take(')') {
            Ok(value)
        } else {
            Err("a closing parenthesis is missing".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn formulas_have_values() {
        for (formula, expected) in [
            ("min(ram / 2, 4096)", 1000.0),
            ("max(ram/2,4096, 5000)", 5000.0),
            ("2 + 3 * 4 - 1", 13.0),
            ("-(2+3)*-2", 10.0),
            (" 8 / 2 / 2 ", 2.0),
            ("1.5*ram", 3000.0),
            ("min(7)", 7.0),
        ] {
            assert_eq!(value(formula, &[("ram", 2000.0)]), Ok(expected), "{formula}");
        }
        for (formula, reason) in [
            ("", "too early"),
            ("ram /", "too early"),
            ("1 2", "left over"),
            ("rom", "\"rom\" is unknown"),
            ("min 3", "no parenthesis"),
            ("min(1, 2", "parenthesis is missing"),
            ("1/0", "no number"),
            ("1..2", "no number"),
            ("%", "unexpected"),
        ] {
            let said = value(formula, &[("ram", 2000.0)]).unwrap_err().to_string();
            assert!(said.contains(reason), "{formula}: {said}");
        }
        assert!(value(&"(".repeat(100_000), &[]).unwrap_err().to_string().contains("nested"));
        assert!(value(&"-".repeat(100_000), &[]).unwrap_err().to_string().contains("nested"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_a_formula_or_not(text in prop_oneof!["\\PC{0,40}", "([0-9.]{1,3}|ram|min\\(|max\\(|[-+*/(),]| ){0,30}"]) {
            if let Ok(value) = value(&text, &[("ram", 2000.0)]) {
                prop_assert!(value.is_finite());
            }
        }
    }
}
