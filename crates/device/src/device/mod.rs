//! The device: requests cut into pieces, each claimed, and done by one call of the pool.

mod memory;
mod reading;
mod writing;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use memory::locked_bytes_min;
use uzswap::{Algorithm, Group, Page, Pool, PoolConfig};

use crate::backing::Mover;
use crate::claims::{Claim, Claims};
use crate::config::{Config, SIZE_BYTES_MAX};
use crate::counters::{Kind, Statistics};
use crate::error::{Error, IoError};
use crate::pieces::{mask_of, pieces, Piece, BLOCK_BYTES, LEAF_BLOCKS, LEAF_BYTES};
use crate::raw::KeepsRaw;
use crate::room::{Room, Worst};

/// The one group of a device's pool.
const GROUP: Group = Group(0);
/// Longest chain of pages: costs address space, and makes zspages denser.
const CHAIN: usize = 16;
/// A range of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Whether there are blocks; else there are none, and it reads as zeroes.
    pub is_data: bool,
}

/// A block device. See the crate's documentation.
pub struct Device {
    pool: Pool,
    claims: Arc<Claims>,
    room: Room,
    config: Config,
    reads: Kind,
    writes: Kind,
    discards: Kind,
    flushes: Kind,
    invalid: AtomicU64,
    refused: AtomicU64,
    backing_reads: AtomicU64,
    compacted_bytes: AtomicU64,
    used_max: AtomicU64,
    /// Pages that have left the pool, and how many had when packing last gained nothing.
    gone: AtomicU64,
    gone_at_packing: AtomicU64,
}

