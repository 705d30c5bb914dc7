//! What the swap file receives, and when. A thread of its own writes it, and may wait for the disk.
//!
//! Memory needed beyond the low water mark comes from the pool's oldest objects if that is cheaper
//! than compressing more pages ([`zswap::Costs`]), and once the pool has its share of this
//! process's memory. Incompressible pages gain nothing in the pool: an equal number of bytes is
//! written at once. Evicting threads wait when these pile up, and handlers when the budget is
//! exceeded, while the disk makes progress.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use address_space::units::{bytes_of, pages_in};
use address_space::{now_ms, Counter, GROUP};
use swapfile::Counters;
use sys::futex;

use crate::process::Process;

/// The pool may have 1/4 of this process's memory before compressible pages go to disk.
const POOL_PART: u64 = 4;
/// The pool has at most 5/8 of this process's memory. With too few resident pages, pages leave
/// unused, and most looks for candidates fail.
const POOL_MOST: (u64, u64) = (5, 8);
/// Excess of the pool, as part of it and at least, at which moving out waits for writes.
const POOL_EXCESS_PART: u64 = 16;
const POOL_EXCESS_MIN: u64 = 1 << 20;
/// Bytes between checks, or 1/32 of the pool. Less: small writes. More: late forks and pauses.
const PIECE_BYTES: u64 = 4 << 20;
const PIECE_POOL_PART: u64 = 32;
/// Most incompressible bytes waiting in the pool, absolutely and as part of the budget.
const BACKLOG_BYTES_MAX: u64 = 32 << 20;
const BACKLOG_BUDGET_PART: u64 = 32;
/// Milliseconds without writes after the swap file was full or failed.
const PAUSE_MS: u32 = 1000;
/// Sleep of the writer when no memory is needed. It then cleans, and frees disk blocks.
const IDLE_NS: u64 = 500_000_000;
const CLEAN_SEGMENTS: u64 = 2;

/// Writes to the swap file. A part of its own, because others only ask it to write, or whether that
/// makes progress.
pub(crate) struct SwapOut {
    process: Arc<Process>,
    /// Raised when a fault was handed to the readers.
    pub(crate) reads: AtomicU32,
    /// Raised when there may be something to write.
    writes: AtomicU32,
    threads: AtomicU32,
    checks: Checks,
    pause: Pause,
    published: Mutex<Published>,
    maintained_ms: AtomicU32,
}

/// The writer's checks for something to write.
#[derive(Default)]
struct Checks {
    /// One is under way, perhaps waiting for the disk.
    running: AtomicBool,
    done: AtomicU32,
    /// The last one wrote something or found enough room.
    progresses: AtomicBool,
    /// No page was left to move out of the program.
    nothing_left: AtomicBool,
}

/// A pause of writing for lack of room.
#[derive(Default)]
struct Pause {
    /// When it began, or 0.
    since_ms: AtomicU32,
    told: AtomicBool,
}

#[derive(Default)]
struct Published {
    file: Counters,
    zswpwb: u64,
}

