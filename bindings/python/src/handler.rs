//! numpy's allocation functions (NEP 49): one handler per block, which stores the least size of
//! arrays that go into regions.
//!
//! The structures are those of numpy's `ndarraytypes.h`, version 1, unchanged since numpy 1.22.

use std::ffi::{c_char, c_void, CStr};
use std::ptr::{null, NonNull};

use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::arrays;

#[repr(C)]
struct Allocator {
    /// The handler itself.
    context: *const Handler,
    malloc: unsafe extern "C" fn(*const Handler, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*const Handler, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*const Handler, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*const Handler, *mut c_void, usize),
}

/// numpy's part, followed by our own.
#[repr(C)]
struct Handler {
    name: [u8; 127],
    version: u8,
    allocator: Allocator,
    smallest: usize,
}

const CAPSULE: &CStr = c"mem_handler";
const NAME: &[u8] = b"uzswap";
/// The offset of PyDataMem_SetHandler in numpy's table of functions, since 1.22.
const SET_HANDLER: usize = 304;

unsafe extern "C" fn malloc(handler: *const Handler, len: usize) -> *mut c_void {
    // SAFETY: numpy gives the context, which lives as long as arrays refer to its capsule.
    arrays::malloc(len, unsafe { (*handler).smallest })
}

unsafe extern "C" fn calloc(handler: *const Handler, count: usize, size: usize) -> *mut c_void {
    // SAFETY: as above.
    arrays::calloc(count, size, unsafe { (*handler).smallest })
}

unsafe extern "C" fn realloc(handler: *const Handler, at: *mut c_void, len: usize) -> *mut c_void {
    // SAFETY: as above; the address is an array's.
    unsafe { arrays::realloc(at, len, (*handler).smallest) }
}

unsafe extern "C" fn free(_handler: *const Handler, at: *mut c_void, _len: usize) {
    // SAFETY: the address is an array's, which ends.
    unsafe { arrays::free(at) };
}

/// Frees a handler without arrays.
unsafe extern "C" fn end(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is one of those below, which are made of boxes.
    unsafe {
        let at = ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr().cast::<c_char>());
        drop(Box::from_raw(at.cast::<Handler>()));
    }
}

/// Allocation functions that put arrays of at least `smallest` bytes into regions, in numpy's form.
#[pyfunction]
pub fn handler(py: Python<'_>, smallest: usize) -> PyResult<Bound<'_, PyAny>> {
    let mut name = [0; 127];
    name[..NAME.len()].copy_from_slice(NAME);
    let allocator = Allocator { context: null(), malloc, calloc, realloc, free };
    let made = Box::into_raw(Box::new(Handler { name, version: 1, allocator, smallest }));
    // SAFETY: made just now; the name lives for ever, and the box until the capsule ends.
    unsafe {
        (*made).allocator.context = made;
        let capsule = ffi::PyCapsule_New(made.cast(), CAPSULE.as_ptr().cast::<c_char>(), Some(end));
        if capsule.is_null() {
            drop(Box::from_raw(made));
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Makes numpy use a handler in the calling context; returns the previous one.
#[pyfunction]
pub fn set_handler<'py>(py: Python<'py>, handler: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
    // numpy 2 has it under the first name, 1 under the second.
    let module = py.import("numpy._core._multiarray_umath");
    let module = module.or_else(|_| py.import("numpy.core._multiarray_umath"))?;
    // It appeared with the required function; an older table is shorter.
    if !module.hasattr("get_handler_name")? {
        return Err(PyImportError::new_err(
            "numpy is older than 1.22, whose allocation functions cannot be set",
        ));
    }
    let capsule = module.getattr("_ARRAY_API")?;
    // SAFETY: an object; numpy's capsule has no name.
    let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), null()) };
    let Some(table) = NonNull::new(table.cast::<Option<SetHandler>>()) else {
        return Err(PyErr::fetch(py));
    };
    // SAFETY: the table of such a numpy has more functions than this.
    let set = unsafe { table.add(SET_HANDLER).read() };
    let set = set.ok_or_else(|| PyRuntimeError::new_err("numpy has no PyDataMem_SetHandler"))?;
    // SAFETY: the function has this type; it takes a capsule, and gives a reference.
    unsafe { Bound::from_owned_ptr_or_err(py, set(handler.as_ptr())) }
}