impl Device {
    /// An empty device.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(config: Config) -> Result<Device, Error> {
        let algorithm = uzswap::registry().find(&config.compressor).map_err(uzswap::Error::from)?;
        Device::with_algorithm(config, algorithm)
    }

    /// An empty device that compresses with `algorithm`, whatever the configuration names.
    ///
    /// # Errors
    /// [`Error`].
    pub fn with_algorithm(config: Config, algorithm: Arc<dyn Algorithm>) -> Result<Device, Error> {
        let size = config.size_bytes;
        if size == 0 || !size.is_multiple_of(BLOCK_BYTES as u64) || size > SIZE_BYTES_MAX {
            return Err(Error::Size(size));
        }
        let blocks = size / BLOCK_BYTES as u64;
        if config.is_locked {
            let ram = config.ram_bytes.ok_or(Error::Unbounded)?;
            let least = locked_bytes_min(blocks);
            if ram < least {
                return Err(Error::Ram(least));
            }
            sys::arena::stock(ram as usize).map_err(|reason| Error::Lock { bytes: ram, reason })?;
        }
        let claims = Arc::new(Claims::new(size.div_ceil(LEAF_BYTES as u64) as usize));
        let mover = config.backing.as_ref().map(|backing| {
            let mover = Mover { claims: Arc::clone(&claims), backing: Arc::clone(backing) };
            Arc::new(mover) as Arc<dyn uzswap::Writeback>
        });
        let pool_config = PoolConfig {
            unit_size: config.unit_bytes,
            chain: CHAIN,
            writeback: mover,
            verify: config.has_checksums,
            max_groups: 1,
            contexts: config.queues,
            ..PoolConfig::default()
        };
        let pool = Pool::new(pool_config, Arc::new(KeepsRaw(algorithm)))?;
        if config.is_locked {
            let ram = config.ram_bytes.unwrap_or(0);
            pool.make_room(blocks, ram).map_err(|_| Error::Ram(locked_bytes_min(blocks)))?;
        }
        let worst = if config.is_locked { Worst::STOCKED } else { Worst::TOUCHED };
        Ok(Device {
            pool,
            claims,
            room: Room::new(worst),
            config,
            reads: Kind::new(),
            writes: Kind::new(),
            discards: Kind::new(),
            flushes: Kind::new(),
            invalid: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            backing_reads: AtomicU64::new(0),
            compacted_bytes: AtomicU64::new(0),
            used_max: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            gone_at_packing: AtomicU64::new(0),
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

    /// The pool underneath: for figures.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Reads the bytes from `at` on.
    ///
    /// # Errors
    /// [`IoError`]; the buffer's content is unspecified then.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.check(at, into.len() as u64)?;
        self.reads.count(into.len() as u64, || {
            let mut rest = into;
            for piece in pieces(at, rest.len() as u64) {
                let (into, later) = rest.split_at_mut(piece.len);
                rest = later;
                let claim = self.claims.claim(piece.leaf, piece.mask());
                self.read_piece(&claim, piece, into)?;
            }
            Ok(())
        })
    }

    /// Writes bytes from `at` on.
    ///
    /// # Errors
    /// [`IoError`]: what comes before the place that it names was written, nothing else was.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), IoError> {
        self.check(at, from.len() as u64)?;
        self.writes.count(from.len() as u64, || {
            let mut rest = from;
            for piece in pieces(at, rest.len() as u64) {
                let (from, later) = rest.split_at(piece.len);
                rest = later;
                self.write_piece(piece, from)?;
            }
            Ok(())
        })
    }

    /// Forgets all whole blocks of the range, which read as zeroes then. Parts of blocks at its ends stay.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`].
    pub fn discard(&self, at: u64, len: u64) -> Result<(), IoError> {
        self.check(at, len)?;
        self.discards.count(len, || {
            for piece in pieces(at, len) {
                let (first, count) = piece.whole_blocks();
                if count > 0 {
                    let claim = self.claims.claim(piece.leaf, mask_of(first, count));
                    self.drop_blocks(&claim, mask_of(first, count));
                }
            }
            Ok(())
        })
    }

    /// Makes the range read as zeroes. Whole blocks take no memory then; parts of blocks at its ends are written.
    ///
    /// # Errors
    /// [`IoError`], as [`write`](Self::write).
    pub fn zero(&self, at: u64, len: u64) -> Result<(), IoError> {
        self.check(at, len)?;
        self.writes.count(len, || {
            const ZEROES: &Page = &[0; BLOCK_BYTES];
            for piece in pieces(at, len) {
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
                if count > 0 {
                    let claim = self.claims.claim(piece.leaf, mask_of(first, count));
                    self.drop_blocks(&claim, mask_of(first, count));
                }
                part(whole_end, end)?;
            }
            Ok(())
        })
    }

    /// Ends when everything written is as durable as it will be: at once, for memory.
    ///
    /// # Errors
    /// [`IoError::Backing`].
    pub fn flush(&self) -> Result<(), IoError> {
        self.flushes.count(0, || match &self.config.backing {
            Some(backing) => backing.flush().map_err(|reason| IoError::Backing { at: 0, reason }),
            None => Ok(()),
        })
    }

    /// Tells in order which parts of the range have blocks; neighbours that are alike are told as one.
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
        for piece in pieces(at, len) {
            let data = {
                let claim = self.claims.claim(piece.leaf, piece.mask());
                let (stored, held) = self.places(&claim, piece.mask());
                stored | held | self.claims.lost(piece.leaf) & piece.mask()
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
        let counters = self.pool.counters();
        let used = self.used_bytes();
        Statistics {
            disksize: self.size_bytes(),
            orig_data_size: counters.stored_pages * BLOCK_BYTES as u64,
            compr_data_size: self.pool.compressed_bytes(),
            mem_used_total: used,
            mem_limit: self.config.ram_bytes.unwrap_or(0),
            mem_used_max: self.used_max.load(Ordering::Relaxed),
            same_pages: counters.same_filled_pages,
            pages_compacted: self.compacted_bytes.load(Ordering::Relaxed) / BLOCK_BYTES as u64,
            huge_pages: counters.stored_incompressible_pages,
            bd_writes: counters.zswpwb,
            bd_reads: self.backing_reads.load(Ordering::Relaxed),
            lost_blocks: self.claims.lost_count(),
            refused_writes: self.refused.load(Ordering::Relaxed),
            read_ios: self.reads.requests(),
            read_bytes: self.reads.bytes(),
            failed_reads: self.reads.failed(),
            write_ios: self.writes.requests(),
            write_bytes: self.writes.bytes(),
            failed_writes: self.writes.failed(),
            discard_ios: self.discards.requests(),
            discard_bytes: self.discards.bytes(),
            flush_ios: self.flushes.requests(),
            invalid_io: self.invalid.load(Ordering::Relaxed),
            read_latency: self.reads.latencies(),
            write_latency: self.writes.latencies(),
            discard_latency: self.discards.latencies(),
        }
    }

    /// Packs what is stored more densely; answers how many bytes were freed.
    pub fn compact(&self) -> u64 {
        let bytes = self.pool.compact();
        self.compacted_bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
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

    /// Where claimed blocks are: in the pool, and in the backing.
    fn places(&self, claim: &Claim<'_>, mask: u16) -> (u16, u16) {
        let key = key_of(claim.leaf);
        let stored = self.pool.present(GROUP, key, LEAF_BLOCKS) as u16 & mask;
        let rest = mask & !stored;
        let held = match &self.config.backing {
            Some(backing) if rest != 0 => backing.held(key, rest) & rest,
            _ => 0,
        };
        (stored, held)
    }
}

/// Bytes of a piece of several blocks in a first and a last block of which it has only a part.
fn part_lens(piece: Piece) -> (usize, usize) {
    ((BLOCK_BYTES - piece.head()) % BLOCK_BYTES, (BLOCK_BYTES - piece.tail()) % BLOCK_BYTES)
}

fn key_of(leaf: usize) -> u64 {
    (leaf * LEAF_BLOCKS) as u64
}
