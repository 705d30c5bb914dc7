//! What the swap file receives, and when. A thread of its own writes it, and may wait for the disk.
//!
//! Memory needed beyond the low water mark comes from the pool's oldest objects if that is cheaper
//! than compressing more pages ([`zswap::Costs`]), and once the pool has its share of this
//! process's memory. Incompressible pages gain nothing in the pool: an equal number of bytes is
//! written at once. Evicting threads wait when these pile up, and handlers when the budget is
//! exceeded, while the disk makes progress.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Mutex;

use address_space::units::{bytes_of, pages_in};
use address_space::{now_ms, Counter, GROUP};
use swapfile::Counters;
use sys::futex;

use super::Reclaimer;

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
/// Longest wait of a fault for the disk while slightly over budget, and time between checks.
const WAIT_NS_MAX: u64 = 20_000_000;
const WAIT_LOOK_NS: u64 = 500_000;
/// Fruitless checks in a row after which waiting for the writer is useless.
const IN_VAIN_MAX: u32 = 4;

#[derive(Default)]
pub(crate) struct Swap {
    is_on: bool,
    /// Raised when a fault was handed to the readers.
    pub(crate) reads: AtomicU32,
    /// Raised when there may be something to write.
    writes: AtomicU32,
    threads: AtomicU32,
    /// The writer is working, perhaps waiting for the disk.
    writing: AtomicBool,
    looks: AtomicU32,
    /// The last check wrote something or found enough room.
    progresses: AtomicBool,
    /// No page was left to move out of the program.
    nothing_left: AtomicBool,
    /// Time when writing paused for lack of room, or 0.
    paused_ms: AtomicU32,
    told: AtomicBool,
    published: Mutex<Published>,
    maintained_ms: AtomicU32,
}

#[derive(Default)]
struct Published {
    file: Counters,
    zswpwb: u64,
}

impl Swap {
    pub(super) fn new(is_on: bool) -> Self {
        Swap { is_on, ..Swap::default() }
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
        self.writing.load(Ordering::Acquire)
    }

    /// Records that no page is left to move out, so that memory must come from the pool.
    pub(crate) fn note_nothing_left(&self) {
        if self.is_on {
            self.nothing_left.store(true, Ordering::Relaxed);
        }
    }

    fn is_paused(&self) -> bool {
        self.paused_ms.load(Ordering::Relaxed) != 0
    }
}

impl Reclaimer {
    pub(crate) fn write_to_disk(&self) {
        self.pages.own_threads.add();
        self.swap.add_thread();
        loop {
            let seen = self.swap.writes.load(Ordering::Acquire);
            if !self.quiesce.worker_enters() {
                return;
            }
            self.swap.writing.store(true, Ordering::Release);
            let more = self.write_some();
            self.swap.looks.fetch_add(1, Ordering::Release);
            self.swap.writing.store(false, Ordering::Release);
            self.quiesce.worker_leaves();
            if !more {
                futex::wait(&self.swap.writes, seen, Some(IDLE_NS));
            }
        }
    }

    pub(crate) fn request_writeback(&self) {
        if self.swap.is_on && !self.swap.is_writing() {
            self.swap.writes.fetch_add(1, Ordering::Release);
            futex::wake(&self.swap.writes, 1);
        }
    }

    fn raw_bytes(&self) -> u64 {
        bytes_of(self.pages.store.group_usage(GROUP).incompressible)
    }

    /// Writes one piece. Returns whether there may be more.
    fn write_some(&self) -> bool {
        if self.is_in_pause() {
            return false;
        }
        let (store, total, low) = (&self.pages.store, self.measure(), self.low_water());
        let need = total.saturating_sub(low);
        if need == 0 {
            self.swap.progresses.store(true, Ordering::Release);
            self.maintain();
            return false;
        }
        let pool = store.pool_bytes();
        let floor = self.program.gauge.resident_bytes() / POOL_PART;
        let by_raw = need.min(self.raw_bytes());
        let by_cost = match pool > floor {
            true => (need.saturating_mul(store.costs().share()) / 1024).min(pool - floor),
            false => 0,
        };
        let by_excess = need.min(self.pool_excess());
        let by_want = if self.swap.nothing_left.swap(false, Ordering::Relaxed) { need } else { 0 };
        let goal = by_raw.max(by_cost).max(by_excess).max(by_want).min(pool);
        if goal == 0 {
            self.swap.progresses.store(false, Ordering::Release);
            return false;
        }
        let piece = goal.min(PIECE_BYTES.max(pool / PIECE_POOL_PART));
        let report = store.shrink(pool - piece);
        self.publish_swap();
        self.swap.progresses.store(report.pages_written > 0, Ordering::Release);
        if report.no_space || report.error.is_some() {
            self.begin_pause(report.error);
        } else if report.pages_written > 0 {
            self.swap.told.store(false, Ordering::Relaxed);
        }
        report.pages_written > 0
    }

    /// Pauses writing, because the swap file is full or failed.
    fn begin_pause(&self, error: Option<i32>) {
        self.pages.store.set_group_writeback(GROUP, false);
        self.swap.paused_ms.store(now_ms().max(1), Ordering::Release);
        self.swap.progresses.store(false, Ordering::Release);
        if !self.swap.told.swap(true, Ordering::Relaxed) {
            let so = "pages stay in memory, and the limit may be exceeded";
            match error {
                None => self.pages.say(format_args!("the swap file is full, or its disk: {so}")),
                Some(error) => {
                    self.pages.say(format_args!("the swap file cannot be written to (error {error}): {so}"))
                }
            }
        }
    }

