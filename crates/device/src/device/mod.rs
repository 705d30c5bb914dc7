//! The device: requests cut into pieces; each piece is locked and is one call of the pool.

mod reading;
mod writing;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use uzswap::{Algorithm, Page, Pool, PoolConfig, UnknownAlgorithm};

use crate::block_locks::{BlockLock, BlockLocks};
use crate::config::{Config, SIZE_BYTES_MAX};
use crate::counters::{now, Kind, Statistics, SwapStatistics};
use crate::error::{Error, IoError};
use crate::memory::{Memory, GROUP};
use crate::split::{split, Piece, BLOCK_BYTES, LEAF_BLOCKS, LEAF_BYTES};
use crate::swap_writer::SwapWriter;

const LOCKED_BYTES_MIN: u64 = 16 << 20;

/// A range of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Whether the range has blocks. If not, it reads as zeroes.
    pub is_data: bool,
}

/// A block device. See the crate's documentation.
pub struct Device {
    memory: Arc<Memory>,
    swap_writer: Option<SwapWriter>,
    block_locks: BlockLocks,
    config: Config,
    reads: Kind,
    writes: Kind,
    discards: Kind,
    flushes: AtomicU64,
    invalid: AtomicU64,
}

impl Device {
    /// An empty device.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(config: Config) -> Result<Device, Error> {
        if config.is_locked && config.compressor.starts_with("parallel:") {
            let reason = "it starts threads, which a device that is swapped on cannot vouch for".to_owned();
            let refused = UnknownAlgorithm { name: config.compressor, reason, known: Vec::new() };
            return Err(uzswap::Error::from(refused).into());
        }
        let algorithm = uzswap::registry().find(&config.compressor).map_err(uzswap::Error::from)?;
        Device::with_algorithm(config, algorithm)
    }

    /// An empty device that compresses with `algorithm`, which overrides the configuration's name.
    ///
    /// # Errors
    /// [`Error`].
    pub fn with_algorithm(config: Config, algorithm: Arc<dyn Algorithm>) -> Result<Device, Error> {
        let size = config.size_bytes;
        if size == 0 || !size.is_multiple_of(BLOCK_BYTES as u64) || size > SIZE_BYTES_MAX {
            return Err(Error::Size(size));
        }
        let blocks = size / BLOCK_BYTES as u64;
        let swap_bytes = config.swap.as_ref().map_or(0, |file| file.memory_bytes_max());
        let least = swap_bytes + if config.is_locked { locked_bytes_min(blocks) } else { 0 };
        let limit = match config.ram_bytes {
            Some(ram) if ram < least => return Err(Error::Ram(least)),
            Some(ram) => Some(ram - swap_bytes),
            None if config.is_locked => return Err(Error::Unbounded),
            None if config.swap.is_some() => return Err(Error::SwapUnbounded),
            None => None,
        };
        if let Some(bytes) = limit.filter(|_| config.is_locked) {
            sys::arena::stock(bytes as usize).map_err(|reason| Error::Lock { bytes, reason })?;
        }
        let pool_config = PoolConfig {
            unit_size: config.unit_bytes,
            swap: config.swap.clone(),
            verify: config.has_checksums,
            max_groups: 1,
            contexts: config.queues,
            ..PoolConfig::default()
        };
        let pool = Pool::new(pool_config, algorithm)?;
        if let Some(bytes) = limit.filter(|_| config.is_locked) {
            pool.make_room(blocks, bytes).map_err(|_| Error::Ram(least))?;
        }
        let block_locks = BlockLocks::new(size.div_ceil(LEAF_BYTES as u64) as usize);
        let memory = Arc::new(Memory::new(pool, limit, swap_bytes, config.is_locked));
        if config.is_locked {
            memory.make_swap_room().map_err(Error::SwapWriter)?;
        }
        let swap_writer = config
            .swap
            .as_ref()
            .map(|_| SwapWriter::start(Arc::clone(&memory), config.is_locked).map_err(Error::SwapWriter));
        Ok(Device {
            memory,
            swap_writer: swap_writer.transpose()?,
            block_locks,
            config,
            reads: Kind::new(),
            writes: Kind::new(),
            discards: Kind::new(),
            flushes: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
        })
    }

    /// Bytes of the device.
    pub fn size_bytes(&self) -> u64 {
        self.config.size_bytes
    }

    /// How the device was made.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The pool underneath, for figures.
    pub fn pool(&self) -> &Pool {
        &self.memory.pool
    }

    /// Ends the device's own thread, before the code it runs is unloaded. Requests are still
    /// served.
    pub fn stop(&self) {
        if let Some(writer) = &self.swap_writer {
            writer.stop();
        }
    }

    /// For tests: waits until the device's own thread has nothing to do.
    #[doc(hidden)]
    pub fn settle(&self) {
        if self.swap_writer.is_some() {
            self.memory.signal.settle();
        }
    }

    /// For tests: retries a failed disk at once.
    #[doc(hidden)]
    pub fn end_pauses(&self) {
        self.memory.end_pauses();
    }

    /// Reads bytes from `at` on.
    ///
    /// # Errors
    /// [`IoError`]. The buffer's content is unspecified then.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.check(at, into.len() as u64)?;
        self.reads.count(into.len() as u64, || {
            let mut rest = into;
            for piece in split(at, rest.len() as u64) {
                let (into, later) = rest.split_at_mut(piece.len);
                rest = later;
                let lock = self.block_locks.lock(piece.leaf, piece.mask());
                self.read_piece(&lock, piece, into)?;
            }
            Ok(())
        })
    }

    /// Writes bytes from `at` on.
    ///
    /// # Errors
    /// [`IoError`]. Only bytes before the place that the error names were written.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), IoError> {
        self.check(at, from.len() as u64)?;
        self.writes.count(from.len() as u64, || {
            let mut rest = from;
            for piece in split(at, rest.len() as u64) {
                let (from, later) = rest.split_at(piece.len);
                rest = later;
                self.write_piece(piece, from)?;
            }
            Ok(())
        })
    }

    /// Discards all whole blocks of the range; they read as zeroes. Parts of blocks at its ends
    /// stay.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`].
    pub fn discard(&self, at: u64, len: u64) -> Result<(), IoError> {
        self.check(at, len)?;
        self.discards.count(len, || {
            for piece in split(at, len) {
                self.drop_whole_blocks(piece);
            }
            Ok(())
        })
    }

    /// Zeroes the range. Whole blocks take no memory then; parts of blocks at its ends are written.
    ///
    /// # Errors
    /// [`IoError`], as [`write`](Self::write).
    pub fn zero(&self, at: u64, len: u64) -> Result<(), IoError> {
        self.check(at, len)?;
        self.writes.count(len, || {
            const ZEROES: &Page = &[0; BLOCK_BYTES];
            for piece in split(at, len) {
                let (first, count) = piece.whole_blocks();
                let end = piece.start + piece.len;
                let whole_start = (first * BLOCK_BYTES).min(end);
                let whole_end = whole_start + count * BLOCK_BYTES;
                let part = |start: usize, end: usize| match end - start {
                    0 => Ok(()),
                    len => {
                        let part = Piece { leaf: piece.leaf, start, len };
                        self.write_part_of_zeroes(part, &ZEROES[..len])
                    }
                };
                part(piece.start, whole_start)?;
                self.drop_whole_blocks(piece);
                part(whole_end, end)?;
            }
            Ok(())
        })
    }

    /// Counts a flush and does nothing: no content outlives the process, in memory or in the swap
    /// file, which has no name and a key that only this process knows.
    pub fn flush(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// Passes the extents of the range to the callback in order; like neighbours are merged.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`].
    pub fn extents(
        &self,
        at: u64,
        len: u64,
        mut each: impl FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<(), IoError> {
        self.check(at, len)?;
        let mut open: Option<Extent> = None;
        for piece in split(at, len) {
            let data = {
                let lock = self.block_locks.lock(piece.leaf, piece.mask());
                (self.stored(&lock, piece.mask()) | self.block_locks.lost(piece.leaf)) & piece.mask()
            };
            let base = (piece.leaf * LEAF_BYTES) as u64;
            let (start, end) = (piece.start, piece.start + piece.len);
            for block in piece.first_block()..piece.first_block() + piece.blocks() {
                let is_data = data >> block & 1 == 1;
                let from = (block * BLOCK_BYTES).max(start);
                let len = (((block + 1) * BLOCK_BYTES).min(end) - from) as u64;
                match &mut open {
                    Some(extent) if extent.is_data == is_data => extent.len += len,
                    _ => {
                        let next = Extent { start: base + from as u64, len, is_data };
                        if let Some(done) = open.replace(next) {
                            if each(done).is_break() {
                                return Ok(());
                            }
                        }
                    }
                }
            }
        }
        if let Some(last) = open {
            let _ = each(last);
        }
        Ok(())
    }

    /// The figures.
    pub fn statistics(&self) -> Statistics {
        let counters = self.pool().counters();
        let (used, used_max) = self.memory.used_bytes();
        Statistics {
            disksize: self.size_bytes(),
            orig_data_size: counters.stored_pages * BLOCK_BYTES as u64,
            compr_data_size: self.pool().compressed_bytes(),
            mem_used_total: used,
            mem_limit: self.config.ram_bytes.unwrap_or(0),
            mem_used_max: used_max,
            same_pages: counters.same_filled_pages,
            pages_compacted: now(&self.memory.compacted_bytes) / BLOCK_BYTES as u64,
            huge_pages: counters.stored_incompressible_pages,
            bd_count: counters.on_disk_pages,
            bd_reads: counters.disk_loads,
            bd_writes: counters.zswpwb,
            lost_blocks: self.block_locks.lost_count(),
            refused_writes: now(&self.memory.refused),
            read_ios: now(&self.reads.requests),
            read_bytes: now(&self.reads.bytes),
            failed_reads: now(&self.reads.failed),
            write_ios: now(&self.writes.requests),
            write_bytes: now(&self.writes.bytes),
            failed_writes: now(&self.writes.failed),
            discard_ios: now(&self.discards.requests),
            discard_bytes: now(&self.discards.bytes),
            flush_ios: now(&self.flushes),
            invalid_io: now(&self.invalid),
            read_latency: self.reads.latencies(),
            write_latency: self.writes.latencies(),
            discard_latency: self.discards.latencies(),
            swap: self.config.swap.as_ref().map(|file| SwapStatistics::of(file)),
        }
    }

    /// Packs objects more densely; returns how many bytes were freed.
    pub fn compact(&self) -> u64 {
        self.memory.compact()
    }

    fn check(&self, at: u64, len: u64) -> Result<(), IoError> {
        match at.checked_add(len) {
            Some(end) if end <= self.size_bytes() => Ok(()),
            _ => {
                self.invalid.fetch_add(1, Ordering::Relaxed);
                Err(IoError::OutOfRange)
            }
        }
    }

    /// The locked blocks that exist, in memory or in the swap file.
    fn stored(&self, lock: &BlockLock<'_>, mask: u16) -> u16 {
        self.pool().present(GROUP, key_of(lock.leaf), LEAF_BLOCKS) as u16 & mask
    }
}

/// Least memory for a locked device of `blocks`: tables for all of them, and some objects.
fn locked_bytes_min(blocks: u64) -> u64 {
    // Handles take 8 bytes, in a table that doubles; leaves 14 with checksums; frames have few
    // descriptors.
    LOCKED_BYTES_MIN + blocks * (16 + 16)
}

/// Bytes of a piece of several blocks in its first and last block, where it has only parts of them.
fn part_lens(piece: Piece) -> (usize, usize) {
    ((BLOCK_BYTES - piece.head()) % BLOCK_BYTES, (BLOCK_BYTES - piece.tail()) % BLOCK_BYTES)
}

fn key_of(leaf: usize) -> u64 {
    (leaf * LEAF_BLOCKS) as u64
}
