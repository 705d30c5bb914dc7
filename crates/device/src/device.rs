//! The device: requests cut into pieces, each claimed, and done by one call of the pool.

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use uzswap::{Algorithm, Group, Keep, LoadError, Page, Pool, PoolConfig};

use crate::backing::{Backing, Mover};
use crate::claims::{Claim, Claims};
use crate::counters::{Kind, Statistics};
use crate::pages::Pages;
use crate::pieces::{mask_of, pieces, Piece, BLOCK_BYTES, LEAF_BLOCKS, LEAF_BYTES};
use crate::raw::KeepsRaw;
use crate::room::{Admission, Room, Worst};

/// The one group of a device's pool.
const GROUP: Group = Group(0);
/// Longest chain of pages: costs address space, and makes zspages denser.
const CHAIN: usize = 16;
/// Largest device: the pool's keys are numbers of blocks, and it has room for the leaves of this.
pub const SIZE_BYTES_MAX: u64 = 1 << 40;
/// Least memory that is locked.
const LOCKED_BYTES_MIN: u64 = 16 << 20;
/// What is stored is packed anew when this share of it is holes, and this share of its pages has gone since it was last:
/// packing looks at every object.
const PACK_SHARE: u64 = 32;
/// Least memory that goes to the backing at once.
const MOVED_BYTES_MIN: u64 = 256 << 10;

/// How a device is made.
#[derive(Clone)]
pub struct Config {
    /// Bytes of the device, whole blocks of 4 KiB.
    pub size_bytes: u64,
    /// Most bytes of memory for what is stored: objects and tables. No bound when `None`.
    pub ram_bytes: Option<u64>,
    /// The compressor's name.
    pub compressor: String,
    /// Bytes compressed as one: 4 KiB, or a power of two up to 64 KiB, which is denser and slower to read at random.
    pub unit_bytes: usize,
    /// Requests that can be compressed or decompressed at once; 0 means one a CPU.
    pub queues: usize,
    /// Keep a checksum of each block and check it at every read.
    pub has_checksums: bool,
    /// Make and lock all of `ram_bytes` now, and never ask for memory again. One device a process, made before any pool.
    pub is_locked: bool,
    /// Where blocks go that memory has no room for.
    pub backing: Option<Arc<dyn Backing>>,
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
            backing: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("size_bytes", &self.size_bytes)
            .field("ram_bytes", &self.ram_bytes)
            .field("compressor", &self.compressor)
            .field("unit_bytes", &self.unit_bytes)
            .field("queues", &self.queues)
            .field("has_checksums", &self.has_checksums)
            .field("is_locked", &self.is_locked)
            .field("backing", &self.backing.is_some())
            .finish()
    }
}

/// A device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The size is none of a device.
    #[error(
        "a device has whole blocks of 4096 bytes, at least one and at most 1 TiB; {0} bytes are not that"
    )]
    Size(u64),
    /// There is too little memory for the tables of a device of this size.
    #[error("a device of this size needs at least {0} bytes of memory")]
    Ram(u64),
    /// Locked memory has no bound.
    #[error("memory is locked in advance, so how much must be said")]
    Unbounded,
    /// Memory cannot be made and locked.
    #[error("{bytes} bytes of memory cannot be made and locked: {reason}")]
    Lock {
        /// How much was asked for.
        bytes: u64,
        /// What the kernel said.
        reason: io::Error,
    },
    /// No compressor of that name, or no pool.
    #[error(transparent)]
    Pool(#[from] uzswap::Error),
}

impl From<uzswap::PoolError> for Error {
    fn from(error: uzswap::PoolError) -> Self {
        Error::Pool(error.into())
    }
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// Part of the request is beyond the device's end.
    #[error("the request reaches beyond the device's end")]
    OutOfRange,
    /// There is no room; nothing was changed from `at` on.
    #[error("no room for what is written at byte {at}")]
    NoSpace {
        /// Where the part that was not done starts.
        at: u64,
    },
    /// An earlier write failed in the middle and left the block without content, or this one did.
    #[error("the content of the block at byte {at} was lost by a write that failed")]
    Lost {
        /// The block.
        at: u64,
    },
    /// A block does not decompress to what was written.
    #[error("the block at byte {at} is damaged")]
    Damaged {
        /// The block.
        at: u64,
    },
    /// The backing failed.
    #[error("the backing failed on blocks from byte {at}: {reason}")]
    Backing {
        /// The first of the blocks asked for.
        at: u64,
        /// What it said.
        reason: io::Error,
    },
}

