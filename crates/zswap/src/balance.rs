//! The measured cost of a byte of memory, by writing pages out and by storing more pages.
//!
//! Memory can come from two sources. Writing cold objects to disk frees their bytes in the pool,
//! and costs a load from disk for each page that returns. Storing resident pages frees most of a
//! page, and costs a load from the pool for each that returns. This module measures how many return
//! and how long a load takes; the share of each source follows the ratio of costs. So a slow disk,
//! or pages that are wanted again, damp the writing.

use std::time::Duration;

use acomp::PAGE_SIZE;

use crate::load::Chunk;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::lock;
use crate::Zswap;

/// One load in this many from the pool is timed.
const SAMPLE: u64 = 64;
/// Pages after which the past counts half.
const WINDOW_PAGES: u64 = 16384;
/// Assumed cost of a load from disk before the first one.
const DISK_LOAD_NS: u64 = 100_000;
/// Assumed cost of a load from the pool before the first one.
const POOL_LOAD_NS: u64 = 1000;
/// Least share, of 1024: cold pages go to disk under any pressure, if slowly.
const SHARE_MIN: u64 = 16;

/// The costs that the shrinker weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Of 1024 recently written pages, how many returned.
    pub disk_return: u64,
    /// Nanoseconds to load a page from disk.
    pub disk_load_ns: u64,
    /// Of 1024 recently stored pages, how many returned.
    pub pool_return: u64,
    /// Nanoseconds to load a page from the pool.
    pub pool_load_ns: u64,
    /// Bytes of a page's object in the pool.
    pub object_bytes: u64,
}

impl Costs {
    /// The share of the wanted memory to free by writing pages out, in 1024ths.
    pub fn share(&self) -> u64 {
        let object = self.object_bytes.clamp(1, PAGE_SIZE as u64 - 1);
        let disk = u128::from(self.disk_return)
            * u128::from(self.disk_load_ns)
            * u128::from(PAGE_SIZE as u64 - object);
        let pool = u128::from(self.pool_return) * u128::from(self.pool_load_ns) * u128::from(object);
        match (pool * 1024).checked_div(disk) {
            None => 1024,
            Some(share) => (share.min(1024) as u64).max(SHARE_MIN),
        }
    }
}

#[derive(Default)]
pub(crate) struct Balance {
    loads: AtomicU64,
    pool_load_ns: AtomicU64,
}

impl Balance {
    /// Whether to time the load of this chunk: a sample of those from the pool alone.
    pub(crate) fn samples(&self, chunk: &Chunk) -> bool {
        // Inexact between threads, which is harmless.
        let loads = self.loads.load(Ordering::Relaxed);
        self.loads.store(loads + 1, Ordering::Relaxed);
        loads.is_multiple_of(SAMPLE) && chunk.on_disk().next().is_none()
    }

    pub(crate) fn pool_load(&self, pages: usize, took: Duration) {
        let ns = took.as_nanos() as u64 / pages.max(1) as u64;
        let before = self.pool_load_ns.load(Ordering::Relaxed);
        let now = if before == 0 { ns } else { before - before / 8 + ns / 8 };
        self.pool_load_ns.store(now.max(1), Ordering::Relaxed);
    }

    fn pool_load_ns(&self) -> u64 {
        match self.pool_load_ns.load(Ordering::Relaxed) {
            0 => POOL_LOAD_NS,
            ns => ns,
        }
    }
}

/// Recently stored, written and returned pages; the shrinker's.
#[derive(Default)]
pub(crate) struct Lately {
    before: Totals,
    recent: Totals,
}

#[derive(Default, Clone, Copy)]
struct Totals {
    stored: u64,
    loaded: u64,
    written: u64,
    read: u64,
    disk_ns: u64,
    disk_objects: u64,
}

