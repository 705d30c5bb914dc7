//! The figures of one process.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{Counter, Histogram, COUNTERS};

/// Most formats of stored pages that are counted separately.
pub const FORMS_MAX: usize = 16;

/// Files that a process shows its relatives at a time.
pub const OFFERS: usize = 32;

/// A file in a process's file table that relatives may take, with the rights that they have: a
/// sealed memory file of pages in common. The process may have written anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOffer {
    /// The process, in its own process namespace.
    pub process: u32,
    /// Number in its file table.
    pub number: u16,
    /// Tells it from earlier ones with the same number.
    pub turn: u16,
}

impl FileOffer {
    fn to_word(self) -> u64 {
        u64::from(self.process) << 32 | u64::from(self.number) << 16 | u64::from(self.turn)
    }

    fn of(word: u64) -> Option<Self> {
        let offer =
            FileOffer { process: (word >> 32) as u32, number: (word >> 16) as u16, turn: word as u16 };
        (offer.process != 0).then_some(offer)
    }
}

/// The figures of one process, which it may set to anything.
#[repr(C, align(64))]
pub struct Slot {
    managed: AtomicU32,
    /// A debugger waits for access, so paging must pause.
    pause_wanted: AtomicU32,
    paused: AtomicU32,
    /// `uzswap attach` ends: all pages come in, and the pager goes.
    leave_wanted: AtomicU32,
    /// Its memory may be shared with relatives.
    forked: AtomicU32,
    pub(crate) resident: AtomicU64,
    pool: AtomicU64,
    staged: AtomicU64,
    stored_pages: AtomicU64,
    /// Those that are copies of its parent's.
    inherited_pages: AtomicU64,
    /// Pages in the swap file, and the bytes of their objects.
    disk_pages: AtomicU64,
    disk_bytes: AtomicU64,
    counters: [AtomicU64; COUNTERS.len()],
    forms: [AtomicU64; FORMS_MAX],
    faults: Histogram,
    disk_faults: Histogram,
    /// Equal in processes that have the same memory since a fork; 0 if unknown.
    lineage: AtomicU32,
    offers: [AtomicU64; OFFERS],
    /// Ranks of the segments that it maps, as bits. Two of a distance of [`RANKS`] look alike.
    segments: [AtomicU64; RANKS / 64],
}

/// Segments that are told apart: numbers of files ascend.
const RANKS: usize = 4096;

