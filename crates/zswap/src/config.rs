//! The configuration of a store, and the errors of its calls.

use std::io;
use std::sync::Arc;

use swapfile::{ReadFault, SwapFile};

use crate::{LoadTally, Tally};

/// Bits of a key: page numbers up to 2^36, which is 48 bits of address.
pub const KEY_BITS: u32 = 36;
/// Distinct NUMA nodes; higher ones share lists.
pub const NODES_MAX: usize = 8;
/// Most pools at once: the current one, and older ones that drain.
pub const POOLS_MAX: usize = 8;

/// A program or a tenant: keys, limits and LRU lists of different groups are separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u16);

/// Whether a load keeps the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Removes the entries once the whole request is decompressed: the caller has the only copy.
    Exclusive,
    /// Keeps the entries, for pages that will only be read.
    Shared,
}

/// Configuration of a store.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes compressed as one: 4, 8, 16, 32 or 64 KiB.
    pub unit_size: usize,
    /// Units in one compression request, 1 to 8; 0: the algorithm's preference, or 8 without one.
    pub batch: usize,
    /// Most bytes of memory for the objects of all pools.
    pub max_pool_bytes: u64,
    /// A pool that reached its maximum accepts stores again at this share of it.
    pub accept_threshold_percent: u8,
    /// Most pages chained to one zspage, 4 to 16.
    pub chain: usize,
    /// Where compressed pages go when the pool must shrink, and are loaded from. Incompressible
    /// pages are then kept raw instead of refused. The store becomes its writer.
    pub swap: Option<Arc<SwapFile>>,
    /// Nanoseconds of a fault beside the load itself, as a weight for the shrinker.
    pub fault_ns: u64,
    /// Keep a checksum per page and check it on every load.
    pub verify: bool,
    /// Exclusive bound of group numbers.
    pub max_groups: u16,
    /// Contexts per pool, that is, concurrent compressions and decompressions. 0 means one per CPU.
    pub contexts: usize,
    /// Receives the forms of stored pages.
    pub tally: Option<Tally>,
    /// Receives the requests to decompress.
    pub load_tally: Option<LoadTally>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            unit_size: acomp::PAGE_SIZE,
            batch: 0,
            max_pool_bytes: u64::MAX,
            accept_threshold_percent: 90,
            chain: zsmalloc::Config::default().chain,
            swap: None,
            fault_ns: 8000,
            verify: cfg!(debug_assertions),
            max_groups: 256,
            contexts: 0,
            tally: None,
            load_tally: None,
        }
    }
}

/// A store or a pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A figure of the configuration is out of range.
    #[error("{what} is {value}: {wanted}")]
    Config {
        /// Name of the figure.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Its valid range.
        wanted: &'static str,
    },
    /// The allocator could not make an arena.
    #[error("no arena for a pool")]
    Arena(#[from] io::Error),
    /// The algorithm could not make a context.
    #[error(transparent)]
    Context(#[from] acomp::ContextError),
    /// Another store writes to the swap file.
    #[error("{0}")]
    Swap(&'static str),
    /// The maximum number of older pools still hold pages.
    #[error("{POOLS_MAX} pools still hold pages; load, invalidate or write back some first")]
    TooManyPools,
}

/// Why a folio was not stored. None of it is stored, and no older page is left under its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A page did not shrink and may not be kept raw.
    #[error("page {index} of the request does not compress")]
    Poor {
        /// The page's index in the request; with larger units, of the unit's first page.
        index: usize,
    },
    /// The compressor failed and the page may not be kept raw.
    #[error("the compressor failed on page {index} of the request")]
    Failed {
        /// The page's index in the request; with larger units, of the unit's first page.
        index: usize,
    },
    /// No memory for objects or entries.
    #[error("no memory for objects or entries")]
    NoMemory,
    /// The pool reached its maximum and has not yet shrunk to its acceptance threshold.
    #[error("the pool is full")]
    PoolLimit,
    /// The group reached its maximum.
    #[error("the group is full")]
    GroupLimit,
    /// The group's number or the keys are out of range.
    #[error("group or key out of range")]
    OutOfRange,
}

/// Why pages were not loaded. No entry was removed; the destination pages are unspecified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A page is not stored.
    #[error("page {index} of the request is not stored")]
    Missing {
        /// The page's index in the request.
        index: usize,
    },
    /// A page's object is damaged: it does not decompress, or not to the stored bytes.
    #[error("the object of page {index} of the request is damaged")]
    Damaged {
        /// The page's index in the request.
        index: usize,
    },
    /// A page is in the swap file and cannot be read. It stays there.
    #[error("the object of page {index} of the request, at byte {offset} of the swap file, cannot be read: {fault}")]
    Disk {
        /// The page's index in the request.
        index: usize,
        /// Its object's offset in the file.
        offset: u64,
        /// The fault.
        fault: ReadFault,
    },
}

impl LoadError {
    /// Adjusts the index to another request.
    pub(crate) fn at(self, change: impl Fn(usize) -> usize) -> LoadError {
        match self {
            LoadError::Missing { index } => LoadError::Missing { index: change(index) },
            LoadError::Damaged { index } => LoadError::Damaged { index: change(index) },
            LoadError::Disk { index, offset, fault } => {
                LoadError::Disk { index: change(index), offset, fault }
            }
        }
    }
}