impl Lately {
    fn update(&mut self, now: Totals) {
        let recent = &mut self.recent;
        // The counters are read beside other threads, so a difference may seem to decrease.
        let since =
            |now: u64, before: &mut u64| now.saturating_sub(std::mem::replace(before, now.max(*before)));
        recent.stored += since(now.stored, &mut self.before.stored);
        recent.loaded += since(now.loaded, &mut self.before.loaded);
        recent.written += since(now.written, &mut self.before.written);
        recent.read += since(now.read, &mut self.before.read);
        recent.disk_ns += since(now.disk_ns, &mut self.before.disk_ns);
        recent.disk_objects += since(now.disk_objects, &mut self.before.disk_objects);
        for (pages, figure) in [
            (&mut recent.stored, &mut recent.loaded),
            (&mut recent.written, &mut recent.read),
            (&mut recent.disk_objects, &mut recent.disk_ns),
        ] {
            while *pages > WINDOW_PAGES {
                (*pages, *figure) = (*pages / 2, *figure / 2);
            }
        }
    }
}

fn of_1024(back: u64, gone: u64) -> u64 {
    (back * 1024).checked_div(gone).unwrap_or(0).min(1024)
}

impl Zswap {
    /// The current costs that the shrinker weighs.
    pub fn costs(&self) -> Costs {
        let counters = self.counters();
        let file = self.config.swap.as_ref().map(|file| file.counters()).unwrap_or_default();
        let mut shrinker = lock(&self.shrinker);
        shrinker.lately.update(Totals {
            stored: counters.zswpout,
            loaded: counters.zswpin.saturating_sub(counters.disk_loads),
            written: counters.zswpwb,
            read: counters.disk_loads,
            disk_ns: file.load_ns,
            disk_objects: file.objects_read,
        });
        let recent = shrinker.lately.recent;
        let disk_ns = recent.disk_ns.checked_div(recent.disk_objects).unwrap_or(DISK_LOAD_NS);
        let objects = counters.stored_pages - counters.same_filled_pages.min(counters.stored_pages);
        Costs {
            disk_return: of_1024(recent.read, recent.written),
            disk_load_ns: disk_ns + self.config.fault_ns,
            // A page without a history may return.
            pool_return: of_1024(recent.loaded + 1, recent.stored + 1),
            pool_load_ns: self.balance.pool_load_ns() + self.config.fault_ns,
            object_bytes: counters.pool_total_size.checked_div(objects).unwrap_or(PAGE_SIZE as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Costs = Costs {
        disk_return: 100,
        disk_load_ns: 10_000,
        pool_return: 100,
        pool_load_ns: 10_000,
        object_bytes: 2048,
    };

    #[test]
    fn the_cheaper_way_is_taken_to_the_extent_that_it_is_cheaper() {
        assert_eq!(EVEN.share(), 1024);
        assert_eq!(
            Costs { disk_load_ns: 100_000, ..EVEN }.share(),
            102,
            "a disk ten times as slow as the pool"
        );
        assert_eq!(
            Costs { disk_load_ns: 100_000, disk_return: 10, ..EVEN }.share(),
            1024,
            "but hardly wanted"
        );
        assert_eq!(
            Costs { disk_return: 0, disk_load_ns: 1 << 40, ..EVEN }.share(),
            1024,
            "nothing comes back"
        );
        assert_eq!(Costs { disk_return: 1024, disk_load_ns: 1 << 40, ..EVEN }.share(), SHARE_MIN);
        // Pages that compress well free little.
        assert!(Costs { object_bytes: 400, ..EVEN }.share() < 200);
        assert_eq!(Costs { object_bytes: 4096, ..EVEN }.share(), 1024);
    }

    #[test]
    fn the_past_counts_less_and_less() {
        let mut lately = Lately::default();
        let totals = |written, read| Totals { written, read, ..Totals::default() };
        lately.update(totals(10_000, 10_000));
        assert_eq!(of_1024(lately.recent.read, lately.recent.written), 1024);
        lately.update(totals(110_000, 10_000));
        assert!(of_1024(lately.recent.read, lately.recent.written) < 100);
    }

    /// A load from the swap file that ends between two counter reads counts only in the second.
    #[test]
    fn a_figure_that_seems_to_have_become_less_counts_once() {
        let mut lately = Lately::default();
        for loaded in [1000, 936, 1000, 1003] {
            lately.update(Totals { stored: 2000, loaded, ..Totals::default() });
        }
        assert_eq!((lately.recent.stored, lately.recent.loaded), (2000, 1003));
    }
}
