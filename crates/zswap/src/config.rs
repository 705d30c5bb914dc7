//! What a store is made with, and what its calls answer when they refuse.

use std::fmt;
use std::io;
use std::sync::Arc;

use swapfile::{ReadFault, SwapFile};

use crate::Tally;

/// Bits of a key: page numbers up to 2^36, which is 48 bits of address.
pub const KEY_BITS: u32 = 36;
/// NUMA nodes told apart; higher ones share lists.
pub const NODES_MAX: usize = 8;
/// Pools that may be alive at once: the current one, and older ones that drain.
pub const POOLS_MAX: usize = 8;

/// A program or a tenant: keys, limits and LRU lists of different groups are separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u16);

/// What a load does with the entries it read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The entries go once every page of the request was decompressed: the caller has the only
    /// copy.
    Exclusive,
    /// The entries stay: for pages that will only be read.
    Shared,
}

/// How a store is set up.
#[derive(Clone)]
pub struct Config {
    /// Bytes compressed as one: 4, 8, 16, 32 or 64 KiB.
    pub unit_size: usize,
    /// Units in one request to the compressor, 1 to 8; 0 takes the algorithm's own wish, or 8 when
    /// it has none.
    pub batch: usize,
    /// Most bytes of memory that the objects of all pools may take.
    pub max_pool_bytes: u64,
    /// A pool that reached its maximum accepts stores again at this share of it.
    pub accept_threshold_percent: u8,
    /// Most pages chained to one zspage, 4 to 16.
    pub chain: usize,
    /// Where pages go, compressed as they are, when the pool must shrink, and are loaded from like
    /// those in the pool; with it, incompressible pages are kept raw instead of refused. The store
    /// becomes its writer.
    pub swap: Option<Arc<SwapFile>>,
    /// What a fault costs beside the load itself, in nanoseconds: the shrinker weighs with it.
    pub fault_ns: u64,
    /// Keep a checksum per page and check it on every load.
    pub verify: bool,
    /// Groups are numbered below this.
    pub max_groups: u16,
    /// Working contexts a pool: compressions and decompressions that can run at once. 0 means one a
    /// CPU.
    pub contexts: usize,
    /// Told in what forms pages are stored.
    pub tally: Option<Tally>,
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
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("unit_size", &self.unit_size)
            .field("batch", &self.batch)
            .field("max_pool_bytes", &self.max_pool_bytes)
            .field("accept_threshold_percent", &self.accept_threshold_percent)
            .field("chain", &self.chain)
            .field("swap", &self.swap.is_some())
            .field("fault_ns", &self.fault_ns)
            .field("verify", &self.verify)
            .field("max_groups", &self.max_groups)
            .field("contexts", &self.contexts)
            .field("tally", &self.tally.is_some())
            .finish()
    }
}

/// A store or a pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A figure of the configuration is out of its range.
    #[error("{what} is {value}: {wanted}")]
    Config {
        /// Which figure.
        what: &'static str,
        /// What it was.
        value: u64,
        /// What it may be.
        wanted: &'static str,
    },
    /// The allocator could not make an arena.
    #[error("no arena for a pool")]
    Arena(#[from] io::Error),
    /// The algorithm could not make a context.
    #[error(transparent)]
    Context(#[from] acomp::ContextError),
    /// A swap file that another store writes to.
    #[error("{0}")]
    Swap(&'static str),
    /// As many older pools still hold pages as there may be.
    #[error("{POOLS_MAX} pools still hold pages; load, invalidate or write back some first")]
    TooManyPools,
}

/// Why a folio was not stored. Nothing of it is, and nothing older is left under its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A page did not shrink and may not be kept raw.
    #[error("page {index} of the request does not compress")]
    Poor {
        /// The page, counted from the first of the request; with larger units, the first of its
        /// unit.
        index: usize,
    },
    /// The compressor failed and the page may not be kept raw.
    #[error("the compressor failed on page {index} of the request")]
    Failed {
        /// The page, counted from the first of the request; with larger units, the first of its
        /// unit.
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

/// Why pages were not loaded. No entry was removed; the contents of the destination pages are
/// unspecified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A page is not stored.
    #[error("page {index} of the request is not stored")]
    Missing {
        /// The page, counted from the first of the request.
        index: usize,
    },
    /// A page's object is damaged: it does not decompress, or not to what was stored.
    #[error("the object of page {index} of the request is damaged")]
    Damaged {
        /// The page, counted from the first of the request.
        index: usize,
    },
    /// A page is in the swap file and cannot be read from there. It stays there.
    #[error("the object of page {index} of the request, at byte {offset} of the swap file, cannot be read: {fault}")]
    Disk {
        /// The page, counted from the first of the request.
        index: usize,
        /// Where its object lies in the file.
        offset: u64,
        /// What is wrong.
        fault: ReadFault,
    },
}

impl LoadError {
    /// The same error with its index changed.
    pub(crate) fn at(self, change: impl Fn(usize) -> usize) -> LoadError {
        match self {
            LoadError::Missing { index } => LoadError::Missing { index: change(index) },
            LoadError::Damaged { index } => LoadError::Damaged { index: change(index) },
            LoadError::Disk { index, offset, fault } => {
                LoadError::Disk { index: change(index), offset, fault }
            }
        }
    }

    /// The same error of a request that begins `by` pages earlier.
    pub(crate) fn shifted(self, by: usize) -> LoadError {
        self.at(|index| index + by)
    }
}
