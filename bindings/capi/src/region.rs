//! Regions.

use std::ffi::{c_char, c_void, CStr, OsStr};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use uzswap::regions::{Advice, Region, Space};

use crate::error::{compressor, failed, invalid, status_of, uzswap_status, uzswap_status::*};

/// The smallest budget, in bytes.
pub const UZSWAP_RAM_BYTES_MIN: u64 = 8388608;

/// What became of the pages of all regions so far.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct uzswap_space_stats {
    /// The budget, in bytes.
    pub ram_bytes: u64,
    /// Bytes that count against it: resident pages of regions, the pool, pages on their way, and
    /// tables.
    pub used_bytes: u64,
    /// Bytes of regions, as they were asked for.
    pub region_bytes: u64,
    /// Regions.
    pub regions: u64,
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
    /// Times there was nothing left to move out although the budget was exceeded.
    pub over_budget: u64,
    /// Pages in the swap file now.
    pub disk_pages: u64,
    /// Bytes that their objects take there.
    pub disk_bytes: u64,
    /// Pages that went to the swap file.
    pub pages_written: u64,
    /// Page faults served from the swap file.
    pub disk_faults: u64,
}

fn not_started() -> uzswap_status {
    failed(UZSWAP_NOT_STARTED, "no space was started in this process: uzswap_space_start()")
}

/// Starts the threads that keep all regions of this process within `ram_bytes` of memory together:
/// their resident pages and their compressed ones. `compressor` is a name like `auto`, `lz4` or
/// `zstd:3`; null for `auto`. Once a process; it lasts as long as that. What does not fit
/// compressed, or does not compress, goes to a swap file of at most `swap_bytes` in
/// `swap_directory` (null for /var/tmp), encrypted, without a name, gone with the process; with 0
/// there is none, and such data exceed the budget. UZSWAP_STARTED, UZSWAP_INVALID below
/// UZSWAP_RAM_BYTES_MIN and for a directory in memory, UZSWAP_NO_COMPRESSOR, UZSWAP_NOT_PERMITTED,
/// UZSWAP_UNSUPPORTED, UZSWAP_SYSTEM.
///
/// # Safety
/// `compressor` and `swap_directory` are null or terminated strings.
#[no_mangle]
pub unsafe extern "C" fn uzswap_space_start(
    ram_bytes: u64,
    compressor: *const c_char,
    swap_bytes: u64,
    swap_directory: *const c_char,
) -> uzswap_status {
    // SAFETY: the caller's promise.
    let Some(name) = (unsafe { self::compressor(compressor) }) else {
        return invalid("the name is not UTF-8");
    };
    let mut builder = Space::builder().ram(ram_bytes).compressor(name).swap(swap_bytes);
    if !swap_directory.is_null() {
        // SAFETY: the caller's promise.
        let directory = unsafe { CStr::from_ptr(swap_directory) };
        builder = builder.swap_directory(Path::new(OsStr::from_bytes(directory.to_bytes())));
    }
    status_of(builder.start(), |_| ())
}

/// Changes the budget, in bytes. A smaller one is reached within moments. UZSWAP_INVALID,
/// UZSWAP_NOT_STARTED.
#[no_mangle]
pub extern "C" fn uzswap_space_set_ram(ram_bytes: u64) -> uzswap_status {
    match Space::current() {
        Some(space) => status_of(space.set_ram(ram_bytes), |()| ()),
        None => not_started(),
    }
}

/// Figures of all regions together. UZSWAP_NOT_STARTED.
///
/// # Safety
/// `stats` can be written.
#[no_mangle]
pub unsafe extern "C" fn uzswap_space_get_stats(stats: *mut uzswap_space_stats) -> uzswap_status {
    if stats.is_null() {
        return invalid("nowhere to put the figures");
    }
    let Some(space) = Space::current() else { return not_started() };
    let found = space.stats();
    let made = uzswap_space_stats {
        ram_bytes: found.ram_bytes,
        used_bytes: found.used_bytes,
        region_bytes: found.region_bytes,
        regions: found.regions,
        stored_pages: found.stored_pages,
        pool_bytes: found.pool_bytes,
        pages_out: found.pages_out,
        pages_in: found.pages_in,
        faults: found.faults,
        fault_ns: found.fault_ns,
        incompressible: found.incompressible,
        over_budget: found.over_budget,
        disk_pages: found.disk_pages,
        disk_bytes: found.disk_bytes,
        pages_written: found.pages_written,
        disk_faults: found.disk_faults,
    };
    // SAFETY: the caller's promise.
    unsafe { stats.write(made) };
    UZSWAP_OK
}

