//! Single pages and folios through a compressor.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use uzswap::PAGE_SIZE;

/// Bytes compressed as one, at most.
const UNIT_MAX: usize = 64 << 10;

fn wrong(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn check(len: usize) -> PyResult<()> {
    match len.is_multiple_of(PAGE_SIZE) && (PAGE_SIZE..=UNIT_MAX).contains(&len) {
        true => Ok(()),
        false => Err(wrong(format_args!("{len} bytes are not 1 to 16 pages of {PAGE_SIZE}"))),
    }
}

/// Compresses one unit.
#[pyfunction]
pub fn compress<'py>(py: Python<'py>, data: &[u8], compressor: &str) -> PyResult<Bound<'py, PyBytes>> {
    check(data.len())?;
    let algorithm = uzswap::registry().find(compressor).map_err(wrong)?;
    let mut record = Vec::new();
    uzswap::pages::compress(&*algorithm, data.len(), &mut &*data, &mut record).map_err(wrong)?;
    // A record is a length and the object.
    Ok(PyBytes::new(py, &record[4..]))
}

/// Decompresses one unit of `length` bytes.
#[pyfunction]
pub fn decompress<'py>(
    py: Python<'py>,
    data: &[u8],
    length: usize,
    compressor: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    check(length)?;
    let algorithm = uzswap::registry().find(compressor).map_err(wrong)?;
    let len = u32::try_from(data.len()).map_err(wrong)?;
    let record = [&len.to_le_bytes(), data].concat();
    let mut unit = Vec::new();
    uzswap::pages::decompress(&*algorithm, length, &mut &*record, &mut unit).map_err(wrong)?;
    match unit.len() == length {
        true => Ok(PyBytes::new(py, &unit)),
        false => Err(wrong(format_args!("the object is one of {} bytes, not {length}", unit.len()))),
    }
}

/// What compressors there are, as they are to be written.
#[pyfunction]
pub fn compressors() -> Vec<String> {
    uzswap::registry().usages().map(str::to_owned).collect()
}
