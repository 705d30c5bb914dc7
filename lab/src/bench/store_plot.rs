//! The rows of `uzswap-lab bench store` as bars.

use super::store::Row;
use crate::drawing::{Bars, COLOURS};

/// The drawing: time to store and to load a page, and the ratio; a colour for each compressor.
pub fn svg(rows: &[Row]) -> String {
    let mut bars = Bars::new("bench store");
    let mut compressors: Vec<&str> = Vec::new();
    for row in rows {
        if !compressors.contains(&row.compressor.as_str()) {
            compressors.push(&row.compressor);
        }
    }
    let is_several = |of: fn(&Row) -> String| rows.iter().any(|row| of(row) != of(&rows[0]));
    let (files, units) = (is_several(|row| row.file.clone()), is_several(|row| row.unit.to_string()));
    type Figure = (&'static str, fn(&Row) -> f64, fn(f64) -> String);
    let figures: [Figure; 3] = [
        ("store, ns a page: less is better", |row| row.store_ns_page, |value| format!("{value:.0}")),
        ("load, ns a page: less is better", |row| row.load_ns_page, |value| format!("{value:.0}")),
        (
            "ratio, overhead included: more is better",
            |row| row.ratio_with_overhead,
            |value| format!("{value:.3}"),
        ),
    ];
    for (heading, of, shown) in figures {
        bars.section(heading);
        for row in rows {
            let mut name = format!("{}, batch {}", row.compressor, row.batch);
            if units {
                name += &format!(", {}K", row.unit / 1024);
            }
            if files {
                name = format!("{}: {name}", row.file);
            }
            let colour = compressors.iter().position(|name| *name == row.compressor).unwrap_or(0);
            bars.bar(&name, of(row), &shown(of(row)), COLOURS[colour % COLOURS.len()]);
        }
    }
    bars.svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_bar_for_each_figure() {
        let row = |compressor: &str, store_ns_page| Row {
            file: "heap.pages".into(),
            compressor: compressor.into(),
            batch: 8,
            unit: 4096,
            threads: 1,
            pages: 64,
            ratio: 3.0,
            ratio_with_overhead: 2.5,
            compress_ns_page: 1.0,
            decompress_ns_page: 1.0,
            store_ns_page,
            load_ns_page: 300.0,
            store_p50_ns_page: 1.0,
            store_p99_ns_page: 1.0,
            metadata_bytes_page: 1.0,
            zsmalloc_waste_percent: 1.0,
            emulated: false,
        };
        let svg = svg(&[row("auto", 1234.4), row("lz4", 2000.0)]);
        assert_eq!(svg.matches("<rect").count(), 1 + 2 * 3);
        assert!(
            svg.contains(">auto, batch 8<") && svg.contains(">1234<") && svg.contains(">2.500<"),
            "{svg}"
        );
        assert!(super::svg(&[]).ends_with("</svg>\n"));
    }
}
