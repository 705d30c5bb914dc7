//! The file: the state that its readers, its writer and its children share.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sys::files::Caching;

use crate::buffer::Buffers;
use crate::counters::Counters;
use crate::disk::Disk;
use crate::engine::{Engine, Lane};
use crate::place::{grains, GRAIN_BYTES, SEGMENTS_MAX, SEGMENT_BYTES};
use crate::seal::Sealer;
use crate::segments::Segments;
use crate::sync::lock;
use crate::threads::{Spawn, Threads};
use crate::writer::PACKS_MAX;
use crate::{Age, Config, Location, OpenError, Seal, Space, WriteError};

/// Segments that get blocks with one call, if there is room: on ext4 every such call waits for all
/// writes in flight, some milliseconds.
const RESERVED_AT_ONCE: usize = 16;

/// Files of at least this many segments reserve one for cleaning.
const SEGMENTS_CLEANABLE: u64 = 4;

const LANES_KEPT: usize = 8;

/// A swap file. Any thread may read and free at any time; its [`Writer`](crate::Writer) writes.
pub struct SwapFile {
    pub(crate) seal: Sealer,
    space: Arc<Space>,
    row: AtomicUsize,
    pub(crate) segments: Segments,
    counters: Mutex<Counters>,
    /// Apart from the others, since every object that is freed counts.
    pub(crate) live_bytes: AtomicU64,
    pub(crate) buffers: Buffers,
    lanes: Mutex<Lanes>,
    keep_free_percent: u8,
    packs: AtomicUsize,
    /// Rows made for children: the writer closes its logs when the count changes.
    pub(crate) forks: AtomicUsize,
    pub(crate) has_writer: AtomicBool,
}

impl fmt::Debug for SwapFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a swap file of {} bytes", self.size_bytes())
    }
}

struct Lanes {
    engine: Arc<dyn Engine>,
    idle: Vec<Box<dyn Lane>>,
}

/// A row for a child, made before the fork. Dropping it without [`SwapFile::inherit`] releases it.
pub struct ForkedRow {
    space: Arc<Space>,
    number: usize,
    is_taken: bool,
}

impl Drop for ForkedRow {
    fn drop(&mut self) {
        if !self.is_taken {
            self.space.leave(self.number);
        }
    }
}

impl ForkedRow {
    /// The row's number, for a child that was forked before the row was made.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Leaves the row to the child, in the parent after a successful fork.
    pub fn leave_to_child(mut self) {
        self.is_taken = true;
    }
}

/// Opens an unnamed file and the engine for it.
pub fn open_engine(config: &Config, spawn: Spawn<'_>) -> Result<Arc<dyn Engine>, OpenError> {
    let caching = if config.direct { Caching::Direct } else { Caching::Cached };
    let disk = Arc::new(Disk::open(&config.directory, caching)?);
    engine_on(disk, config, spawn)
}

/// Makes the engine for an open file; for a child after fork, which has no engine threads.
pub fn engine_on(disk: Arc<Disk>, config: &Config, spawn: Spawn<'_>) -> Result<Arc<dyn Engine>, OpenError> {
    Ok(Arc::new(Threads::new(disk, config.threads, spawn).map_err(OpenError::Threads)?))
}

impl SwapFile {
    /// Opens a swap file for this process alone. `spawn` starts the engine's threads, if any.
    pub fn open(config: &Config, spawn: Spawn<'_>) -> Result<Arc<SwapFile>, OpenError> {
        let seal = if config.plain { Seal::Plain } else { Seal::Encrypted };
        let space = Arc::new(Space::private(segments_of(config.size_bytes)?));
        let engine = open_engine(config, spawn)?;
        SwapFile::with(engine, seal, space, std::process::id(), config.keep_free_percent)
    }

    /// Builds a swap file from parts; `owner` is this process in the space.
    ///
    /// # Errors
    /// [`OpenError::NoRow`].
    pub fn with(
        engine: Arc<dyn Engine>,
        seal: Seal,
        space: Arc<Space>,
        owner: u32,
        keep_free_percent: u8,
    ) -> Result<Arc<SwapFile>, OpenError> {
        let seal = Sealer::new(seal, space.segments());
        let row = space.join(owner).ok_or(OpenError::NoRow)?;
        Ok(Arc::new(SwapFile {
            seal,
            row: AtomicUsize::new(row),
            segments: Segments::new(space.segments()),
            space,
            counters: Mutex::default(),
            live_bytes: AtomicU64::new(0),
            buffers: Buffers::default(),
            lanes: Mutex::new(Lanes { engine, idle: Vec::new() }),
            keep_free_percent,
            packs: AtomicUsize::new(PACKS_MAX),
            forks: AtomicUsize::new(0),
            has_writer: AtomicBool::new(false),
        }))
    }