impl IoError {
    /// The error as the kernel and NBD number it.
    pub fn errno(&self) -> i32 {
        const EIO: i32 = 5;
        const EINVAL: i32 = 22;
        const ENOSPC: i32 = 28;
        match self {
            IoError::OutOfRange => EINVAL,
            IoError::NoSpace { .. } => ENOSPC,
            IoError::Lost { .. } | IoError::Damaged { .. } => EIO,
            IoError::Backing { reason, .. } => reason.raw_os_error().unwrap_or(EIO),
        }
    }
}

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

    fn read_piece(&self, claim: &Claim<'_>, piece: Piece, into: &mut [u8]) -> Result<(), IoError> {
        let (head, tail, first) = (piece.head(), piece.tail(), piece.first_block());
        let mut pages = Pages::new();
        if head == 0 && tail == 0 {
            pages.extend(into);
            return self.load(claim, first, pages);
        }
        self.read_parts(claim, piece, into)
    }

    /// A read that begins or ends within a block: such blocks go through a page here, whole ones straight to the buffer.
    fn read_parts(&self, claim: &Claim<'_>, piece: Piece, into: &mut [u8]) -> Result<(), IoError> {
        let (head, first) = (piece.head(), piece.first_block());
        let mut head_page = [0; BLOCK_BYTES];
        if piece.blocks() == 1 {
            self.load(claim, first, Pages::of(&mut head_page))?;
            into.copy_from_slice(&head_page[head..head + piece.len]);
            return Ok(());
        }
        let mut tail_page = [0; BLOCK_BYTES];
        let (head_len, tail_len) = part_lens(piece);
        let (head_into, rest) = into.split_at_mut(head_len);
        let (middle, tail_into) = rest.split_at_mut(rest.len() - tail_len);
        let mut pages = Pages::new();
        if head_len > 0 {
            pages.push(&mut head_page);
        }
        pages.extend(middle);
        if tail_len > 0 {
            pages.push(&mut tail_page);
        }
        self.load(claim, first, pages)?;
        head_into.copy_from_slice(&head_page[BLOCK_BYTES - head_len..]);
        tail_into.copy_from_slice(&tail_page[..tail_len]);
        Ok(())
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

    /// Loads claimed neighbours from block `first` of a leaf.
    fn load(&self, claim: &Claim<'_>, first: usize, mut pages: Pages<'_>) -> Result<(), IoError> {
        let mask = mask_of(first, pages.len());
        let at_of = |block: usize| (claim.leaf * LEAF_BYTES + block * BLOCK_BYTES) as u64;
        let lost = self.claims.lost(claim.leaf) & mask;
        if lost != 0 {
            return Err(IoError::Lost { at: at_of(lost.trailing_zeros() as usize) });
        }
        let (stored, held) = self.places(claim, mask);
        if stored == mask {
            return self.load_stored(claim, stored, pages.as_mut_slice());
        }
        let (mut from_pool, mut from_backing) = (Pages::new(), Pages::new());
        for (block, page) in (first..).zip(pages.into_pages()) {
            if stored >> block & 1 == 1 {
                from_pool.push(page);
            } else if held >> block & 1 == 1 {
                from_backing.push(page);
            } else {
                page.fill(0);
            }
        }
        if stored != 0 {
            self.load_stored(claim, stored, from_pool.as_mut_slice())?;
        }
        if held != 0 {
            let backing = self.config.backing.as_ref().expect("it holds blocks");
            backing
                .read(key_of(claim.leaf), held, from_backing.as_mut_slice())
                .map_err(|reason| IoError::Backing { at: at_of(held.trailing_zeros() as usize), reason })?;
            self.backing_reads.fetch_add(u64::from(held.count_ones()), Ordering::Relaxed);
        }
        Ok(())
    }

    fn load_stored(&self, claim: &Claim<'_>, mask: u16, pages: &mut [&mut Page]) -> Result<(), IoError> {
        match self.pool.load_masked(GROUP, key_of(claim.leaf), u64::from(mask), pages, Keep::Shared) {
            Ok(()) => Ok(()),
            // The pool has no swap file of its own here, so that none of its pages is on a disk.
            Err(LoadError::Damaged { index } | LoadError::Disk { index, .. }) => {
                let block = (0..LEAF_BLOCKS).filter(|block| mask >> block & 1 == 1).nth(index);
                let block = block.expect("an index of the mask");
                Err(IoError::Damaged { at: (claim.leaf * LEAF_BYTES + block * BLOCK_BYTES) as u64 })
            }
            Err(LoadError::Missing { .. }) => unreachable!("claimed blocks stay where they are"),
        }
    }

    fn write_piece(&self, piece: Piece, from: &[u8]) -> Result<(), IoError> {
        let (head, tail) = (piece.head(), piece.tail());
        if head == 0 && tail == 0 {
            let (pages, _) = from.as_chunks::<BLOCK_BYTES>();
            if pages.iter().all(is_zero) {
                let claim = self.claims.claim(piece.leaf, piece.mask());
                self.drop_blocks(&claim, piece.mask());
                return Ok(());
            }
            let _admission = self.admit(piece)?;
            let claim = self.claims.claim(piece.leaf, piece.mask());
            let mut refs = [&pages[0]; LEAF_BLOCKS];
            for (slot, page) in refs.iter_mut().zip(pages) {
                *slot = page;
            }
            return self.store(&claim, piece, &refs[..pages.len()]);
        }
        self.write_with_parts(piece, from)
    }

    /// A write that begins or ends within a block, whose rest is read first.
    fn write_with_parts(&self, piece: Piece, from: &[u8]) -> Result<(), IoError> {
        let _admission = self.admit(piece)?;
        let claim = self.claims.claim(piece.leaf, piece.mask());
        let (head, tail, first, blocks) = (piece.head(), piece.tail(), piece.first_block(), piece.blocks());
        let (mut head_page, mut tail_page) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
        if head > 0 || blocks == 1 {
            self.load(&claim, first, Pages::of(&mut head_page))?;
        }
        if blocks == 1 {
            head_page[head..head + piece.len].copy_from_slice(from);
            return self.store(&claim, piece, &[&head_page]);
        }
        if tail > 0 {
            self.load(&claim, first + blocks - 1, Pages::of(&mut tail_page))?;
        }
        let (head_len, tail_len) = part_lens(piece);
        let (head_from, rest) = from.split_at(head_len);
        let (middle, tail_from) = rest.split_at(rest.len() - tail_len);
        head_page[BLOCK_BYTES - head_len..].copy_from_slice(head_from);
        tail_page[..tail_len].copy_from_slice(tail_from);
        let (middle, _) = middle.as_chunks::<BLOCK_BYTES>();
        let mut refs = [&head_page; LEAF_BLOCKS];
        let from_head = usize::from(head > 0);
        for (slot, page) in refs[from_head..].iter_mut().zip(middle) {
            *slot = page;
        }
        if tail > 0 {
            refs[blocks - 1] = &tail_page;
        }
        self.store(&claim, piece, &refs[..blocks])
    }

    /// Zeroes of a part of a block: nothing at all where there is no block.
    fn write_part_of_zeroes(&self, part: Piece, zeroes: &[u8]) -> Result<(), IoError> {
        {
            let claim = self.claims.claim(part.leaf, part.mask());
            let (stored, held) = self.places(&claim, part.mask());
            if stored | held | self.claims.lost(part.leaf) & part.mask() == 0 {
                return Ok(());
            }
        }
        self.write_with_parts(part, zeroes)
    }

    fn store(&self, claim: &Claim<'_>, piece: Piece, pages: &[&Page]) -> Result<(), IoError> {
        let mask = piece.mask();
        let key = key_of(claim.leaf);
        let first = key + piece.first_block() as u64;
        let held = match &self.config.backing {
            Some(backing) => backing.held(key, mask) & mask,
            None => 0,
        };
        if self.pool.store(GROUP, first, pages).is_err() {
            // What the backing has is as it was; what the pool had is gone.
            claim.lose(mask & !held);
            return Err(IoError::Lost { at: first * BLOCK_BYTES as u64 });
        }
        claim.regain(mask);
        if let Some(backing) = self.config.backing.as_ref().filter(|_| held != 0) {
            backing.forget(key, held);
        }
        self.gone.fetch_add(pages.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn drop_blocks(&self, claim: &Claim<'_>, mask: u16) {
        let key = key_of(claim.leaf);
        let (first, count) = (mask.trailing_zeros(), mask.count_ones());
        debug_assert_eq!(mask, mask_of(first as usize, count as usize));
        let gone = self.pool.invalidate(GROUP, key + u64::from(first), u64::from(count));
        if let Some(backing) = &self.config.backing {
            backing.forget(key, mask);
        }
        claim.regain(mask);
        self.gone.fetch_add(gone, Ordering::Relaxed);
    }

    fn admit(&self, piece: Piece) -> Result<Option<Admission<'_>>, IoError> {
        let Some(limit) = self.config.ram_bytes else { return Ok(None) };
        let free = || self.free_bytes(limit);
        match self.room.admit(piece.blocks(), free, |missing| self.make_room(missing)) {
            Some(admission) => Ok(Some(admission)),
            None => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(IoError::NoSpace { at: (piece.leaf * LEAF_BYTES + piece.start) as u64 })
            }
        }
    }

    fn free_bytes(&self, limit: u64) -> u64 {
        let used = self.used_bytes();
        if self.config.is_locked {
            let left = sys::arena::left_bytes().unwrap_or(0) as u64;
            // Frames come sixteen at a time.
            return self.pool.free_frame_bytes() + (left & !((1 << 20) - 1));
        }
        limit.saturating_sub(used)
    }

    /// Frees memory, `missing` bytes or more if that is possible; whether it freed any. Called by one thread at a time.
    fn make_room(&self, missing: u64) -> bool {
        // A stocked arena has nothing to give back.
        if !self.config.is_locked && self.pool.trim() > 0 {
            return true;
        }
        let (bytes, live) = (self.pool.pool_bytes(), self.pool.compressed_bytes());
        let gone = self.gone.load(Ordering::Relaxed);
        let gone_since = gone - self.gone_at_packing.load(Ordering::Relaxed);
        let is_sparse = bytes.saturating_sub(live) > bytes / PACK_SHARE;
        if is_sparse && gone_since > self.pool.stored_pages() / PACK_SHARE {
            self.gone_at_packing.store(gone, Ordering::Relaxed);
            if self.compact() > 0 {
                return true;
            }
        }
        if self.config.backing.is_none() {
            return false;
        }
        // Somewhat more than is missing, so that not every write has to wait for the backing.
        let step = missing.max(bytes / 32).max(MOVED_BYTES_MIN);
        self.pool.shrink(bytes.saturating_sub(step)).pages_written > 0
    }

    fn used_bytes(&self) -> u64 {
        let used = self.pool.pool_bytes() + self.pool.metadata_bytes();
        self.used_max.fetch_max(used, Ordering::Relaxed);
        used
    }
}

/// Least memory for a locked device of so many blocks: tables for all of them, and some objects.
fn locked_bytes_min(blocks: u64) -> u64 {
    // Handles take 8 bytes, in a table that doubles; leaves 14 with checksums; descriptors of frames are few.
    LOCKED_BYTES_MIN + blocks * (16 + 16)
}

/// Bytes of a piece of several blocks in a first and a last block of which it has only a part.
fn part_lens(piece: Piece) -> (usize, usize) {
    ((BLOCK_BYTES - piece.head()) % BLOCK_BYTES, (BLOCK_BYTES - piece.tail()) % BLOCK_BYTES)
}

fn key_of(leaf: usize) -> u64 {
    (leaf * LEAF_BLOCKS) as u64
}

fn is_zero(page: &Page) -> bool {
    let (words, _) = page.as_chunks::<32>();
    words.iter().all(|word| *word == [0; 32])
}
