//! Memory: admits writes, and makes room.
//!
//! If there is a swap file, a thread of the device writes to it while memory still has room
//! ([`Memory::relieve`]), so that requests continue. A request writes by itself only if no room is
//! left.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use uzswap::{compacting_bytes, Group, Pool, ShrinkReport, TIDYING_BYTES};

use crate::admission::{Admission, AdmissionControl, Worst};
use crate::signal::Signal;

pub(crate) const GROUP: Group = Group(0);
/// Objects are packed again when this share of memory is holes, and this share of the pages has
/// left since the last packing: packing visits every object.
const PACK_SHARE: u64 = 32;
/// Writing to the swap file begins when less than this share of memory is free, and ends at twice
/// that.
const FREE_SHARE: u64 = 16;
/// Bytes written between two checks, or a part of the pool if that is more. Less makes small
/// writes; more delays requests that wait for room.
const PIECE_BYTES: u64 = 4 << 20;
const PIECE_SHARE: u64 = 256;
/// Least memory that a request without room moves to the swap file at once.
const MOVED_BYTES_MIN: u64 = 256 << 10;
const MOVED_SHARE: u64 = 64;
/// Pause after a disk failure: every attempt costs segments of the file for good. The thread also
/// waits this long if it can write nothing for another reason.
const PAUSE: Duration = Duration::from_secs(1);
/// Segments cleaned at a time when the thread is otherwise idle.
const CLEAN_SEGMENTS: u64 = 2;

pub(crate) struct Memory {
    pub(crate) pool: Pool,
    admission: AdmissionControl,
    /// Most bytes for objects and tables.
    limit: Option<u64>,
    /// Most bytes that the swap file's tables and buffers take in addition.
    swap_bytes: u64,
    is_locked: bool,
    pub(crate) signal: Signal,
    pub(crate) refused: AtomicU64,
    pub(crate) compacted_bytes: AtomicU64,
    used_max: AtomicU64,
    /// Pages that were overwritten or dropped, and the number that had left the pool at the last
    /// packing.
    gone: AtomicU64,
    gone_at_packing: AtomicU64,
    began: Instant,
    /// No writes until then, in nanoseconds since `began`: by any thread after a disk failure, and
    /// by the device's thread.
    failed_until: AtomicU64,
    fruitless_until: AtomicU64,
}

impl Memory {
    /// `limit` bounds `pool`, without the swap file's own `swap_bytes`.
    pub(crate) fn new(pool: Pool, limit: Option<u64>, swap_bytes: u64, is_locked: bool) -> Self {
        let worst = if is_locked { Worst::STOCKED } else { Worst::TOUCHED };
        // With a swap file, the credit is small, so that shortage is noticed before memory is used
        // up.
        let credit_max = match (limit, pool.swap_file()) {
            (Some(limit), Some(_)) => limit / (4 * FREE_SHARE),
            _ => u64::MAX,
        };
        Memory {
            pool,
            admission: AdmissionControl::new(worst, credit_max),
            limit,
            swap_bytes,
            is_locked,
            signal: Signal::default(),
            refused: AtomicU64::new(0),
            compacted_bytes: AtomicU64::new(0),
            used_max: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            gone_at_packing: AtomicU64::new(0),
            began: Instant::now(),
            failed_until: AtomicU64::new(0),
            fruitless_until: AtomicU64::new(0),
        }
    }

