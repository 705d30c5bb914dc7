//! The compiled part of the Python package `uzswap`: `python/uzswap/__init__.py` is what users see.

mod arrays;
mod pages;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use uzswap::regions::{Space, SpaceError};

/// A wrong argument is a ValueError, what the system refuses an OSError.
fn raised(error: SpaceError) -> PyErr {
    match error {
        SpaceError::Ram(_) | SpaceError::Folio(_) | SpaceError::Compressor(_) => {
            PyValueError::new_err(error.to_string())
        }
        _ => PyOSError::new_err(error.to_string()),
    }
}

/// Starts the space with a budget of `ram` bytes, or changes the budget if it was started.
#[pyfunction]
fn start(py: Python<'_>, ram: u64, compressor: &str) -> PyResult<()> {
    let compressor = compressor.to_owned();
    py.detach(move || match Space::current() {
        Some(space) => space.set_ram(ram),
        None => Space::builder().ram(ram).compressor(&compressor).start().map(drop),
    })
    .map_err(raised)
}

/// Figures of all arrays together; all zero before the start.
#[pyfunction]
fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let stats = Space::current().map(|space| space.stats()).unwrap_or_default();
    let dict = PyDict::new(py);
    for (name, value) in [
        ("ram_bytes", stats.ram_bytes),
        ("used_bytes", stats.used_bytes),
        ("region_bytes", stats.region_bytes),
        ("regions", stats.regions),
        ("stored_pages", stats.stored_pages),
        ("pool_bytes", stats.pool_bytes),
        ("staged_bytes", stats.staged_bytes),
        ("pages_out", stats.pages_out),
        ("pages_in", stats.pages_in),
        ("refaults", stats.refaults),
        ("zero_filled", stats.zero_filled),
        ("faults", stats.faults),
        ("fault_ns", stats.fault_ns),
        ("incompressible", stats.incompressible),
        ("over_budget", stats.over_budget),
    ] {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

/// The module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(start, module)?)?;
    module.add_function(wrap_pyfunction!(stats, module)?)?;
    module.add_function(wrap_pyfunction!(pages::compress, module)?)?;
    module.add_function(wrap_pyfunction!(pages::decompress, module)?)?;
    module.add_function(wrap_pyfunction!(pages::compressors, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::handler, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::set_handler, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::set_smallest, module)?)?;
    module.add("PAGE_SIZE", uzswap::PAGE_SIZE)
}