    /// Limits the writes in flight to `packs`, each with 256 KiB of memory.
    pub fn limit_packs(&self, packs: usize) {
        self.packs.store(packs.clamp(1, PACKS_MAX), Ordering::Relaxed);
    }

    /// Allocates the kept buffers and lanes now, for a process that must not allocate later.
    /// Parallel reads and cleaning still allocate more: some hundred KiB a thread, and 1 MiB.
    ///
    /// # Errors
    /// If the kernel refuses a resource of a lane.
    pub fn make_room(&self) -> io::Result<()> {
        self.buffers.fill();
        let engine = self.engine();
        let mut lanes = lock(&self.lanes);
        lanes.idle.reserve_exact(LANES_KEPT);
        while lanes.idle.len() < LANES_KEPT {
            lanes.idle.push(engine.lane()?);
        }
        Ok(())
    }

    /// Most bytes of memory of its tables and kept buffers.
    pub fn memory_bytes_max(&self) -> u64 {
        (self.table_bytes() + Buffers::bytes_max()) as u64
    }

    fn table_bytes(&self) -> usize {
        self.segments.bytes() + self.seal.bytes() + self.space.bytes()
    }

    pub(crate) fn packs(&self) -> usize {
        self.packs.load(Ordering::Relaxed)
    }