impl Slot {
    /// Publishes whether the process maps a segment.
    pub fn set_maps(&self, rank: u32, maps: bool) {
        let (word, bit) = (&self.segments[rank as usize % RANKS / 64], 1 << (rank % 64));
        match maps {
            true => word.fetch_or(bit, Ordering::Relaxed),
            false => word.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    /// Whether it maps a segment.
    pub fn maps(&self, rank: u32) -> bool {
        self.segments[rank as usize % RANKS / 64].load(Ordering::Relaxed) >> (rank % 64) & 1 != 0
    }

    /// Sets the process's lineage.
    pub fn set_lineage(&self, lineage: u32) {
        self.lineage.store(lineage, Ordering::Relaxed);
    }

    /// Its lineage, 0 if unknown.
    pub fn lineage(&self) -> u32 {
        self.lineage.load(Ordering::Relaxed)
    }

    /// Shows relatives a file, or none.
    ///
    /// # Panics
    /// If `index` is not below [`OFFERS`].
    pub fn offer(&self, index: usize, offer: Option<FileOffer>) {
        self.offers[index].store(offer.map_or(0, FileOffer::to_word), Ordering::Release);
    }

    /// The files that it shows.
    pub fn offers(&self) -> [Option<FileOffer>; OFFERS] {
        self.offers.each_ref().map(|word| FileOffer::of(word.load(Ordering::Acquire)))
    }

    /// Whether the process has a pager.
    pub fn is_managed(&self) -> bool {
        self.managed.load(Ordering::Relaxed) != 0
    }

    /// Notes that the process has a pager.
    pub fn set_managed(&self) {
        self.managed.store(1, Ordering::Relaxed);
    }

    /// Requests a pause of paging, or its end.
    pub fn want_pause(&self, wanted: bool) {
        self.pause_wanted.store(wanted.into(), Ordering::Release);
    }

    /// Whether a pause is requested.
    pub fn is_pause_wanted(&self) -> bool {
        self.pause_wanted.load(Ordering::Acquire) != 0
    }

    /// Notes that all pages are in and paging is paused, or that it resumes.
    pub fn set_paused(&self, paused: bool) {
        self.paused.store(paused.into(), Ordering::Release);
    }

    /// Whether paging is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire) != 0
    }

    /// Requests that the pager brings all pages in and ends.
    pub fn want_leave(&self) {
        self.leave_wanted.store(1, Ordering::Release);
    }

    /// Whether that is requested.
    pub fn is_leave_wanted(&self) -> bool {
        self.leave_wanted.load(Ordering::Acquire) != 0
    }

    /// Notes that the process has forked, or was forked.
    pub fn note_forked(&self) {
        self.forked.store(1, Ordering::Relaxed);
    }

    /// Whether its memory may be shared with relatives.
    pub fn has_forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed) != 0
    }

    /// Anonymous resident bytes, pool and staging included.
    pub fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Bytes of the pool.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.load(Ordering::Relaxed)
    }

    /// Bytes of staging.
    pub fn staged_bytes(&self) -> u64 {
        self.staged.load(Ordering::Relaxed)
    }

    /// Pages in the pool.
    pub fn stored_pages(&self) -> u64 {
        self.stored_pages.load(Ordering::Relaxed)
    }

    /// Pages in the swap file.
    pub fn disk_pages(&self) -> u64 {
        self.disk_pages.load(Ordering::Relaxed)
    }

    /// Bytes of the objects in the swap file.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// Pages in the pool, without those that its parent has stored, too.
    pub fn own_stored_pages(&self) -> u64 {
        self.stored_pages().saturating_sub(self.inherited_pages.load(Ordering::Relaxed))
    }

    /// Bytes of the pool for these pages, if all take as much.
    pub fn own_pool_bytes(&self) -> u64 {
        let part = self.own_stored_pages() as f64 / self.stored_pages().max(1) as f64;
        (self.pool_bytes() as f64 * part) as u64
    }

    /// Use of the process as it would be without uzswap, in bytes.
    pub fn wanted_bytes(&self) -> u64 {
        let held = self.resident_bytes().saturating_sub(self.own_pool_bytes());
        let pages = self.own_stored_pages().saturating_add(self.disk_pages());
        held.saturating_add(pages.saturating_mul(4096))
    }

    /// Adds to a counter.
    pub fn add(&self, counter: Counter, by: u64) {
        self.counters[counter as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// A counter's value.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Adds pages stored in a format, given by its number in [`crate::Settings::forms`].
    pub fn add_form(&self, number: usize, pages: u64) {
        self.forms[number].fetch_add(pages, Ordering::Relaxed);
    }

    pub(crate) fn form(&self, number: usize) -> u64 {
        self.forms[number].load(Ordering::Relaxed)
    }

    /// Latencies of its faults.
    pub fn faults(&self) -> &Histogram {
        &self.faults
    }

    /// Latencies of its faults that read from the swap file.
    pub fn disk_faults(&self) -> &Histogram {
        &self.disk_faults
    }

    /// Sets the process's use and returns the previous one.
    pub(crate) fn publish(&self, resident: u64, pool: u64, staged: u64, stored_pages: u64) -> u64 {
        let before = self.resident.swap(resident, Ordering::Relaxed);
        self.pool.store(pool, Ordering::Relaxed);
        self.staged.store(staged, Ordering::Relaxed);
        self.stored_pages.store(stored_pages, Ordering::Relaxed);
        before
    }

    /// Publishes how many of its stored pages are copies of its parent's.
    pub fn publish_inherited(&self, pages: u64) {
        self.inherited_pages.store(pages, Ordering::Relaxed);
    }

    pub(crate) fn publish_disk(&self, pages: u64, bytes: u64) {
        self.disk_pages.store(pages, Ordering::Relaxed);
        self.disk_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Adds the counters to `sum` and clears all figures but `resident`.
    pub(crate) fn settle(&self, sum: &Slot) {
        for (sum, counter) in sum.counters.iter().zip(&self.counters) {
            sum.fetch_add(counter.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        for (sum, form) in sum.forms.iter().zip(&self.forms) {
            sum.fetch_add(form.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        for (sum, own) in [(&sum.faults, &self.faults), (&sum.disk_faults, &self.disk_faults)] {
            sum.add(own);
            own.clear();
        }
        let pages = [&self.stored_pages, &self.inherited_pages, &self.disk_pages];
        for figure in pages.into_iter().chain([&self.pool, &self.staged, &self.disk_bytes]) {
            figure.store(0, Ordering::Relaxed);
        }
        self.offers.iter().chain(&self.segments).for_each(|word| word.store(0, Ordering::Relaxed));
        for flag in
            [&self.lineage, &self.managed, &self.pause_wanted, &self.paused, &self.leave_wanted, &self.forked]
        {
            flag.store(0, Ordering::Relaxed);
        }
    }
}
