//! Pools.

use std::ffi::c_char;

use uzswap::{Group, Keep, Pool, PoolConfig, DEFAULT_COMPRESSOR, PAGE_SIZE};

use crate::error::{failed, name};

/// A pool of compressed pages, each under a group and a key. Any thread may use it at any time.
pub struct uzswap_pool(Pool);

/// What a pool has.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct uzswap_pool_stats {
    /// Pages stored now.
    pub stored_pages: u64,
    /// Bytes that their objects have together.
    pub compressed_bytes: u64,
    /// Bytes of memory that the objects take.
    pub pool_bytes: u64,
    /// Bytes of memory that tables and lists take.
    pub metadata_bytes: u64,
}

/// Pages of one call, at most.
const PAGES_MAX: usize = 512;

/// A pool. `compressor` is a name like `auto`, `lz4`, `zstd:3`; null for `auto`. `max_bytes` is the most memory that the objects may take, 0 for
/// no limit. Null when there is no such compressor or no memory.
///
/// # Safety
/// `compressor` is null or a terminated string.
#[no_mangle]
pub unsafe extern "C" fn uzswap_pool_new(compressor: *const c_char, max_bytes: u64) -> *mut uzswap_pool {
    // SAFETY: the caller's promise.
    let compressor = unsafe { name(compressor) };
    let limit = if max_bytes == 0 { u64::MAX } else { max_bytes };
    let config = PoolConfig { max_pool_bytes: limit, ..PoolConfig::default() };
    match uzswap::pool(compressor.as_deref().unwrap_or(DEFAULT_COMPRESSOR), config) {
        Ok(pool) => Box::into_raw(Box::new(uzswap_pool(pool))),
        Err(error) => failed(error, std::ptr::null_mut()),
    }
}

/// Ends a pool and all that is in it. Null is nothing.
///
/// # Safety
/// `pool` is from uzswap_pool_new(), and nobody uses it from now on.
#[no_mangle]
pub unsafe extern "C" fn uzswap_pool_free(pool: *mut uzswap_pool) {
    if !pool.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// Stores `count` pages, at most 512, that lie side by side at `pages`, under the keys `key`, `key + 1` and so on: all of them or
/// none. False when they are not stored, because the pool is full or one of them does not compress; what was there under these keys
/// is gone then.
///
/// # Safety
/// `pool` is alive, and `pages` has `count` times 4096 bytes.
#[no_mangle]
pub unsafe extern "C" fn uzswap_pool_store(
    pool: *const uzswap_pool,
    group: u16,
    key: u64,
    pages: *const u8,
    count: usize,
) -> bool {
    if count > PAGES_MAX {
        return failed(format_args!("{count} pages are more than {PAGES_MAX}"), false);
    }
    // SAFETY: the caller's promise.
    let (pool, pages) =
        unsafe { (&(*pool).0, std::slice::from_raw_parts(pages.cast::<[u8; PAGE_SIZE]>(), count)) };
    match pool.store(Group(group), key, &pages.iter().collect::<Vec<_>>()) {
        Ok(()) => true,
        Err(error) => failed(error, false),
    }
}

/// Loads `count` pages, at most 512, to `pages`, and takes them out of the pool if `exclusive`. False when one of them is not there or
/// damaged; what is at `pages` is not defined then, and all pages stay in the pool.
///
/// # Safety
/// `pool` is alive, and `pages` has room for `count` times 4096 bytes.
#[no_mangle]
pub unsafe extern "C" fn uzswap_pool_load(
    pool: *const uzswap_pool,
    group: u16,
    key: u64,
    pages: *mut u8,
    count: usize,
    exclusive: bool,
) -> bool {
    if count > PAGES_MAX {
        return failed(format_args!("{count} pages are more than {PAGES_MAX}"), false);
    }
    // SAFETY: the caller's promise.
    let (pool, pages) =
        unsafe { (&(*pool).0, std::slice::from_raw_parts_mut(pages.cast::<[u8; PAGE_SIZE]>(), count)) };
    let keep = if exclusive { Keep::Exclusive } else { Keep::Shared };
    match pool.load(Group(group), key, &mut pages.iter_mut().collect::<Vec<_>>(), keep) {
        Ok(()) => true,
        Err(error) => failed(error, false),
    }
}

/// Which of the first `count` pages from `key` on, at most 64, are in the pool: bit 0 is for `key`.
///
/// # Safety
/// `pool` is alive.
#[no_mangle]
pub unsafe extern "C" fn uzswap_pool_present(
    pool: *const uzswap_pool,
    group: u16,
    key: u64,
    count: usize,
) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { &(*pool).0 }.present(Group(group), key, count.min(64))
}

/// Forgets `count` keys from `key` on; answers how many pages that were.
///
/// # Safety
/// `pool` is alive.
#[no_mangle]
pub unsafe extern "C" fn uzswap_pool_invalidate(
    pool: *const uzswap_pool,
    group: u16,
    key: u64,
    count: u64,
) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { &(*pool).0 }.invalidate(Group(group), key, count)
}

/// What the pool has now.
///
/// # Safety
/// `pool` is alive.
#[no_mangle]
pub unsafe extern "C" fn uzswap_pool_figures(pool: *const uzswap_pool) -> uzswap_pool_stats {
    // SAFETY: the caller's promise.
    let pool = unsafe { &(*pool).0 };
    uzswap_pool_stats {
        stored_pages: pool.stored_pages(),
        compressed_bytes: pool.compressed_bytes(),
        pool_bytes: pool.pool_bytes(),
        metadata_bytes: pool.metadata_bytes(),
    }
}
