//! The command line of `uzswap-lab bench store`, and its table.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use uzswap::PAGE_SIZE;

use super::store::{measure, Case, Row};
use program::pages::unit_size;

/// Arguments of `uzswap-lab bench store`.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    /// Files of raw pages, as `uzswap pages capture` writes them.
    #[arg(long, value_delimiter = ',', required = true)]
    pages: Vec<PathBuf>,
    /// Compressors.
    #[arg(long, value_delimiter = ';', value_parser = compressors, default_value = "lz4,zstd,t16")]
    compressor: Vec<Names>,
    /// Units a call and a request, 1 to 8.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=8), default_value = "1,8")]
    batch: Vec<u8>,
    /// Bytes compressed as one: 4K, 8K, 16K, 32K or 64K.
    #[arg(long, value_delimiter = ',', value_parser = unit_size, default_value = "4K")]
    unit: Vec<usize>,
    /// Most pages chained to one zspage of the allocator, 4 to 16.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(4..=16))]
    chain: u8,
    /// Threads at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Rounds, of which the fastest counts.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Print an array of objects.
    #[arg(long)]
    json: bool,
}

/// Names of compressors. A comma separates two, but for one in front of a `key=value`, which is a
/// parameter's own.
#[derive(Debug, Clone)]
struct Names(Vec<String>);

fn compressors(text: &str) -> Result<Names, String> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split(',') {
        match names.last_mut() {
            Some(last) if part.contains('=') && !part.contains(':') => {
                last.push(',');
                last.push_str(part);
            }
            _ => names.push(part.to_owned()),
        }
    }
    let registry = uzswap::registry();
    for name in &names {
        registry.find(name).map_err(|error| error.to_string())?;
    }
    Ok(Names(names))
}

impl StoreArgs {
    pub fn run(&self) -> Result<()> {
        let registry = uzswap::registry();
        let mut out = std::io::stdout().lock();
        let progress = std::io::stderr().is_terminal();
        let mut rows = Vec::new();
        for path in &self.pages {
            let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
            let (pages, rest) = bytes.as_chunks::<PAGE_SIZE>();
            let whole = !pages.is_empty() && rest.is_empty();
            ensure!(whole, "{}: {} bytes are not whole pages", path.display(), bytes.len());
            let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            for name in self.compressor.iter().flat_map(|names| &names.0) {
                for &batch in &self.batch {
                    for &unit_size in &self.unit {
                        if progress {
                            eprint!("\r{file} {name} batch {batch} unit {unit_size} ...\x1b[K\r");
                        }
                        let row = measure(&Case {
                            file: &file,
                            pages,
                            algorithm: registry.find(name)?,
                            batch: batch.into(),
                            unit_size,
                            chain: self.chain.into(),
                            threads: self.threads.into(),
                            rounds: self.rounds.into(),
                        })?;
                        if !self.json {
                            if rows.is_empty() {
                                print(&mut out, &row, |(name, ..)| name)?;
                            }
                            print(&mut out, &row, |(_, value, _)| value)?;
                        }
                        rows.push(row);
                    }
                }
            }
        }
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        }
        if rows.iter().any(|row| row.emulated) {
            eprintln!("Figures of compressors on an emulated device say nothing of the device's own speed.");
        }
        Ok(())
    }
}

/// The row's columns in order: name, value, and whether the value is a text.
fn columns(row: &Row) -> [Column; 16] {
    let whole = |value: f64| format!("{value:.0}");
    let fine = |value: f64| format!("{value:.3}");
    [
        ("file", row.file.clone(), true),
        ("compressor", row.compressor.clone(), true),
        ("batch", row.batch.to_string(), false),
        ("unit", row.unit.to_string(), false),
        ("threads", row.threads.to_string(), false),
        ("pages", row.pages.to_string(), false),
        ("ratio", fine(row.ratio), false),
        ("ratio_with_overhead", fine(row.ratio_with_overhead), false),
        ("compress_ns_page", whole(row.compress_ns_page), false),
        ("decompress_ns_page", whole(row.decompress_ns_page), false),
        ("store_ns_page", whole(row.store_ns_page), false),
        ("load_ns_page", whole(row.load_ns_page), false),
        ("store_p50_ns_page", whole(row.store_p50_ns_page), false),
        ("store_p99_ns_page", whole(row.store_p99_ns_page), false),
        ("metadata_bytes_page", format!("{:.1}", row.metadata_bytes_page), false),
        ("zsmalloc_waste_percent", format!("{:.2}", row.zsmalloc_waste_percent), false),
    ]
}

type Column = (&'static str, String, bool);

/// Prints a line of the table: of each column what `cell` takes.
fn print(out: &mut impl Write, row: &Row, cell: fn(&Column) -> &str) -> std::io::Result<()> {
    for column in &columns(row) {
        let (name, _, is_text) = column;
        let cell = cell(column);
        match is_text {
            true => write!(out, "{cell:<14} ")?,
            false => write!(out, "{cell:>width$} ", width = name.len())?,
        }
    }
    writeln!(out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use uzswap::Page;

    use super::*;

    #[test]
    fn names_with_parameters_stay_whole() {
        let names = |text| compressors(text).map(|names| names.0);
        assert_eq!(names("lz4,zstd:3,none").unwrap(), ["lz4", "zstd:3", "none"]);
        assert!(names("lz4,zzz").unwrap_err().contains("unknown compressor \"zzz\""));
        let emulated = "deflate-iaa:devices=1,queues=1";
        assert_eq!(names(&format!("lz4,{emulated}")).unwrap(), ["lz4", emulated]);
    }

    #[test]
    fn a_small_corpus_comes_back_and_its_row_is_json() {
        let pages: Vec<Page> = (0..64u32)
            .map(|n| std::array::from_fn(|at| if at % 4 == 0 { (n + at as u32 / 64) as u8 } else { 0 }))
            .collect();
        for (batch, unit_size, threads) in [(8, 4096, 1), (1, 4096, 2), (3, 16384, 1), (2, 65536, 2)] {
            let row = measure(&Case {
                file: "a \"corpus\"",
                pages: &pages,
                algorithm: uzswap::registry().find("lz4").unwrap(),
                batch,
                unit_size,
                chain: 16,
                threads,
                rounds: 2,
            })
            .unwrap();
            assert_eq!((row.pages, row.batch, row.unit, row.threads), (64, batch, unit_size, threads));
            assert!(row.ratio > 2.0 && row.ratio_with_overhead < row.ratio);
            assert!(row.store_ns_page > 0.0 && row.store_p99_ns_page >= row.store_p50_ns_page);
            let json = serde_json::to_value(&row).unwrap();
            assert_eq!((&json["file"], &json["batch"]), (&"a \"corpus\"".into(), &batch.into()));
            assert_eq!((json.as_object().unwrap().len(), &json["emulated"]), (17, &false.into()));
        }
    }

    #[test]
    fn too_few_pages_are_told() {
        let pages = [[1; PAGE_SIZE]; 8];
        let algorithm = uzswap::registry().find("none").unwrap();
        let case = Case {
            file: "few",
            pages: &pages,
            algorithm,
            batch: 8,
            unit_size: 4096,
            chain: 16,
            threads: 1,
            rounds: 1,
        };
        assert!(measure(&case).unwrap_err().to_string().contains("8 pages are too few"));
    }
}
