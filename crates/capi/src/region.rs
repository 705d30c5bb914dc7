//! Regions.

use std::ffi::{c_char, c_void};
use std::ptr::{null_mut, NonNull};

use uzswap::regions::{Region, Space};
use uzswap::DEFAULT_COMPRESSOR;

use crate::error::{failed, name};

/// What became of the pages of all regions so far.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct uzswap_space_stats {
    /// The budget, in bytes.
    pub ram_bytes: u64,
    /// Bytes that count against it: resident pages of regions, the pool, pages on their way, and tables.
    pub used_bytes: u64,
    /// Bytes of regions, as they were asked for.
    pub region_bytes: u64,
    /// Pages in the pool now.
    pub stored_pages: u64,
    /// Bytes that the pool takes for them.
    pub pool_bytes: u64,
    /// Pages that went into the pool.
    pub pages_out: u64,
    /// Pages that came out of it.
    pub pages_in: u64,
    /// Page faults served.
    pub faults: u64,
    /// Nanoseconds that serving them took.
    pub fault_ns: u64,
    /// Times a page did not compress and stayed in memory.
    pub incompressible: u64,
}

const NO_SPACE: &str = "no space was started in this process: uzswap_space_start()";

/// Starts the threads that keep all regions of this process within `ram_bytes` of memory, at least 8 MiB. `compressor` is a name like `auto`,
/// `lz4`, `zstd:3`; null for `auto`. Once a process; it lasts as long as that. False when it cannot be: without userfaultfd the
/// reason has the command that permits it.
///
/// # Safety
/// `compressor` is null or a terminated string.
#[no_mangle]
pub unsafe extern "C" fn uzswap_space_start(ram_bytes: u64, compressor: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    let compressor = unsafe { name(compressor) };
    let compressor = compressor.as_deref().unwrap_or(DEFAULT_COMPRESSOR);
    match Space::builder().ram(ram_bytes).compressor(compressor).start() {
        Ok(_) => true,
        Err(error) => failed(error, false),
    }
}

/// Changes the budget, in bytes. False when it is too small, or no space was started.
#[no_mangle]
pub extern "C" fn uzswap_space_set_ram(ram_bytes: u64) -> bool {
    match Space::current().map(|space| space.set_ram(ram_bytes)) {
        Some(Ok(())) => true,
        Some(Err(error)) => failed(error, false),
        None => failed(NO_SPACE, false),
    }
}

/// Figures of all regions together; all 0 when no space was started.
#[no_mangle]
pub extern "C" fn uzswap_space_figures() -> uzswap_space_stats {
    let stats = Space::current().map(|space| space.stats()).unwrap_or_default();
    uzswap_space_stats {
        ram_bytes: stats.ram_bytes,
        used_bytes: stats.used_bytes,
        region_bytes: stats.region_bytes,
        stored_pages: stats.stored_pages,
        pool_bytes: stats.pool_bytes,
        pages_out: stats.pages_out,
        pages_in: stats.pages_in,
        faults: stats.faults,
        fault_ns: stats.fault_ns,
        incompressible: stats.incompressible,
    }
}

/// `len` bytes of zeroes, at a multiple of 64 KiB. Nothing of them is resident until it is touched. After fork() the child has the bytes as
/// plain memory. Null when there is no space, or no room for them.
#[no_mangle]
pub extern "C" fn uzswap_region_new(len: usize) -> *mut c_void {
    match Space::current().map(|space| space.region(len)) {
        Some(Ok(region)) => region.into_raw().0.as_ptr().cast(),
        Some(Err(error)) => failed(error, null_mut()),
        None => failed(NO_SPACE, null_mut()),
    }
}

/// # Safety
/// As [`uzswap_region_free`].
unsafe fn region(start: *mut c_void, len: usize) -> Option<Region> {
    let start = NonNull::new(start.cast::<u8>())?;
    // SAFETY: the caller's promise; a forked child has no space, and leaves the memory where it is.
    Space::current().map(|space| unsafe { Region::from_raw(space, start, len) })
}

/// Gives a region back. Null is nothing. In a forked child the region stays, until the child ends.
///
/// # Safety
/// `start` and `len` are a region's, and nobody uses it from now on.
#[no_mangle]
pub unsafe extern "C" fn uzswap_region_free(start: *mut c_void, len: usize) {
    // SAFETY: the caller's promise.
    drop(unsafe { region(start, len) });
}

/// Makes a region longer, by zeroes, or shorter; answers where it is now. It may have moved, and the old address is not valid then. Null when it
/// cannot be; the region is as it was then.
///
/// # Safety
/// `start` and `len` are a region's.
#[no_mangle]
pub unsafe extern "C" fn uzswap_region_resize(start: *mut c_void, len: usize, new_len: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let Some(mut region) = (unsafe { region(start, len) }) else { return failed(NO_SPACE, null_mut()) };
    let resized = region.resize(new_len);
    let start = region.into_raw().0.as_ptr().cast();
    match resized {
        Ok(()) => start,
        Err(error) => failed(error, null_mut()),
    }
}

/// Makes `count` bytes from `offset` on zeroes. Whole pages among them take no memory any more. False when there is no such part of the
/// region.
///
/// # Safety
/// `start` and `len` are a region's.
#[no_mangle]
pub unsafe extern "C" fn uzswap_region_discard(
    start: *mut c_void,
    len: usize,
    offset: usize,
    count: usize,
) -> bool {
    let Some(end) = offset.checked_add(count).filter(|end| *end <= len) else {
        return failed(format_args!("{count} bytes from {offset} on of a region of {len}"), false);
    };
    // SAFETY: the caller's promise.
    let Some(mut region) = (unsafe { region(start, len) }) else { return failed(NO_SPACE, false) };
    region.discard(offset..end);
    let _ = region.into_raw();
    true
}
