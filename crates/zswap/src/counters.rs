//! Counters under the kernel's names.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Events so far, and the current content. Names and meanings are the Linux zswap's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pages stored now, including those without object.
    pub stored_pages: u64,
    /// Pages stored raw now, because they did not shrink.
    pub stored_incompressible_pages: u64,
    /// Pages stored now that repeat one word and need no object.
    pub same_filled_pages: u64,
    /// Bytes of memory of the objects of all pools.
    pub pool_total_size: u64,
    /// Pages stored since the start; a folio counts once all of it is stored.
    pub zswpout: u64,
    /// Pages loaded since the start.
    pub zswpin: u64,
    /// Pages written back since the start.
    pub zswpwb: u64,
    /// The same, under the name of the debug counter.
    pub written_back_pages: u64,
    /// Stores that found the pool at or above its maximum.
    pub pool_limit_hit: u64,
    /// Failed attempts to write pages back.
    pub reject_reclaim_fail: u64,
    /// Pages refused because the compressor failed on them.
    pub reject_compress_fail: u64,
    /// Pages refused because they did not shrink.
    pub reject_compress_poor: u64,
    /// Folios refused because no object could be allocated.
    pub reject_alloc_fail: u64,
    /// Folios refused because no entry could be allocated.
    pub reject_kmemcache_fail: u64,
    /// Pages that did not decompress to the stored bytes.
    pub decompress_fail: u64,
    /// Pages in the swap file now.
    pub on_disk_pages: u64,
    /// Pages loaded from the swap file since the start, also counted in `zswpin`.
    pub disk_loads: u64,
    /// Loads from the swap file that failed, or found damaged bytes.
    pub disk_load_fail: u64,
}

/// One group's part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupUsage {
    /// Compressed bytes, which count against the group's limit.
    pub zswap: u64,
    /// Uncompressed bytes of its pages.
    pub zswapped: u64,
    /// Pages kept raw.
    pub incompressible: u64,
    /// Pages stored since the start.
    pub zswpout: u64,
    /// Pages loaded since the start.
    pub zswpin: u64,
    /// Pages written back since the start.
    pub zswpwb: u64,
    /// Uncompressed bytes of pages in the swap file.
    pub on_disk: u64,
    /// Pages loaded from the swap file since the start.
    pub disk_loads: u64,
}

/// A number that only the holder of a lock changes and any thread may read.
#[derive(Default)]
pub(crate) struct Held(AtomicU64);

impl Held {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The caller holds the lock that guards the number, so no locked instruction is needed. Most
    /// numbers of a call are zero, and cost no write.
    pub(crate) fn add(&self, value: u64) {
        if value > 0 {
            self.0.store(self.get() + value, Ordering::Relaxed);
        }
    }

    pub(crate) fn sub(&self, value: u64) {
        debug_assert!(self.get() >= value, "{} - {value}", self.get());
        if value > 0 {
            self.0.store(self.get() - value, Ordering::Relaxed);
        }
    }
}

/// A number that any thread may change, approximate in order, exact in sum.
#[derive(Default)]
pub(crate) struct Event(AtomicU64);

impl Event {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(crate) struct Events {
    pub(crate) pool_limit_hit: Event,
    pub(crate) reject_reclaim_fail: Event,
    pub(crate) reject_compress_fail: Event,
    pub(crate) reject_compress_poor: Event,
    pub(crate) reject_alloc_fail: Event,
    pub(crate) reject_kmemcache_fail: Event,
    pub(crate) decompress_fail: Event,
    pub(crate) disk_load_fail: Event,
}

/// A group's numbers, guarded by its lock.
#[derive(Default)]
pub(crate) struct GroupNumbers {
    pub(crate) stored_pages: Held,
    pub(crate) incompressible: Held,
    pub(crate) same_filled: Held,
    pub(crate) bytes: Held,
    pub(crate) zswpout: Held,
    pub(crate) zswpin: Held,
    pub(crate) zswpwb: Held,
    pub(crate) on_disk_pages: Held,
    pub(crate) disk_loads: Held,
}
