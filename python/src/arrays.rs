//! numpy's memory: allocation functions (NEP 49) that put large arrays into regions and leave small ones to the C library.
//!
//! The structures are those of numpy's `ndarraytypes.h`, version 1, unchanged since numpy 1.22.

use std::collections::HashMap;
use std::ffi::{c_char, c_void, CStr};
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use uzswap::regions::{Region, Space};

#[repr(C)]
struct Allocator {
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

#[repr(C)]
struct Handler {
    name: [u8; 127],
    version: u8,
    allocator: Allocator,
}

// SAFETY: never changed; the context is not used.
unsafe impl Sync for Handler {}

const CAPSULE: &CStr = c"mem_handler";
/// Where numpy's table of functions has PyDataMem_SetHandler, since 1.22.
const SET_HANDLER: usize = 304;

static HANDLER: Handler = Handler {
    name: {
        let mut name = [0; 127];
        let text = b"uzswap";
        let mut index = 0;
        while index < text.len() {
            name[index] = text[index];
            index += 1;
        }
        name
    },
    version: 1,
    allocator: Allocator { context: null_mut(), malloc, calloc, realloc, free },
};

/// Arrays of fewer bytes are left to the C library.
static SMALLEST: AtomicUsize = AtomicUsize::new(1 << 20);

/// Regions by their addresses: numpy does not always say how large an array was. Held for moments, and by threads that
/// have Python's lock, so that no forked child finds it held.
static REGIONS: LazyLock<Mutex<HashMap<usize, Region>>> = LazyLock::new(Mutex::default);

fn regions() -> MutexGuard<'static, HashMap<usize, Region>> {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A region of zeroes; null when there is none, which numpy tells as MemoryError.
fn take(space: Space, len: usize) -> *mut c_void {
    let Ok(region) = space.region(len) else { return null_mut() };
    let at = region.as_ptr().cast_mut();
    regions().insert(at as usize, region);
    at.cast()
}

fn space_for(len: usize) -> Option<Space> {
    (len >= SMALLEST.load(Ordering::Relaxed)).then(Space::current).flatten()
}

unsafe extern "C" fn malloc(_context: *mut c_void, len: usize) -> *mut c_void {
    match space_for(len) {
        Some(space) => take(space, len),
        // SAFETY: as numpy's own; an array without bytes has an address, too.
        None => unsafe { libc::malloc(len.max(1)) },
    }
}

unsafe extern "C" fn calloc(_context: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size).and_then(|len| Some((space_for(len)?, len))) {
        Some((space, len)) => take(space, len),
        // SAFETY: as above; what overflows is refused there.
        None => unsafe { libc::calloc(count.max(1), size.max(1)) },
    }
}

unsafe extern "C" fn realloc(context: *mut c_void, at: *mut c_void, len: usize) -> *mut c_void {
    let found = regions().remove(&(at as usize));
    let Some(mut region) = found else {
        // SAFETY: numpy's, from the C library.
        return unsafe { libc::realloc(at, len.max(1)) };
    };
    if region.resize(len).is_ok() {
        let at = region.as_ptr().cast_mut();
        regions().insert(at as usize, region);
        return at.cast();
    }
    // In a forked child, or without address space: elsewhere, if that can be.
    // SAFETY: as numpy's own.
    let other = unsafe { malloc(context, len) };
    if other.is_null() {
        regions().insert(at as usize, region);
    } else {
        let both = region.len().min(len);
        // SAFETY: both have that many bytes, and they are two.
        unsafe { std::ptr::copy_nonoverlapping(region.as_ptr(), other.cast(), both) };
    }
    other
}

unsafe extern "C" fn free(_context: *mut c_void, at: *mut c_void, _len: usize) {
    let found = regions().remove(&(at as usize));
    if found.is_none() {
        // SAFETY: numpy's, from the C library.
        unsafe { libc::free(at) };
    }
}

/// From how many bytes on arrays are put into regions.
#[pyfunction]
pub fn set_smallest(bytes: usize) {
    SMALLEST.store(bytes, Ordering::Relaxed);
}

/// The allocation functions, as numpy wants them.
#[pyfunction]
pub fn handler(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let at = std::ptr::from_ref(&HANDLER).cast_mut().cast();
    // SAFETY: what the capsule points to, and its name, live for ever.
    unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(at, CAPSULE.as_ptr().cast::<c_char>(), None))
    }
}

/// Has numpy use a handler in the calling context; answers the one before.
#[pyfunction]
pub fn set_handler<'py>(py: Python<'py>, handler: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
    let module = py.import("numpy._core._multiarray_umath");
    let module = module.or_else(|_| py.import("numpy.core._multiarray_umath"))?;
    let capsule = module.getattr("_ARRAY_API")?;
    // SAFETY: an object; numpy's capsule has no name.
    let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
    let Some(table) = NonNull::new(table.cast::<Option<SetHandler>>()) else {
        return Err(PyRuntimeError::new_err("numpy has no table of functions"));
    };
    // SAFETY: the table has more functions than this since numpy 1.22, which the package asks for.
    let set = unsafe { table.add(SET_HANDLER).read() };
    let set = set.ok_or_else(|| PyRuntimeError::new_err("numpy has no PyDataMem_SetHandler"))?;
    // SAFETY: the function has this type; it takes a capsule or null, and gives a reference.
    unsafe { Bound::from_owned_ptr_or_err(py, set(handler.as_ptr())) }
}
