//! The trace as a file, compressed by zstd: a line of JSON, then [raw references](Reference).

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{ensure, Context, Result};
use replacement::trace::{Reference, RAW_BYTES};
use serde::{Deserialize, Serialize};

/// A low level suffices: two thirds of a recording are repetitions, which any level finds.
const ZSTD_LEVEL: i32 = 3;
const FORMAT: &str = "uzswap trace 2";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    format: String,
    /// Pages that the recorder left in memory: references to these are missing.
    pub filter_pages: u64,
    /// The program and its arguments.
    pub command: String,
}

impl Meta {
    pub fn new(filter_pages: u64, command: String) -> Self {
        Meta { format: FORMAT.to_owned(), filter_pages, command }
    }
}

/// Writes a trace of the raw references in `source`, until it ends; returns their number.
pub fn write(path: &Path, meta: &Meta, source: &mut impl Read) -> Result<u64> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut sink = zstd::Encoder::new(BufWriter::new(file), ZSTD_LEVEL)?;
    serde_json::to_writer(&mut sink, meta).context("cannot write the trace")?;
    sink.write_all(b"\n").context("cannot write the trace")?;
    let bytes = std::io::copy(source, &mut sink).context("cannot write the trace")?;
    sink.finish().and_then(|file| file.into_inner().map_err(Into::into)).context("cannot write the trace")?;
    Ok(bytes / RAW_BYTES as u64)
}

/// Reads a trace.
///
/// # Errors
/// If the file cannot be read, or is no trace.
pub fn read(path: &Path) -> Result<(Meta, Vec<Reference>)> {
    let read = || -> Result<_> {
        let mut source = BufReader::new(zstd::Decoder::new(File::open(path)?)?);
        let mut line = String::new();
        source.read_line(&mut line)?;
        let meta: Meta = serde_json::from_str(&line).context("this is no trace of this version")?;
        ensure!(meta.format == FORMAT, "this is a trace of another version");
        let mut references = Vec::new();
        let mut raw = [0; RAW_BYTES];
        while !source.fill_buf()?.is_empty() {
            source.read_exact(&mut raw).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => anyhow::anyhow!("the trace ends inside a reference"),
                _ => error.into(),
            })?;
            references.push(Reference::from_raw(&raw).context("the trace has another program's bytes")?);
        }
        Ok((meta, references))
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_as_it_was_written_and_damage_is_an_error() {
        let path = std::env::temp_dir().join(format!("uzswap-lab-{}.trace", std::process::id()));
        let meta = Meta::new(4096, "perl concordance.pl".to_owned());
        let references = [(7, 1 << 40, 0), (8, 3, 5), (7, (1 << 40) + 1, 0)]
            .map(|(process, page, discarded)| Reference { process, page, discarded });
        let raw = references.map(|reference| reference.to_raw()).concat();
        assert_eq!(write(&path, &meta, &mut &raw[..]).unwrap(), 3);
        assert_eq!(read(&path).unwrap(), (meta.clone(), references.to_vec()));

        let is_refused = |why: &str| {
            let error = format!("{:#}", read(&path).unwrap_err());
            assert!(error.contains(why), "{error}");
        };
        write(&path, &meta, &mut &raw[..RAW_BYTES + 1]).unwrap();
        is_refused("inside a reference");
        write(&path, &meta, &mut &[0xff; RAW_BYTES][..]).unwrap();
        is_refused("another program's bytes");
        write(&path, &Meta { format: "uzswap trace 3".to_owned(), ..meta }, &mut &raw[..]).unwrap();
        is_refused("another version");
        std::fs::write(&path, b"uzswap trace 1\n").unwrap();
        is_refused("cannot read");
        std::fs::remove_file(&path).unwrap();
    }
}
