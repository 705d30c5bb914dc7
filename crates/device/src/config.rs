//! The configuration of a device.

use std::sync::Arc;

use swapfile::SwapFile;

use crate::split::BLOCK_BYTES;

/// Largest device: the pool's keys are block numbers, and it has room for this many bytes' leaves.
pub const SIZE_BYTES_MAX: u64 = 1 << 40;

/// The configuration of a device.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes of the device, whole blocks of 4 KiB.
    pub size_bytes: u64,
    /// Most bytes of memory for objects, tables and the swap file's own. `None` means no bound.
    pub ram_bytes: Option<u64>,
    /// The compressor's name.
    pub compressor: String,
    /// Bytes compressed as one: 4 KiB, or a power of two up to 64 KiB, which is denser and slower
    /// to read at random.
    pub unit_bytes: usize,
    /// Requests that can be compressed or decompressed at once; 0 means one a CPU.
    pub queues: usize,
    /// Keep a checksum of each block and check it at every read.
    pub has_checksums: bool,
    /// Allocate and lock all of `ram_bytes` now, and never ask for memory again. One device a
    /// process, made before any pool.
    pub is_locked: bool,
    /// Receives blocks that memory has no room for, in compressed form. The device becomes the
    /// file's writer.
    pub swap: Option<Arc<SwapFile>>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            size_bytes: 1 << 30,
            ram_bytes: None,
            compressor: uzswap::DEFAULT_COMPRESSOR.to_owned(),
            unit_bytes: BLOCK_BYTES,
            queues: 0,
            has_checksums: cfg!(debug_assertions),
            is_locked: false,
            swap: None,
        }
    }
}