/// Makes `len` bytes of zeroes, beginning at a multiple of 64 KiB; `start` gets their address.
/// Nothing of them is resident until it is touched. A child that fork() makes has the bytes as
/// plain memory. UZSWAP_NOT_STARTED, UZSWAP_NO_MEMORY, UZSWAP_SYSTEM.
///
/// # Safety
/// `start` can be written.
#[no_mangle]
pub unsafe extern "C" fn uzswap_region_new(len: usize, start: *mut *mut c_void) -> uzswap_status {
    if start.is_null() {
        return invalid("nowhere to put the address");
    }
    let Some(space) = Space::current() else { return not_started() };
    // SAFETY: the caller's promise.
    status_of(space.region(len), |region| unsafe { start.write(region.into_raw().0.as_ptr().cast()) })
}

/// The region at an address, still owned by C.
///
/// # Safety
/// An address from uzswap_region_new() or uzswap_region_resize() and its length, or an address
/// outside of all regions.
unsafe fn region(start: *mut c_void, len: usize) -> Result<ManuallyDrop<Region>, uzswap_status> {
    let space = Space::current().ok_or_else(not_started)?;
    // A forked child with a space of its own has none of the parent's regions.
    let start = NonNull::new(start.cast::<u8>()).filter(|start| space.contains(start.as_ptr()));
    let start = start.ok_or_else(|| invalid("the address is not in a region of this process"))?;
    // SAFETY: the caller's promise.
    Ok(ManuallyDrop::new(unsafe { Region::from_raw(space, start, len) }))
}

/// Gives a region back. Null is nothing. In a forked child the parent's regions stay until the
/// child ends.
///
/// # Safety
/// `start` and `len` are a region's, which is not used from now on.
#[no_mangle]
pub unsafe extern "C" fn uzswap_region_free(start: *mut c_void, len: usize) {
    // SAFETY: the caller's promise.
    if let Ok(region) = unsafe { region(start, len) } {
        drop(ManuallyDrop::into_inner(region));
    }
}

/// Makes the region at `*start` longer, by zeroes, or shorter. It may move: `*start` is where it is
/// then, and the old address is not valid any more. When that fails the region is as it was.
/// UZSWAP_NO_MEMORY, UZSWAP_INVALID, UZSWAP_NOT_STARTED, UZSWAP_SYSTEM.
///
/// # Safety
/// `*start` and `len` are a region's.
#[no_mangle]
pub unsafe extern "C" fn uzswap_region_resize(
    start: *mut *mut c_void,
    len: usize,
    new_len: usize,
) -> uzswap_status {
    if start.is_null() {
        return invalid("no region");
    }
    // SAFETY: the caller's promise.
    let mut region = match unsafe { region(*start, len) } {
        Ok(region) => region,
        Err(status) => return status,
    };
    let resized = region.resize(new_len);
    // SAFETY: as above.
    status_of(resized, |()| unsafe { start.write(region.as_mut_ptr().cast()) })
}

/// Acts on a part of a region.
///
/// # Safety
/// `start` and `len` are a region's.
unsafe fn with_part(
    start: *mut c_void,
    len: usize,
    offset: usize,
    count: usize,
    act: impl FnOnce(&mut Region, std::ops::Range<usize>),
) -> uzswap_status {
    let Some(end) = offset.checked_add(count).filter(|end| *end <= len) else {
        return invalid(format_args!("{count} bytes from {offset} on of a region of {len}"));
    };
    // SAFETY: the caller's promise.
    match unsafe { region(start, len) } {
        Ok(mut region) => act(&mut region, offset..end),
        Err(status) => return status,
    }
    UZSWAP_OK
}

/// Makes `count` bytes from `offset` on zeroes. Whole pages among them take no memory any more.
/// UZSWAP_INVALID when the region has no such part, UZSWAP_NOT_STARTED.
///
/// # Safety
/// `start` and `len` are a region's.
#[no_mangle]
pub unsafe extern "C" fn uzswap_region_discard(
    start: *mut c_void,
    len: usize,
    offset: usize,
    count: usize,
) -> uzswap_status {
    // SAFETY: the caller's promise.
    unsafe { with_part(start, len, offset, count, |region, part| region.discard(part)) }
}

/// Brings `count` bytes from `offset` on into memory, which is quicker than by one fault after the
/// other. For parts that are much smaller than the budget. UZSWAP_INVALID when the region has no
/// such part, UZSWAP_NOT_STARTED.
///
/// # Safety
/// `start` and `len` are a region's.
#[no_mangle]
pub unsafe extern "C" fn uzswap_region_fetch(
    start: *mut c_void,
    len: usize,
    offset: usize,
    count: usize,
) -> uzswap_status {
    // SAFETY: the caller's promise.
    unsafe { with_part(start, len, offset, count, |region, part| region.advise(part, Advice::WillNeed)) }
}