    fn is_in_pause(&self) -> bool {
        let since = self.swap.paused_ms.load(Ordering::Acquire);
        if since == 0 {
            return false;
        }
        if now_ms().wrapping_sub(since) < PAUSE_MS {
            return true;
        }
        self.swap.paused_ms.store(0, Ordering::Release);
        self.pages.store.set_group_writeback(GROUP, true);
        false
    }

    fn maintain(&self) {
        let now = now_ms();
        if u64::from(now.wrapping_sub(self.swap.maintained_ms.load(Ordering::Relaxed))) >= IDLE_NS / 1_000_000
        {
            self.swap.maintained_ms.store(now, Ordering::Relaxed);
            self.pages.store.maintain(CLEAN_SEGMENTS);
        }
    }

    /// Whether so much waits to be written that moving more out is useless. False if the writer
    /// finds nothing to write: a thread that waits for a page may need the memory that others then
    /// free.
    pub(crate) fn is_backed_up(&self) -> bool {
        if !self.swap.is_on || self.swap.is_paused() || !self.swap.progresses.load(Ordering::Acquire) {
            return false;
        }
        let most = (self.accounts.budget() / BACKLOG_BUDGET_PART).min(BACKLOG_BYTES_MAX);
        let is_much = self.raw_bytes() > most
            || self.pool_excess() > POOL_EXCESS_MIN + self.program.gauge.resident_bytes() / POOL_EXCESS_PART;
        is_much && self.accounts.total() > self.low_water()
    }

    /// Bytes of the pool beyond its largest share of this process's memory.
    fn pool_excess(&self) -> u64 {
        let (part, of) = POOL_MOST;
        self.pages.store.pool_bytes().saturating_sub(self.program.gauge.resident_bytes() / of * part)
    }

    /// Called before pages come in while the budget is exceeded: waits until the writer's work is
    /// on disk. If the budget is exceeded slightly, stops waiting after a timeout. If it is
    /// exceeded by more, waits until there is room or writing makes no progress.
    pub(crate) fn wait_for_disk(&self, read_on: &dyn Fn()) {
        if !self.swap.is_on {
            return;
        }
        let budget = self.accounts.budget();
        let (some, much) = (budget / 256 + (1 << 20), budget / 64 + (4 << 20));
        let began_ns = sys::now_ns();
        let (mut seen, mut in_vain) = (self.swap.looks.load(Ordering::Acquire), 0);
        loop {
            let over = self.measure().saturating_sub(budget);
            let waited_ns = sys::now_ns() - began_ns;
            if over <= some || self.swap.is_paused() || self.quiesce.is_on() {
                break;
            }
            if over <= much && waited_ns > WAIT_NS_MAX {
                break;
            }
            let looks = self.swap.looks.load(Ordering::Acquire);
            if looks != seen {
                seen = looks;
                in_vain = if self.swap.progresses.load(Ordering::Acquire) { 0 } else { in_vain + 1 };
            }
            if self.reclaim_step() {
                in_vain = 0;
                continue;
            }
            if !self.is_backed_up() {
                self.swap.note_nothing_left();
            }
            self.request_writeback();
            // If nothing can leave, do not make each fault wait for the writer to find that again.
            let is_no_use = !self.swap.progresses.load(Ordering::Acquire) && !self.can_move_out();
            if in_vain >= IN_VAIN_MAX || is_no_use {
                break;
            }
            self.request_reclaim();
            sys::thread::sleep_ns(WAIT_LOOK_NS);
            read_on();
        }
        self.accounts.add(Counter::SwapWaitNs, sys::now_ns() - began_ns);
    }

    /// Publishes changes of the swap file's counters in the ledger.
    pub(crate) fn publish_swap(&self) {
        let Some(file) = self.pages.store.swap_file() else { return };
        let Ok(mut published) = self.swap.published.try_lock() else { return };
        let (now, zswpwb) = (file.counters(), self.pages.store.group_usage(GROUP).zswpwb);
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
                self.accounts.add(count, now - before);
            }
        }
        let on_disk = pages_in(self.pages.store.group_usage(GROUP).on_disk);
        self.accounts.publish_disk(on_disk, now.live_bytes);
        *published = Published { file: now, zswpwb };
    }

    /// Before a fork, without readers or writers: waits until the engine's threads are idle.
    pub(crate) fn still_swap(&self) {
        if let Some(file) = self.pages.store.swap_file() {
            while !file.is_engine_idle() {
                sys::thread::sleep_ns(20_000);
            }
        }
    }

    /// In a forked child, which has none of the threads. Counts so far are the parent's.
    pub(crate) fn reset_swap(&self) {
        self.swap.threads.store(0, Ordering::SeqCst);
        self.swap.writing.store(false, Ordering::SeqCst);
        self.swap.paused_ms.store(0, Ordering::SeqCst);
        if let Some(file) = self.pages.store.swap_file() {
            self.pages.store.set_group_writeback(GROUP, true);
            let zswpwb = self.pages.store.group_usage(GROUP).zswpwb;
            if let Ok(mut published) = self.swap.published.try_lock() {
                *published = Published { file: file.counters(), zswpwb };
            }
        }
    }
}
