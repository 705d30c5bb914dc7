//! The memory of arrays: large ones in regions, small ones in the C library's heap, by functions
//! with the C library's meaning.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;
use std::sync::OnceLock;

use pyo3::exceptions::PyOSError;
use pyo3::PyResult;
use uzswap::regions::{Region, Space};

/// Regions by their addresses: an array does not always come back with its length. Locked only
/// briefly.
struct Regions {
    lock: AtomicU32,
    map: UnsafeCell<Option<HashMap<usize, Region>>>,
}

// SAFETY: the map is touched under the lock alone.
unsafe impl Sync for Regions {}

static REGIONS: Regions = Regions { lock: AtomicU32::new(0), map: UnsafeCell::new(None) };

impl Regions {
    fn with<T>(&self, act: impl FnOnce(&mut HashMap<usize, Region>) -> T) -> T {
        sys::futex::lock_bits(&self.lock);
        // SAFETY: the lock is held.
        let result = act(unsafe { &mut *self.map.get() }.get_or_insert_default());
        sys::futex::unlock_bits(&self.lock);
        result
    }

    fn keep(&self, region: Region) -> *mut c_void {
        let at = region.as_ptr().cast_mut();
        self.with(|map| map.insert(at as usize, region));
        at.cast()
    }
}

/// Holds the lock over forks: a child could not release a lock of another thread. The order
/// relative to the space's handlers does not matter: no holder of one lock takes the other.
pub fn hold_over_forks() -> PyResult<()> {
    unsafe extern "C" fn prepare() {
        sys::futex::lock_bits(&REGIONS.lock);
    }
    unsafe extern "C" fn after() {
        sys::futex::unlock_bits(&REGIONS.lock);
    }
    static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: `after` writes to an atomic and calls futex(2) alone; extension modules are never
        // unloaded.
        unsafe { sys::atfork::install(prepare, after, after) }.map_err(|error| error.to_string())
    });
    installed.clone().map_err(|error| PyOSError::new_err(format!("pthread_atfork: {error}")))
}

/// The space, if an array of `len` bytes belongs there: a forked child has none, and its arrays are
/// ordinary ones.
fn space_for(len: usize, smallest: usize) -> Option<Space> {
    (len >= smallest).then(Space::current).flatten()
}

/// malloc(3); null, which is a MemoryError, if memory is short.
pub fn malloc(len: usize, smallest: usize) -> *mut c_void {
    match space_for(len, smallest) {
        Some(space) => space.region(len).map_or(null_mut(), |region| REGIONS.keep(region)),
        // SAFETY: any length is valid; an array without bytes has an address, too.
        None => unsafe { libc::malloc(len.max(1)) },
    }
}

/// calloc(3).
pub fn calloc(count: usize, size: usize, smallest: usize) -> *mut c_void {
    match count.checked_mul(size).filter(|len| space_for(*len, smallest).is_some()) {
        Some(len) => malloc(len, smallest),
        // SAFETY: as above; calloc refuses an overflow.
        None => unsafe { libc::calloc(count.max(1), size.max(1)) },
    }
}

/// realloc(3).
///
/// # Safety
/// Null, or from one of these functions and not freed.
pub unsafe fn realloc(at: *mut c_void, len: usize, smallest: usize) -> *mut c_void {
    if at.is_null() {
        return malloc(len, smallest);
    }
    let Some(mut region) = REGIONS.with(|map| map.remove(&(at as usize))) else {
        if space_for(len, smallest).is_none() {
            // SAFETY: the caller's, from the C library.
            return unsafe { libc::realloc(at, len.max(1)) };
        }
        // An array that grows large moves to a region.
        let new = malloc(len, smallest);
        if !new.is_null() {
            // SAFETY: that many bytes can be read at the old address, and written at the new one;
            // the old one is not used any more.
            unsafe {
                let both = libc::malloc_usable_size(at).min(len);
                std::ptr::copy_nonoverlapping(at.cast::<u8>(), new.cast(), both);
                libc::free(at);
            }
        }
        return new;
    };
    if region.resize(len).is_ok() {
        return REGIONS.keep(region);
    }
    // In a forked child: elsewhere, as plain memory.
    let new = malloc(len, smallest);
    if new.is_null() {
        REGIONS.keep(region);
    } else {
        // SAFETY: both have that many bytes, and they are distinct.
        unsafe {
            std::ptr::copy_nonoverlapping(region.as_ptr(), new.cast(), region.len().min(len));
        }
    }
    new
}

/// free(3).
///
/// # Safety
/// As [`realloc`]; the array is not used from now on.
pub unsafe fn free(at: *mut c_void) {
    let region = REGIONS.with(|map| map.remove(&(at as usize)));
    if region.is_none() {
        // SAFETY: the caller's, from the C library.
        unsafe { libc::free(at) };
    }
}
