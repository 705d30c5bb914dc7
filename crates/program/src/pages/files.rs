//! `uzswap pages compress` and `decompress`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use uzswap::pages::{self, Totals};
use uzswap::{AutoCounts, AutoKind, PAGE_SIZE};

use super::unit_size;

/// Arguments of `uzswap pages compress` and `decompress`.
#[derive(Debug, clap::Args)]
pub struct FilesArgs {
    /// The compressor, with its parameter after a colon.
    #[arg(long)]
    compressor: String,
    /// Bytes compressed as one: 4K, 8K, 16K, 32K or 64K.
    #[arg(long, value_parser = unit_size, default_value = "4K")]
    unit: usize,
    /// Where from.
    input: PathBuf,
    /// Where to; written anew.
    output: PathBuf,
}

impl FilesArgs {
    fn open(&self) -> Result<(BufReader<File>, BufWriter<File>)> {
        let input = File::open(&self.input).with_context(|| self.input.display().to_string())?;
        let output = File::create(&self.output).with_context(|| self.output.display().to_string())?;
        Ok((BufReader::with_capacity(1 << 20, input), BufWriter::with_capacity(1 << 20, output)))
    }

    pub fn compress(&self) -> Result<()> {
        let algorithm = uzswap::registry().find(&self.compressor)?;
        let (mut input, mut output) = self.open()?;
        let totals = pages::compress(&*algorithm, self.unit, &mut input, &mut output)?;
        output.flush()?;
        self.tell(totals);
        tell_kinds(&uzswap::auto_counts());
        Ok(())
    }

    pub fn decompress(&self) -> Result<()> {
        let algorithm = uzswap::registry().find(&self.compressor)?;
        let (mut input, mut output) = self.open()?;
        let totals = pages::decompress(&*algorithm, self.unit, &mut input, &mut output)?;
        output.flush()?;
        self.tell(totals);
        Ok(())
    }

    fn tell(&self, totals: Totals) {
        let bytes = totals.pages * PAGE_SIZE as u64;
        println!(
            "{} pages in {} units, {} of them as they are; {} bytes are {} bytes of records, ratio {:.3}",
            totals.pages,
            totals.units,
            totals.raw_units,
            bytes,
            totals.object_bytes,
            bytes as f64 / totals.object_bytes.max(1) as f64
        );
    }
}

/// What `auto` made of the pages, when it was asked: a line of kinds and pages.
fn tell_kinds(counts: &AutoCounts) {
    let kinds = AutoKind::ALL.into_iter().map(|kind| (kind.name(), counts.of(kind)));
    let all: Vec<String> = kinds
        .chain([("given up", counts.refused)])
        .filter(|(_, pages)| *pages > 0)
        .map(|(name, pages)| format!("{name} {pages}"))
        .collect();
    if !all.is_empty() {
        println!("pages by form: {}", all.join(", "));
    }
}
