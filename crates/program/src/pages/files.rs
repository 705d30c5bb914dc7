//! `uzswap pages compress` and `decompress`.

use std::fs::{File, Metadata};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use uzswap::pages::{PagesError, Totals};
use uzswap::{Algorithm, PAGE_SIZE};

use super::unit_size;

/// Arguments of `uzswap pages compress` and `decompress`.
#[derive(Debug, clap::Args)]
pub struct FilesArgs {
    /// The compressor, with its parameter after a colon.
    #[arg(long, value_name = "NAME", default_value = uzswap::DEFAULT_COMPRESSOR)]
    compressor: String,
    /// Bytes compressed as one: 4K, 8K, 16K, 32K or 64K.
    #[arg(long, value_name = "SIZE", value_parser = unit_size, default_value = "4K")]
    unit: usize,
    /// Where from.
    input: PathBuf,
    /// Where to; rewritten.
    output: PathBuf,
}

/// `compress` or `decompress` of `uzswap::pages`.
type Work = fn(&dyn Algorithm, usize, &mut dyn Read, &mut dyn Write) -> Result<Totals, PagesError>;

impl FilesArgs {
    fn open(&self) -> Result<(BufReader<File>, BufWriter<File>)> {
        let (of_input, of_output) =
            (|| self.input.display().to_string(), || self.output.display().to_string());
        let input = File::open(&self.input).with_context(of_input)?;
        let metadata = input.metadata().with_context(of_input)?;
        ensure!(!metadata.is_dir(), "{} is a directory", of_input());
        // Opening the output truncates it, and with it an input that is the same file.
        let is_same = |other: Metadata| (other.dev(), other.ino()) == (metadata.dev(), metadata.ino());
        let same = metadata.is_file() && self.output.metadata().is_ok_and(is_same);
        ensure!(!same, "{} and {} are the same file", of_input(), of_output());
        let output = File::create(&self.output).with_context(of_output)?;
        Ok((BufReader::with_capacity(1 << 20, input), BufWriter::with_capacity(1 << 20, output)))
    }

    pub fn run(&self, work: Work) -> Result<()> {
        let algorithm = uzswap::registry().find(&self.compressor)?;
        let (mut input, mut output) = self.open()?;
        let totals = work(&*algorithm, self.unit, &mut input, &mut output)
            .and_then(|totals| output.flush().map(|()| totals).map_err(Into::into))
            .with_context(|| format!("{} to {}", self.input.display(), self.output.display()))?;
        self.tell(&*algorithm, totals);
        Ok(())
    }

    fn tell(&self, algorithm: &dyn Algorithm, totals: Totals) {
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
        let forms = algorithm.forms().iter().zip(totals.forms).filter(|(_, pages)| *pages > 0);
        let forms: Vec<String> = forms.map(|(form, pages)| format!("{form} {pages}")).collect();
        if !forms.is_empty() {
            println!("pages by form: {}", forms.join(", "));
        }
    }
}