    /// Admits a write of `blocks`; `None` if there is no room and none can be made.
    pub(crate) fn admit(&self, blocks: usize) -> Option<Option<Admission<'_>>> {
        let Some(limit) = self.limit else { return Some(None) };
        let free = || {
            let free = self.free_bytes(limit);
            if free < limit / FREE_SHARE && self.pool.swap_file().is_some() {
                self.signal.raise();
            }
            free
        };
        let admission = self.admission.admit(blocks, free, |missing| self.make_room(missing));
        if admission.is_none() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        admission.map(Some)
    }

    /// Counts pages that left the pool without being written out.
    pub(crate) fn note_gone(&self, pages: u64) {
        self.gone.fetch_add(pages, Ordering::Relaxed);
    }

    pub(crate) fn used_bytes(&self) -> (u64, u64) {
        let used = self.pool.pool_bytes() + self.pool.metadata_bytes() + self.swap_bytes;
        let most = self.used_max.fetch_max(used, Ordering::Relaxed);
        (used, most.max(used))
    }

    /// Packs objects more densely; returns how many bytes were freed.
    pub(crate) fn compact(&self) -> u64 {
        self.gone_at_packing.store(self.gone(), Ordering::Relaxed);
        let bytes = self.pool.compact();
        self.compacted_bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    fn free_bytes(&self, limit: u64) -> u64 {
        let (used, _) = self.used_bytes();
        if self.is_locked {
            let left = sys::arena::left_bytes().unwrap_or(0) as u64;
            // Frames come sixteen at a time.
            let free = self.pool.free_frame_bytes() + (left & !((1 << 20) - 1));
            // If no memory is left while the allocator tidies by itself, an admitted write must
            // still find room.
            return free.saturating_sub(TIDYING_BYTES);
        }
        (limit + self.swap_bytes).saturating_sub(used)
    }

    fn gone(&self) -> u64 {
        self.gone.load(Ordering::Relaxed) + self.pool.group_usage(GROUP).zswpwb
    }

    fn is_sparse(&self) -> bool {
        let (bytes, live) = (self.pool.pool_bytes(), self.pool.compressed_bytes());
        let gone_since = self.gone().saturating_sub(self.gone_at_packing.load(Ordering::Relaxed));
        bytes.saturating_sub(live) > bytes / PACK_SHARE && gone_since > self.pool.stored_pages() / PACK_SHARE
    }

    /// Frees `missing` bytes or more if possible; returns whether it freed any. Called by one
    /// thread at a time, while no write is admitted.
    fn make_room(&self, missing: u64) -> bool {
        // A stocked arena gives no memory back.
        if !self.is_locked && self.pool.trim() > 0 {
            return true;
        }
        if self.is_sparse() && self.compact() > 0 {
            return true;
        }
        if self.pool.swap_file().is_none() || self.is_before(&self.failed_until) {
            return false;
        }
        // Somewhat more than is missing, so that not every write waits for the disk.
        let bytes = self.pool.pool_bytes();
        let step = missing.max(bytes / MOVED_SHARE).max(MOVED_BYTES_MIN);
        let report = self.pool.shrink(bytes.saturating_sub(step));
        self.note(&report);
        report.pages_written > 0
    }

    /// Writes to the swap file until enough memory is free, or no more can be freed. Called by the
    /// device's own thread.
    pub(crate) fn relieve(&self) {
        let Some(limit) = self.limit else { return };
        // The arenas keep memory for the next objects: giving it back and asking again costs more
        // than compression. But it must not be all that is free, since it admits no write.
        let kept_max = limit / FREE_SHARE / 2;
        let kept = || if self.is_locked { 0 } else { self.pool.cached_bytes() };
        let is_short = || self.free_bytes(limit) + kept().min(kept_max) < limit / FREE_SHARE * 2;
        while is_short() && !self.signal.is_ending() {
            if kept() > kept_max && self.pool.trim() > 0 && !is_short() {
                return;
            }
            if self.is_before(&self.failed_until) || self.is_before(&self.fruitless_until) {
                return;
            }
            let bytes = self.pool.pool_bytes();
            let report = self.pool.write_out(PIECE_BYTES.min(bytes / 8).max(bytes / PIECE_SHARE));
            self.note(&report);
            if report.pages_written == 0 {
                self.fruitless_until.store(self.now() + PAUSE.as_nanos() as u64, Ordering::Relaxed);
                return;
            }
            if self.is_sparse() {
                let twice = compacting_bytes(self.pool.pool_bytes());
                // Packing holds some bytes twice; writes admitted during it do without these.
                if let Some(_held) = self.admission.hold(twice, || self.free_bytes(limit)) {
                    self.compact();
                }
            }
        }
    }

    /// Cleans the swap file and gives its free blocks back, when the thread is otherwise idle.
    pub(crate) fn maintain(&self) {
        self.pool.maintain(CLEAN_SEGMENTS);
    }

    fn note(&self, report: &ShrinkReport) {
        match report.error {
            Some(_) => self.failed_until.store(self.now() + PAUSE.as_nanos() as u64, Ordering::Relaxed),
            None if report.pages_written > 0 => self.fruitless_until.store(0, Ordering::Relaxed),
            None => {}
        }
    }

    pub(crate) fn end_pauses(&self) {
        self.failed_until.store(0, Ordering::Relaxed);
        self.fruitless_until.store(0, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn is_before(&self, until: &AtomicU64) -> bool {
        match until.load(Ordering::Relaxed) {
            0 => false,
            until => self.now() < until,
        }
    }

    /// Allocates all memory that the swap file needs, in a process that must not ask for any later.
    pub(crate) fn make_swap_room(&self) -> io::Result<()> {
        self.pool.swap_file().map_or(Ok(()), |file| file.make_room())
    }
}
