//! The space's figures: the budget, and the pager's counters.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pager::{Accounts, Counter};
use sys::PAGE_SIZE;

/// The fate of a space's pages so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The budget, in bytes.
    pub ram_bytes: u64,
    /// Bytes that count against it: resident pages of regions, the pool, pages on their way, and
    /// tables.
    pub used_bytes: u64,
    /// Bytes of regions, as requested.
    pub region_bytes: u64,
    /// Regions.
    pub regions: u64,
    /// Pages in the pool now.
    pub stored_pages: u64,
    /// Bytes of their objects in the pool.
    pub pool_bytes: u64,
    /// Bytes of pages on their way out or in.
    pub staged_bytes: u64,
    /// Pages moved into the pool.
    pub pages_out: u64,
    /// Pages moved out of the pool.
    pub pages_in: u64,
    /// Pages touched again before they were compressed.
    pub refaults: u64,
    /// Pages of zeroes given on first touch.
    pub zero_filled: u64,
    /// Page faults served.
    pub faults: u64,
    /// Nanoseconds spent serving them.
    pub fault_ns: u64,
    /// Times a page did not compress and stayed in memory.
    pub incompressible: u64,
    /// Times no page could be moved out although the budget was exceeded.
    pub over_budget: u64,
    /// Pages in the swap file now.
    pub disk_pages: u64,
    /// Bytes of their objects there.
    pub disk_bytes: u64,
    /// Pages written to the swap file.
    pub pages_written: u64,
    /// Page faults served from the swap file.
    pub disk_faults: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    pub budget: AtomicU64,
    pub used: AtomicU64,
    /// Pages that arrived in regions since the last measurement. A page of zeroes takes no memory
    /// until it is written, which is not reported; counting it at the read costs at worst one more
    /// measurement.
    arrived: AtomicU64,
    pub region_bytes: AtomicUsize,
    pub regions: AtomicUsize,
    pool: AtomicU64,
    staged: AtomicU64,
    stored_pages: AtomicU64,
    pages_out: AtomicU64,
    pages_in: AtomicU64,
    refaults: AtomicU64,
    zero_filled: AtomicU64,
    faults: AtomicU64,
    fault_ns: AtomicU64,
    incompressible: AtomicU64,
    over_budget: AtomicU64,
    disk_pages: AtomicU64,
    disk_bytes: AtomicU64,
    pages_written: AtomicU64,
    disk_faults: AtomicU64,
    /// Receives messages for users.
    messages: Option<fn(&str)>,
}

impl Counters {
    /// The counters of a space with this budget and this receiver of messages.
    pub fn new(budget: u64, messages: Option<fn(&str)>) -> Self {
        Counters { budget: AtomicU64::new(budget), messages, ..Counters::default() }
    }

    /// All figures, each read by itself.
    pub fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            ram_bytes: of(&self.budget),
            used_bytes: of(&self.used),
            region_bytes: self.region_bytes.load(Ordering::Relaxed) as u64,
            regions: self.regions.load(Ordering::Relaxed) as u64,
            stored_pages: of(&self.stored_pages),
            pool_bytes: of(&self.pool),
            staged_bytes: of(&self.staged),
            pages_out: of(&self.pages_out),
            pages_in: of(&self.pages_in),
            refaults: of(&self.refaults),
            zero_filled: of(&self.zero_filled),
            faults: of(&self.faults),
            fault_ns: of(&self.fault_ns),
            incompressible: of(&self.incompressible),
            over_budget: of(&self.over_budget),
            disk_pages: of(&self.disk_pages),
            disk_bytes: of(&self.disk_bytes),
            pages_written: of(&self.pages_written),
            disk_faults: of(&self.disk_faults),
        }
    }
}

impl Accounts for Counters {
    fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    fn total(&self) -> u64 {
        let arrived = self.arrived.load(Ordering::Relaxed) * PAGE_SIZE as u64;
        self.used.load(Ordering::Relaxed) + arrived
    }

    fn publish(&self, resident: u64, pool: u64, staged: u64, stored_pages: u64) {
        let arrived = self.arrived.swap(0, Ordering::Relaxed) * PAGE_SIZE as u64;
        // Some pages of regions are resident. Memory freed elsewhere in the process hides this
        // until the next count.
        match resident == 0 && self.regions.load(Ordering::Relaxed) > 0 {
            true => _ = self.used.fetch_add(arrived, Ordering::Relaxed),
            false => self.used.store(resident, Ordering::Relaxed),
        }
        self.pool.store(pool, Ordering::Relaxed);
        self.staged.store(staged, Ordering::Relaxed);
        self.stored_pages.store(stored_pages, Ordering::Relaxed);
    }

    fn counted(&self, resident: u64) {
        self.used.store(resident, Ordering::Relaxed);
        self.arrived.store(0, Ordering::Relaxed);
    }

    fn add(&self, counter: Counter, by: u64) {
        let figure = match counter {
            Counter::Faults => &self.faults,
            Counter::FaultNs => &self.fault_ns,
            Counter::Refaults => &self.refaults,
            Counter::ZswpIn => &self.pages_in,
            Counter::ZswpOut => &self.pages_out,
            Counter::ZeroFilled => &self.zero_filled,
            Counter::RejectCompressPoor => &self.incompressible,
            Counter::OverBudget => &self.over_budget,
            Counter::ZswpWb => &self.pages_written,
            Counter::DiskFaults => &self.disk_faults,
            _ => return,
        };
        figure.fetch_add(by, Ordering::Relaxed);
        if matches!(counter, Counter::ZeroFilled | Counter::ZswpIn | Counter::Refaults) {
            self.arrived.fetch_add(by, Ordering::Relaxed);
        }
    }

    fn publish_disk(&self, pages: u64, bytes: u64) {
        self.disk_pages.store(pages, Ordering::Relaxed);
        self.disk_bytes.store(bytes, Ordering::Relaxed);
    }

    fn fault(&self, _ns: u64) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
    }

    fn say(&self, text: &str) {
        if let Some(messages) = self.messages {
            messages(text);
        }
    }

    fn broken(&self, text: &str) {
        let line = pager::FixedText::new(format_args!("uzswap: {text}\n"));
        sys::stderr::write(line.as_str().as_bytes());
    }
}
