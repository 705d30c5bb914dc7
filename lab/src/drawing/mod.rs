//! SVG drawings of measurements: bars, and lines over a quantity.

mod bars;
mod lines;

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

use program::markup::escaped;

pub use bars::Bars;
pub use lines::{lines, Curve};

const WIDTH: f64 = 720.0;

/// What is bare, or a floor.
pub const GREY: &str = "#7f7f7f";
/// What is this program's.
pub const RED: &str = "#d62728";
/// What is the kernel's.
pub const BLUE: &str = "#1f77b4";
/// As many as are needed beside each other.
pub const COLOURS: [&str; 8] = [RED, GREY, "#bcbd22", "#17becf", BLUE, "#ff7f0e", "#9467bd", "#2ca02c"];

/// Opens a drawing's file.
///
/// # Errors
/// When it cannot be written.
pub fn create(path: &Path) -> Result<File> {
    File::create(path)
        .with_context(|| format!("cannot write {}: choose another file with --plot", path.display()))
}

/// A whole drawing of a content.
fn drawing(title: &str, height: f64, content: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"20\">{}</text>\n{content}</svg>\n",
        escaped(title)
    )
}
