//! Pools.

use std::ffi::c_char;

use uzswap::{Group, Keep, Pool, PoolConfig, PAGE_SIZE};

use crate::error::{compressor, invalid, status_of, uzswap_status, uzswap_status::UZSWAP_OK};

/// Bytes in a page.
pub const UZSWAP_PAGE_SIZE: usize = 4096;
/// Pages of one store or load, at most.
pub const UZSWAP_PAGES_MAX: usize = 512;
/// Groups are numbered below this.
pub const UZSWAP_GROUPS: u16 = 256;
/// Keys are numbered below this.
pub const UZSWAP_KEYS: u64 = 68719476736;
const _: () = assert!(UZSWAP_KEYS == 1 << uzswap::KEY_BITS);

/// Pages, compressed, each under a group and a key.
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
    /// Pages stored since the start.
    pub pages_out: u64,
    /// Pages loaded since the start.
    pub pages_in: u64,
    /// Pages refused since the start because they did not compress.
    pub incompressible: u64,
    /// Calls refused since the start because the pool had reached its limit.
    pub limit_hit: u64,
}

/// Makes a pool. `compressor` is a name like `auto`, `lz4` or `zstd:3`; null for `auto`, which
/// looks at each page and chooses. `max_bytes` is the most memory that the objects may take, 0 for
/// no limit. UZSWAP_NO_COMPRESSOR, UZSWAP_NO_MEMORY.
///
/// # Safety
/// `compressor` is null or a terminated string; `pool` can be written.
#[no_mangle]
pub unsafe extern "C" fn uzswap_pool_new(
    compressor: *const c_char,
    max_bytes: u64,
    pool: *mut *mut uzswap_pool,
) -> uzswap_status {
    // SAFETY: the caller's promise.
    let Some(name) = (unsafe { self::compressor(compressor) }) else {
        return invalid("the name is not UTF-8");
    };
    if pool.is_null() {
        return invalid("nowhere to put the pool");
    }
    let config = PoolConfig {
        max_pool_bytes: if max_bytes == 0 { u64::MAX } else { max_bytes },
        max_groups: UZSWAP_GROUPS,
        ..PoolConfig::default()
    };
    // SAFETY: the caller's promise.
    status_of(uzswap::pool(name, config), |made| unsafe {
        pool.write(Box::into_raw(Box::new(uzswap_pool(made))))
    })
}

/// Ends a pool and all that is in it; it must not be used from now on. Null does nothing.
///
/// # Safety
/// `pool` is from uzswap_pool_new(), and is not used from now on.
#[no_mangle]
pub unsafe extern "C" fn uzswap_pool_free(pool: *mut uzswap_pool) {
    if !pool.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// Whether a request is valid.
fn check(pool: *const uzswap_pool, pages: *const u8, count: usize) -> Result<(), uzswap_status> {
    match (pool.is_null() || pages.is_null(), count) {
        (true, _) => Err(invalid("no pool, or no pages")),
        (_, 1..=UZSWAP_PAGES_MAX) => Ok(()),
        _ => Err(invalid(format_args!("{count} pages are not 1 to {UZSWAP_PAGES_MAX}"))),
    }
}

/// Stores `count` pages that lie side by side at `pages`, `count` times 4096 bytes, under the keys
/// `key`, `key + 1` and so on: all of them or none. In every case the previous pages under these
/// keys are gone. UZSWAP_FULL, UZSWAP_POOR when one does not compress, UZSWAP_NO_MEMORY,
/// UZSWAP_INVALID.
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
) -> uzswap_status {
    if let Err(status) = check(pool, pages, count) {
        return status;
    }
    // SAFETY: the caller's promise; bytes have no alignment.
    let (pool, pages) =
        unsafe { (&(*pool).0, std::slice::from_raw_parts(pages.cast::<[u8; PAGE_SIZE]>(), count)) };
    status_of(pool.store(Group(group), key, &pages.iter().collect::<Vec<_>>()), |()| ())
}

/// Loads `count` pages to `pages`, which has room for `count` times 4096 bytes, and takes them out
/// of the pool if `exclusive`. When that fails all pages stay in the pool, and the bytes at `pages`
/// are not defined. UZSWAP_MISSING, UZSWAP_DAMAGED, UZSWAP_INVALID.
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
) -> uzswap_status {
    if let Err(status) = check(pool, pages, count) {
        return status;
    }
    // SAFETY: the caller's promise; bytes have no alignment, and any are a page.
    let (pool, pages) =
        unsafe { (&(*pool).0, std::slice::from_raw_parts_mut(pages.cast::<[u8; PAGE_SIZE]>(), count)) };
    let keep = if exclusive { Keep::Exclusive } else { Keep::Shared };
    status_of(pool.load(Group(group), key, &mut pages.iter_mut().collect::<Vec<_>>(), keep), |()| ())
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

/// Forgets `count` keys from `key` on, UINT64_MAX for all; returns how many pages that were.
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
/// `pool` is alive, and `stats` can be written.
#[no_mangle]
pub unsafe extern "C" fn uzswap_pool_get_stats(
    pool: *const uzswap_pool,
    stats: *mut uzswap_pool_stats,
) -> uzswap_status {
    if pool.is_null() || stats.is_null() {
        return invalid("no pool, or nowhere to put its figures");
    }
    // SAFETY: the caller's promise.
    let pool = unsafe { &(*pool).0 };
    let counters = pool.counters();
    let made = uzswap_pool_stats {
        stored_pages: counters.stored_pages,
        compressed_bytes: pool.compressed_bytes(),
        pool_bytes: counters.pool_total_size,
        metadata_bytes: pool.metadata_bytes(),
        pages_out: counters.zswpout,
        pages_in: counters.zswpin,
        incompressible: counters.reject_compress_poor,
        limit_hit: counters.pool_limit_hit,
    };
    // SAFETY: as above.
    unsafe { stats.write(made) };
    UZSWAP_OK
}
