//! The compiled part of the Python package `uzswap`; `bindings/python/uzswap/__init__.py` is the
//! interface for users.

mod arrays;
mod handler;
mod pages;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyOSError, PyPermissionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use uzswap::regions::{OpenError, Space, SpaceError, SwapError};

/// A wrong argument is a ValueError, a system error an OSError.
fn raised(error: SpaceError) -> PyErr {
    let text = error.to_string();
    match error {
        SpaceError::Ram(_)
        | SpaceError::Compressor(_)
        | SpaceError::Swap(SwapError::Size { .. } | SwapError::InMemory { .. }) => {
            PyValueError::new_err(text)
        }
        SpaceError::Userfaultfd(OpenError::NotPermitted) => PyPermissionError::new_err(text),
        _ => PyOSError::new_err(text),
    }
}

/// The compressor of this process's space.
static COMPRESSOR: Mutex<String> = Mutex::new(String::new());

/// Starts the space with a budget of `ram` bytes, or changes the budget if it was started. Without
/// a compressor it uses the current one, or `auto`.
///
/// Python's lock is held throughout, so that no fork of Python's copies a half-made space.
#[pyfunction]
#[pyo3(signature = (ram, compressor, swap=None, swap_directory=None))]
fn start(
    ram: u64,
    compressor: Option<&str>,
    swap: Option<u64>,
    swap_directory: Option<PathBuf>,
) -> PyResult<()> {
    let mut kept = COMPRESSOR.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(space) = Space::current() else {
        let name = compressor.unwrap_or(uzswap::DEFAULT_COMPRESSOR);
        arrays::hold_over_forks()?;
        let mut builder = Space::builder().ram(ram).compressor(name);
        if let Some(bytes) = swap {
            builder = builder.swap(bytes);
        }
        if let Some(directory) = &swap_directory {
            builder = builder.swap_directory(directory);
        }
        builder.start().map_err(raised)?;
        name.clone_into(&mut kept);
        return Ok(());
    };
    if swap.is_some_and(|bytes| bytes != space.swap_bytes()) {
        return Err(PyValueError::new_err(match space.swap_bytes() {
            0 => "this process's arrays have no swap file: the first block decides".to_owned(),
            bytes => format!(
                "this process's arrays have a swap file of {} MiB already: the first block decides",
                bytes >> 20
            ),
        }));
    }
    match compressor {
        Some(other) if other != *kept => Err(PyValueError::new_err(format!(
            "this process's arrays are compressed by {:?} already, so {other:?} is refused",
            *kept
        ))),
        _ => space.set_ram(ram).map_err(raised),
    }
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
        ("disk_pages", stats.disk_pages),
        ("disk_bytes", stats.disk_bytes),
        ("pages_written", stats.pages_written),
        ("disk_faults", stats.disk_faults),
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
    module.add_function(wrap_pyfunction!(pages::sizes, module)?)?;
    module.add_function(wrap_pyfunction!(pages::compressors, module)?)?;
    module.add_function(wrap_pyfunction!(handler::handler, module)?)?;
    module.add_function(wrap_pyfunction!(handler::set_handler, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("RAM_BYTES_MIN", uzswap::regions::RAM_BYTES_MIN)?;
    module.add("PAGE_SIZE", uzswap::PAGE_SIZE)
}