    /// Whether transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        lock(&self.lanes).engine.is_direct()
    }

    /// Whether objects are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.seal.is_encrypted()
    }

    /// Most bytes of the file.
    pub fn size_bytes(&self) -> u64 {
        (self.space.segments() * SEGMENT_BYTES) as u64
    }

    /// Bytes of an object with its seal, as counted in `live_bytes`.
    pub fn stored_bytes(&self, len: usize) -> u64 {
        u64::from(grains(len + self.seal.tail_bytes())) * GRAIN_BYTES as u64
    }

    /// Releases an object: it is never read again, and its place is free.
    pub fn free(&self, place: Location) {
        let dead = grains(place.len() + self.seal.tail_bytes());
        self.live_bytes.fetch_sub(u64::from(dead) * GRAIN_BYTES as u64, Ordering::Relaxed);
        if self.segments.subtract(place.segment(), dead) {
            self.release_segment(place.segment());
        }
    }

    pub(crate) fn release_segment(&self, segment: usize) {
        self.seal.forget(segment);
        self.space.release_segment(self.row(), segment);
    }

    pub(crate) fn row(&self) -> usize {
        self.row.load(Ordering::Relaxed)
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        lock(&self.lanes).engine.clone()
    }

    pub(crate) fn lane(&self) -> io::Result<Box<dyn Lane>> {
        let engine = {
            let mut lanes = lock(&self.lanes);
            if let Some(lane) = lanes.idle.pop() {
                return Ok(lane);
            }
            lanes.engine.clone()
        };
        engine.lane()
    }

    pub(crate) fn give_lane(&self, lane: Box<dyn Lane>) {
        assert!(lane.in_flight() == 0);
        let mut lanes = lock(&self.lanes);
        if lanes.idle.len() < LANES_KEPT {
            lanes.idle.push(lane);
        }
    }

    /// Takes a segment for a log, with blocks if possible. Returns its number and generation.
    pub(crate) fn take_segment(&self, age: Age) -> Result<(usize, u32), WriteError> {
        // The last segment is for cleaning, which needs one to gain others: a completely full file
        // would stay full, however much of it dies.
        let segments = self.space.segments() as u64;
        if age == Age::New && segments >= SEGMENTS_CLEANABLE && self.space.in_use() + 1 >= segments {
            return Err(WriteError::NoSpace);
        }
        let (number, generation, has_blocks) = self.take_unused().ok_or(WriteError::NoSpace)?;
        if !has_blocks {
            let reserved = self.reserve(number);
            if reserved.is_err() {
                self.space.release_segment(self.row(), number);
                // It has no blocks, but may be good otherwise, so it stays usable.
                self.trim(0);
                return reserved.map(|()| (number, generation));
            }
        }
        if let Err(error) = self.seal.renew(number) {
            self.space.release_segment(self.row(), number);
            return Err(WriteError::Io { offset: (number * SEGMENT_BYTES) as u64, error });
        }
        self.segments.open(number);
        Ok((number, generation))
    }

    /// A free segment in which this process has nothing. If the table calls an own segment free,
    /// another process has corrupted the table; that segment stays as it is.
    fn take_unused(&self) -> Option<(usize, u32, bool)> {
        (0..self.space.segments())
            .map_while(|_| self.space.take(self.row()))
            .find(|(number, ..)| self.segments.is_unused(*number))
    }

    /// Allocates blocks for a segment, and for some of the holes behind it if there is room.
    fn reserve(&self, number: usize) -> Result<(), WriteError> {
        let ahead = (self.space.segments() / 16).min(RESERVED_AT_ONCE - 1);
        let more = self.space.holes(number + 1, ahead);
        if more > 0 && self.reserve_run(number, 1 + more).is_ok() {
            self.space.keep(number + 1..number + 1 + more);
            return Ok(());
        }
        self.reserve_run(number, 1)
    }

    fn reserve_run(&self, first: usize, count: usize) -> Result<(), WriteError> {
        let engine = self.engine();
        let len = (count * SEGMENT_BYTES) as u64;
        if let Ok(room) = engine.room() {
            let kept = u128::from(room.total) * u128::from(self.keep_free_percent) / 100;
            if u128::from(room.available) < kept + u128::from(len) {
                return Err(WriteError::NoSpace);
            }
        }
        match engine.reserve((first * SEGMENT_BYTES) as u64, len) {
            Ok(()) => Ok(()),
            Err(error) if is_no_space(&error) => Err(WriteError::NoSpace),
            // Without allocation in advance, the write finds out.
            Err(_) => Ok(()),
        }
    }

    /// Gives the blocks of free segments back to the disk, except for `keep` segments, which are
    /// used first. Returns the bytes given back.
    pub fn trim(&self, keep: u64) -> u64 {
        let engine = self.engine();
        let release = |number| engine.release((number * SEGMENT_BYTES) as u64, SEGMENT_BYTES as u64).is_ok();
        self.space.trim(keep, release) * SEGMENT_BYTES as u64
    }

    /// Bytes that can be written without cleaning, by the file's own limit.
    pub fn free_bytes(&self) -> u64 {
        self.size_bytes() - (self.space.in_use() * SEGMENT_BYTES as u64).min(self.size_bytes())
    }

    /// Current values of all counters.
    pub fn counters(&self) -> Counters {
        Counters {
            used_bytes: self.space.in_use() * SEGMENT_BYTES as u64,
            kept_bytes: self.space.kept() * SEGMENT_BYTES as u64,
            memory_bytes: (self.table_bytes() + self.buffers.bytes()) as u64,
            live_bytes: self.live_bytes.load(Ordering::Relaxed),
            ..*lock(&self.counters)
        }
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut lock(&self.counters));
    }

    /// Makes the child's row before a fork, while no call is in progress. It holds all segments of
    /// this process.
    ///
    /// # Errors
    /// [`OpenError::NoRow`].
    pub fn fork_row(&self, owner: u32) -> Result<ForkedRow, OpenError> {
        let number = self.space.fork_row(self.row(), owner).ok_or(OpenError::NoRow)?;
        // The child has the keys of the open segments.
        self.forks.fetch_add(1, Ordering::Relaxed);
        Ok(ForkedRow { space: self.space.clone(), number, is_taken: false })
    }

    /// In a child after fork: the row whose number its parent sent.
    pub fn forked_row(&self, number: usize) -> ForkedRow {
        ForkedRow { space: self.space.clone(), number, is_taken: false }
    }

    /// Assigns this process's row to another number.
    pub fn set_owner(&self, owner: u32) {
        self.space.rename(self.row(), owner);
    }

    /// Wipes the keys in a child after fork that continues without the file and cannot drop it.
    /// Later reads fail.
    pub fn forget_keys(&self) {
        (0..self.space.segments()).for_each(|segment| self.seal.forget(segment));
    }

    /// Whether the engine's own threads are idle, which a fork must wait for.
    pub fn is_engine_idle(&self) -> bool {
        self.engine().is_idle()
    }

    /// In a child after fork, before any other call: takes over the row and uses the child's own
    /// engine. Segments open for writing are closed.
    pub fn inherit(&self, mut row: ForkedRow, owner: u32, engine: Arc<dyn Engine>) {
        row.is_taken = true;
        self.space.rename(row.number, owner);
        self.row.store(row.number, Ordering::Relaxed);
        let mut lanes = lock(&self.lanes);
        // Their threads do not exist in the child, so their state must not be dropped.
        std::mem::forget(std::mem::replace(&mut lanes.engine, engine));
        lanes.idle.drain(..).for_each(std::mem::forget);
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        self.space.leave(self.row());
    }
}

/// ENOSPC, EDQUOT and EFBIG.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Segments of a file of `size_bytes`.
///
/// # Errors
/// [`OpenError::Size`].
pub fn segments_of(size_bytes: u64) -> Result<usize, OpenError> {
    match usize::try_from(size_bytes / SEGMENT_BYTES as u64) {
        Ok(segments @ 1..=SEGMENTS_MAX) => Ok(segments),
        _ => Err(OpenError::Size { bytes: size_bytes }),
    }
}
