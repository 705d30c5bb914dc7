//! Tables for people: columns as wide as needed.

use std::fmt;

pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(headings: &[&str]) -> Self {
        Table { rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()] }
    }

    /// Adds a row with a cell for each heading.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.rows[0].len());
        self.rows.push(cells.into());
    }

    /// Whether no row was added.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let of_column = |column: usize| self.rows.iter().map(move |row| row[column].as_str());
        let widths: Vec<usize> = (0..columns)
            .map(|column| of_column(column).map(|cell| cell.chars().count()).max().unwrap_or(0))
            .collect();
        let is_number = |cell: &str| cell.starts_with(|first: char| first.is_ascii_digit() || first == '-');
        let numeric: Vec<bool> =
            (0..columns).map(|column| of_column(column).skip(1).all(is_number)).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                line += &if numeric[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
                line += "  ";
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A value, or a dash for `None`.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right() {
        let mut table = Table::new(&["NAME", "SIZE", "NOTE"]);
        assert!(table.is_empty());
        table.row(["wq1.0".into(), "128".into(), "a".into()]);
        table.row(["wq11.0".into(), "7".into(), String::new()]);
        assert_eq!(table.to_string(), "NAME    SIZE  NOTE\nwq1.0    128  a\nwq11.0     7\n");
        assert_eq!((or_dash(Some(3)), or_dash(None::<u32>)), ("3".to_owned(), "-".to_owned()));
    }
}