impl SwapOut {
    pub(super) fn new(process: Arc<Process>) -> Self {
        SwapOut {
            process,
            reads: AtomicU32::new(0),
            writes: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            checks: Checks::default(),
            pause: Pause::default(),
            published: Mutex::default(),
            maintained_ms: AtomicU32::new(0),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.process.pages.store.swap_file().is_some()
    }

    pub(crate) fn add_thread(&self) {
        self.threads.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn threads(&self) -> u32 {
        self.threads.load(Ordering::SeqCst)
    }

    pub(crate) fn wake_all(&self) {
        for signal in [&self.reads, &self.writes] {
            signal.fetch_add(1, Ordering::SeqCst);
            futex::wake(signal, i32::MAX);
        }
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.checks.running.load(Ordering::Acquire)
    }

    /// Records that no page is left to move out, so that memory must come from the pool.
    pub(crate) fn note_nothing_left(&self) {
        if self.is_on() {
            self.checks.nothing_left.store(true, Ordering::Relaxed);
        }
    }

    /// Number of checks that have ended.
    pub(super) fn checks_done(&self) -> u32 {
        self.checks.done.load(Ordering::Acquire)
    }

    /// Whether the last check wrote something or found enough room.
    pub(super) fn progresses(&self) -> bool {
        self.checks.progresses.load(Ordering::Acquire)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.pause.since_ms.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn write_to_disk(&self) {
        self.process.pages.own_threads.add();
        self.add_thread();
        loop {
            let seen = self.writes.load(Ordering::Acquire);
            if !self.process.quiesce.worker_enters() {
                return;
            }
            self.checks.running.store(true, Ordering::Release);
            let more = self.write_some();
            self.checks.done.fetch_add(1, Ordering::Release);
            self.checks.running.store(false, Ordering::Release);
            self.process.quiesce.worker_leaves();
            if !more {
                futex::wait(&self.writes, seen, Some(IDLE_NS));
            }
        }
    }

    pub(crate) fn request_writeback(&self) {
        if self.is_on() && !self.is_writing() {
            self.writes.fetch_add(1, Ordering::Release);
            futex::wake(&self.writes, 1);
        }
    }

    fn raw_bytes(&self) -> u64 {
        bytes_of(self.process.pages.store.group_usage(GROUP).incompressible)
    }

    /// Writes one piece. Returns whether there may be more.
    fn write_some(&self) -> bool {
        if self.is_in_pause() {
            return false;
        }
        let (store, total, low) =
            (&self.process.pages.store, self.process.measure(), self.process.low_water());
        let need = total.saturating_sub(low);
        if need == 0 {
            self.checks.progresses.store(true, Ordering::Release);
            self.maintain();
            return false;
        }
        let pool = store.pool_bytes();
        let floor = self.process.gauge.resident_bytes() / POOL_PART;
        let by_raw = need.min(self.raw_bytes());
        let by_cost = match pool > floor {
            true => (need.saturating_mul(store.costs().share()) / 1024).min(pool - floor),
            false => 0,
        };
        let by_excess = need.min(self.pool_excess());
        let by_want = if self.checks.nothing_left.swap(false, Ordering::Relaxed) { need } else { 0 };
        let goal = by_raw.max(by_cost).max(by_excess).max(by_want).min(pool);
        if goal == 0 {
            self.checks.progresses.store(false, Ordering::Release);
            return false;
        }
        let piece = goal.min(PIECE_BYTES.max(pool / PIECE_POOL_PART));
        let report = store.shrink(pool - piece);
        self.publish();
        self.checks.progresses.store(report.pages_written > 0, Ordering::Release);
        if report.no_space || report.error.is_some() {
            self.begin_pause(report.error);
        } else if report.pages_written > 0 {
            self.pause.told.store(false, Ordering::Relaxed);
        }
        report.pages_written > 0
    }

    /// Pauses writing, because the swap file is full or failed.
    fn begin_pause(&self, error: Option<i32>) {
        self.process.pages.store.set_group_writeback(GROUP, false);
        self.pause.since_ms.store(now_ms().max(1), Ordering::Release);
        self.checks.progresses.store(false, Ordering::Release);
        if !self.pause.told.swap(true, Ordering::Relaxed) {
            let so = "pages stay in memory, and the limit may be exceeded";
            match error {
                None => self.process.pages.say(format_args!("the swap file is full, or its disk: {so}")),
                Some(error) => self
                    .process
                    .pages
                    .say(format_args!("the swap file cannot be written to (error {error}): {so}")),
            }
        }
    }

    fn is_in_pause(&self) -> bool {
        let since = self.pause.since_ms.load(Ordering::Acquire);
        if since == 0 {
            return false;
        }
        if now_ms().wrapping_sub(since) < PAUSE_MS {
            return true;
        }
        self.pause.since_ms.store(0, Ordering::Release);
        self.process.pages.store.set_group_writeback(GROUP, true);
        false
    }

    fn maintain(&self) {
        let now = now_ms();
        if u64::from(now.wrapping_sub(self.maintained_ms.load(Ordering::Relaxed))) >= IDLE_NS / 1_000_000 {
            self.maintained_ms.store(now, Ordering::Relaxed);
            self.process.pages.store.maintain(CLEAN_SEGMENTS);
        }
    }

    /// Whether so much waits to be written that moving more out is useless. False if the writer
    /// finds nothing to write: a thread that waits for a page may need the memory that others then
    /// free.
    pub(crate) fn is_backed_up(&self) -> bool {
        if !self.is_on() || self.is_paused() || !self.checks.progresses.load(Ordering::Acquire) {
            return false;
        }
        let most = (self.process.accounts.budget() / BACKLOG_BUDGET_PART).min(BACKLOG_BYTES_MAX);
        let is_much = self.raw_bytes() > most
            || self.pool_excess() > POOL_EXCESS_MIN + self.process.gauge.resident_bytes() / POOL_EXCESS_PART;
        is_much && self.process.accounts.total() > self.process.low_water()
    }

    /// Bytes of the pool beyond its largest share of this process's memory.
    fn pool_excess(&self) -> u64 {
        let (part, of) = POOL_MOST;
        self.process.pages.store.pool_bytes().saturating_sub(self.process.gauge.resident_bytes() / of * part)
    }

    /// Publishes changes of the swap file's counters in the ledger.
    pub(crate) fn publish(&self) {
        let Some(file) = self.process.pages.store.swap_file() else { return };
        let Ok(mut published) = self.published.try_lock() else { return };
        let (now, zswpwb) = (file.counters(), self.process.pages.store.group_usage(GROUP).zswpwb);
        let Published { file: before, zswpwb: zswpwb_before } = &*published;
        for (count, now, before) in [
            (Counter::ZswpWb, zswpwb, *zswpwb_before),
            (Counter::DiskReadNs, now.load_ns, before.load_ns),
            (Counter::DiskReads, now.loads, before.loads),
            (Counter::SwapBytesWritten, now.bytes_written, before.bytes_written),
            (Counter::SwapBytesRead, now.bytes_read, before.bytes_read),
            (Counter::SwapObjectBytes, now.object_bytes, before.object_bytes),
            (Counter::SwapWriteNs, now.write_ns, before.write_ns),
            (Counter::SwapBytesCleaned, now.bytes_cleaned, before.bytes_cleaned),
            (Counter::SwapSegmentsCleaned, now.segments_cleaned, before.segments_cleaned),
            (Counter::SwapCleanNs, now.clean_ns, before.clean_ns),
            (Counter::SwapNoSpace, now.no_space, before.no_space),
            (Counter::SwapWritesFailed, now.writes_failed, before.writes_failed),
            (Counter::SwapReadsFailed, now.reads_failed, before.reads_failed),
        ] {
            if now > before {
                self.process.accounts.add(count, now - before);
            }
        }
        let on_disk = pages_in(self.process.pages.store.group_usage(GROUP).on_disk);
        self.process.accounts.publish_disk(on_disk, now.live_bytes);
        *published = Published { file: now, zswpwb };
    }

    /// Before a fork, without readers or writers: waits until the engine's threads are idle.
    pub(crate) fn wait_until_idle(&self) {
        if let Some(file) = self.process.pages.store.swap_file() {
            while !file.is_engine_idle() {
                sys::thread::sleep_ns(20_000);
            }
        }
    }

    /// In a forked child, which has none of the threads. Counts so far are the parent's.
    pub(crate) fn reset(&self) {
        self.threads.store(0, Ordering::SeqCst);
        self.checks.running.store(false, Ordering::SeqCst);
        self.pause.since_ms.store(0, Ordering::SeqCst);
        if let Some(file) = self.process.pages.store.swap_file() {
            self.process.pages.store.set_group_writeback(GROUP, true);
            let zswpwb = self.process.pages.store.group_usage(GROUP).zswpwb;
            if let Ok(mut published) = self.published.try_lock() {
                *published = Published { file: file.counters(), zswpwb };
            }
        }
    }
}
