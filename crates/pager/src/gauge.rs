//! How much memory this process uses, and the marks below the budget.

use std::sync::atomic::{AtomicU64, Ordering};

use address_space::units::bytes_of;
use address_space::{Accounts, AddressSpace};
use sys::procfs::{self, ProcFile};

/// A look that finds less growth reduces the remembered growth by 1/64.
const GROWTH_FADES: u64 = 64;

/// Remembered growth below this does not matter.
const GROWTH_LITTLE: u64 = 64 << 10;

pub(crate) struct Gauge {
    accounts: &'static dyn Accounts,
    /// Whether the published use excludes the pool and staging.
    is_bare: bool,
    /// Bytes that the process uses, with its fair share of shared memory.
    resident: AtomicU64,
    /// If one range is paged: bytes that the kernel counts but other memory uses.
    discount: AtomicU64,
    /// Stored pages that count for relatives: inherited from the parent, or in common.
    inherited: AtomicU64,
    /// This process's part of the segments that it maps.
    segments: AtomicU64,
    /// Bytes by which this process lately grew without faults between two looks.
    growth: AtomicU64,
}

impl Gauge {
    pub fn new(accounts: &'static dyn Accounts, is_bare: bool) -> Self {
        Gauge {
            accounts,
            is_bare,
            resident: AtomicU64::new(0),
            discount: AtomicU64::new(0),
            inherited: AtomicU64::new(0),
            segments: AtomicU64::new(0),
            growth: AtomicU64::new(0),
        }
    }

    /// Publishes this process's use, read from `statm`. Returns the total of all processes.
    pub fn measure(&self, statm: &ProcFile, pages: &AddressSpace) -> u64 {
        let mut buffer = [0; 128];
        if let Some(bytes) = procfs::anonymous_bytes(statm.read_at(&mut buffer, 0)) {
            let share = self.accounts.share();
            let own = bytes.saturating_sub(self.discount_bytes() + share.others_bytes);
            // The kernel counts segments as files.
            let segments = self.segments.load(Ordering::Relaxed);
            let fair = own + segments;
            self.resident.store(fair, Ordering::Relaxed);
            let staged = bytes_of(pages.staging.pages()) as u64;
            let store = &pages.store;
            let pool = store.pool_bytes() + segments;
            let counted = match self.is_bare {
                true => fair.saturating_sub(pool + staged),
                false => fair,
            };
            self.note_common(store.take_common_count(), share.sharers);
            self.accounts.publish(counted, pool, staged, store.stored_pages());
        }
        self.accounts.total()
    }

    /// Notes that all stored pages are the parent's, in a forked child.
    pub fn note_inherited(&self, stored_pages: u64) {
        self.inherited.store(stored_pages, Ordering::Relaxed);
        self.accounts.publish_inherited(stored_pages);
    }

    /// Counts pages in common that have left since the last measurement: they count once for all
    /// that share them.
    fn note_common(&self, pages: u64, sharers: u32) {
        if pages > 0 {
            let others = pages - pages / u64::from(sharers.max(1));
            let inherited = self.inherited.fetch_add(others, Ordering::Relaxed) + others;
            self.accounts.publish_inherited(inherited);
        }
    }

    /// Sets this process's part of the segments that it maps.
    pub fn set_segments(&self, bytes: u64) {
        self.segments.store(bytes, Ordering::Relaxed);
    }

    /// Notes that pages came in, of about as many inherited ones as there are among the stored.
    pub fn note_came_in(&self, pages: u64, stored_pages: u64) {
        let inherited = self.inherited.load(Ordering::Relaxed);
        if inherited > 0 {
            let of_parent = inherited as f64 / stored_pages.max(inherited) as f64 * pages as f64;
            let left = inherited.saturating_sub(of_parent.ceil() as u64).min(stored_pages);
            self.inherited.store(left, Ordering::Relaxed);
            self.accounts.publish_inherited(left);
        }
    }

    /// The level that reclaim works towards. The room below the budget lets the process grow
    /// without waiting until the next look.
    pub fn low_water(&self) -> u64 {
        low_water(self.accounts.budget(), self.growth.load(Ordering::Relaxed))
    }

    /// Records the bytes by which this process grew without faults since the last look. Fast growth
    /// is remembered for some looks, because it comes in bursts when programs share CPUs.
    pub fn note_growth(&self, bytes: u64) {
        let before = self.growth.load(Ordering::Relaxed);
        self.growth.store(bytes.max(before - before.div_ceil(GROWTH_FADES)), Ordering::Relaxed);
    }

    /// Whether memory lately grew without faults, so that no handler made room for it.
    pub fn grows_unseen(&self) -> bool {
        self.growth.load(Ordering::Relaxed) > 0
    }

    /// The total from which workers should run: midway from the low water mark to the budget.
    pub fn pressure_mark(&self) -> u64 {
        let budget = self.accounts.budget();
        budget - (budget - self.low_water()) / 2
    }

    pub fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    pub fn discount_bytes(&self) -> u64 {
        self.discount.load(Ordering::Relaxed)
    }

    pub fn set_discount(&self, bytes: u64) {
        self.discount.store(bytes, Ordering::Relaxed);
    }
}

/// A 128th under the budget, 256 KiB to 16 MiB, but not more than a quarter. If memory lately grew
/// without faults: a 64th, at least 1 MiB, or four times the growth between looks if that is more,
/// up to a sixteenth, because new mappings fill until a look finds them.
fn low_water(budget: u64, growth: u64) -> u64 {
    let least = match growth >= GROWTH_LITTLE {
        true => (budget / 64).max(1 << 20),
        false => (budget / 128).max(256 << 10),
    };
    let least = least.min(16 << 20).min(budget / 4);
    budget - growth.saturating_mul(4).min(budget / 16).max(least)
}

#[cfg(test)]
mod tests {
    use super::{low_water, GROWTH_LITTLE};

    #[test]
    fn the_low_water_mark_is_a_little_under_the_budget() {
        let under = |budget: u64| budget - low_water(budget, 0);
        assert_eq!([0, 4, 1 << 20].map(under), [0, 1, 1 << 18], "at most a quarter");
        assert_eq!([8 << 20, 32 << 20, 64 << 20].map(under), [1 << 18, 1 << 18, 1 << 19]);
        assert_eq!((under(512 << 20), under(1 << 40)), (4 << 20, 16 << 20));
        let levels = (0..1 << 12u64).map(|step| step << 18);
        assert!(levels.into_iter().is_sorted_by_key(|budget| low_water(budget, 0)));
    }

    #[test]
    fn the_low_water_mark_leaves_room_for_growth() {
        let under = |growth: u64| (128 << 20) - low_water(128 << 20, growth);
        assert_eq!([0, 1 << 20, 2 << 20].map(under), [1 << 20, 4 << 20, 8 << 20]);
        assert_eq!([1 << 30, u64::MAX].map(under), [8 << 20; 2], "a sixteenth at most");
        let small = |growth: u64| (32 << 20) - low_water(32 << 20, growth);
        assert_eq!([1, GROWTH_LITTLE, 200 << 10].map(small), [1 << 18, 1 << 20, 1 << 20], "1 MiB at least");
    }
}
