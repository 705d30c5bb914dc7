//! How much memory this process uses, and the marks below the budget.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use address_space::units::bytes_of;
use address_space::{Accounts, AddressSpace};
use sys::procfs::{self, ProcFile};
use sys::PAGE_SIZE;

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
    others: Others,
    /// Bytes by which this process lately grew without faults between two looks.
    growth: AtomicU64,
}

/// Bytes that the kernel counts but others use: their share of memory shared after a fork, or other
/// memory if one range is paged.
#[derive(Default)]
struct Others {
    bytes: AtomicU64,
    /// If it is the share of others: the bytes that were resident when it was measured; else zero.
    resident_then: AtomicU64,
    /// The faults, beside those served, at that time, and those since then, at the last look.
    faults_then: AtomicU64,
    faults_since: AtomicU64,
    /// Faults that were served, which copy nothing.
    served: AtomicU64,
    /// Relatives came or went, so the shares must be measured soon.
    is_stale: AtomicBool,
}

impl Gauge {
    pub fn new(accounts: &'static dyn Accounts, is_bare: bool) -> Self {
        let (resident, growth) = (AtomicU64::new(0), AtomicU64::new(0));
        Gauge { accounts, is_bare, resident, others: Others::default(), growth }
    }

    /// Publishes this process's use, read from `statm`. Returns the total of all processes.
    pub fn measure(&self, statm: &ProcFile, pages: &AddressSpace) -> u64 {
        let mut buffer = [0; 128];
        if let Some(bytes) = procfs::anonymous_bytes(statm.read_at(&mut buffer, 0)) {
            let fair = bytes.saturating_sub(self.discount_now(bytes));
            self.resident.store(fair, Ordering::Relaxed);
            let staged = bytes_of(pages.staging.pages()) as u64;
            let store = &pages.store;
            let counted = match self.is_bare {
                true => fair.saturating_sub(store.pool_bytes() + staged),
                false => fair,
            };
            self.accounts.publish(counted, store.pool_bytes(), staged, store.stored_pages());
        }
        self.accounts.total()
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
        self.others.bytes.load(Ordering::Relaxed)
    }

    pub fn set_discount(&self, bytes: u64) {
        self.others.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Sets the share of others in this process's `resident` bytes, as just measured.
    pub fn set_shared(&self, bytes: u64, resident: u64) {
        self.set_discount(bytes);
        self.others.resident_then.store(resident, Ordering::Relaxed);
        self.others.faults_then.store(self.faults(), Ordering::Relaxed);
        self.others.faults_since.store(0, Ordering::Relaxed);
    }

    /// Counts the faults since the shares were measured, if there are shares. For the control
    /// thread: it is a system call, and handlers measure at each fault.
    pub fn note_faults(&self) {
        if self.discount_bytes() == 0 || self.others.resident_then.load(Ordering::Relaxed) == 0 {
            return;
        }
        let since = self.faults().wrapping_sub(self.others.faults_then.load(Ordering::Relaxed)) as i64;
        self.others.faults_since.store(since.max(0) as u64, Ordering::Relaxed);
    }

    pub fn note_served(&self) {
        self.others.served.fetch_add(1, Ordering::Relaxed);
    }

    /// The discount, less the pages that the process may have copied since it was measured. A fault
    /// that neither the pager served nor added a page copied a shared one. Measuring takes
    /// milliseconds, and a child that writes to all of its memory copies that much at once.
    fn discount_now(&self, resident: u64) -> u64 {
        let bytes = self.others.faults_since.load(Ordering::Relaxed).saturating_mul(PAGE_SIZE as u64);
        let grown = resident.saturating_sub(self.others.resident_then.load(Ordering::Relaxed));
        self.discount_bytes().saturating_sub(bytes.saturating_sub(grown))
    }

    /// Faults of this process that the pager did not serve.
    fn faults(&self) -> u64 {
        sys::process::minor_faults().wrapping_sub(self.others.served.load(Ordering::Relaxed))
    }

    pub fn note_relatives(&self) {
        self.others.is_stale.store(true, Ordering::Release);
    }

    /// Whether relatives came or went since the last call.
    pub fn take_stale(&self) -> bool {
        self.others.is_stale.swap(false, Ordering::AcqRel)
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
    use super::{low_water, Gauge, GROWTH_LITTLE};
    use crate::testing::blocks;
    use address_space::testing::Plenty;
    use address_space::units::BLOCK_BYTES;
    use sys::PAGE_SIZE;

    /// A child that had written to all of its memory counted nothing for a tenth of a second.
    #[test]
    fn pages_copied_since_the_shares_were_measured_count() {
        let (gauge, range) = (Gauge::new(&Plenty, false), Gauge::new(&Plenty, false));
        let (all, shared) = (1 << 40, 1 << 30);
        gauge.set_shared(shared, all);
        range.set_discount(shared);
        let base = blocks(64);
        // SAFETY: this test's own pages, single ones.
        unsafe { libc::madvise(base as *mut _, 64 * BLOCK_BYTES, libc::MADV_NOHUGEPAGE) };
        for at in (base..base + 64 * BLOCK_BYTES).step_by(PAGE_SIZE) {
            // SAFETY: as above.
            unsafe { (at as *mut u8).write_volatile(1) };
        }
        gauge.note_faults();
        range.note_faults();
        let touched = (64 * BLOCK_BYTES) as u64;
        assert!(gauge.discount_now(all) <= shared - touched, "as many faults could have copied pages");
        // Other tests run beside this one.
        assert_eq!(gauge.discount_now(all + (64 << 30)), shared, "they added pages");
        assert_eq!(range.discount_now(all), shared, "this is no shared memory");
        // More than any test beside causes.
        (0..1 << 24).for_each(|_| gauge.note_served());
        gauge.note_faults();
        assert_eq!(gauge.discount_now(all), shared, "served faults copy none");
    }

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
