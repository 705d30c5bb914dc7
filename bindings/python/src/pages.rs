//! Pages and folios through a compressor.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use uzswap::PAGE_SIZE;

/// Most bytes compressed as one.
const UNIT_MAX: usize = 64 << 10;
/// Bytes of a record's length.
const LENGTH: usize = size_of::<u32>();

fn wrong(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn check(len: usize) -> PyResult<()> {
    match len.is_multiple_of(PAGE_SIZE) && (PAGE_SIZE..=UNIT_MAX).contains(&len) {
        true => Ok(()),
        false => Err(wrong(format_args!("{len} bytes are not 1 to 16 pages of {PAGE_SIZE}"))),
    }
}

/// Records of all units.
fn records(py: Python<'_>, data: &[u8], unit: usize, compressor: &str) -> PyResult<Vec<u8>> {
    check(unit)?;
    let algorithm = uzswap::registry().find(compressor).map_err(wrong)?;
    let mut records = Vec::new();
    // Its memory is Python's, and bytes are never changed.
    py.detach(|| uzswap::pages::compress(&*algorithm, unit, &mut &*data, &mut records)).map_err(wrong)?;
    Ok(records)
}

/// Compresses one unit.
#[pyfunction]
pub fn compress<'py>(py: Python<'py>, data: &[u8], compressor: &str) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &records(py, data, data.len(), compressor)?[LENGTH..]))
}

/// The compressed bytes of each unit of `unit` bytes.
#[pyfunction]
pub fn sizes(py: Python<'_>, data: &[u8], unit: usize, compressor: &str) -> PyResult<Vec<u32>> {
    let records = records(py, data, unit, compressor)?;
    let mut rest = &records[..];
    let mut sizes = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<LENGTH>() {
        let length = u32::from_le_bytes(*length);
        sizes.push(length);
        rest = &behind[length as usize..];
    }
    Ok(sizes)
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

/// The names of the available compressors.
#[pyfunction]
pub fn compressors() -> Vec<String> {
    uzswap::registry().usages().map(str::to_owned).collect()
}
