//! Reclaim: which thread makes room, when, and how much. It never serves a fault.
//!
//! | file | what is there |
//! |---|---|
//! | `workers` | threads that make room beside the handlers, and when they are woken |
//! | `direct` | what handlers do before they serve a fault |
//! | `watermarks` | what a worker does next, a pure function of figures |
//! | `steps` | moving pages out of the program and compressing them, a step at a time |
//! | `evictions` | whether blocks go by the extent, and whether looking for more is worth its while |
//! | `clock` | which pages go |
//! | `free_list` | frames that are ready for pages to come in |
//! | `swap_out` | what goes to the swap file |
//! | `promotion` | denser objects for cold pages |
//! | `density` | whether pages are stored densely at once |
//!
//! All of it is methods of [`Reclaimer`], which sees only these parts of a pager. A handler that
//! makes room may wait for the disk while it is the one to read events, so it passes a function
//! that reads them ([`Reclaimer::direct_reclaim`]). `pages` moves pages out of the program and into
//! the pool.

mod clock;
mod density;
mod direct;
mod evictions;
mod free_list;
mod promotion;
mod steps;
mod swap_out;
mod watermarks;
mod workers;

use std::sync::atomic::AtomicU32;
use std::sync::Mutex;

use crate::accounts::Accounts;
use crate::config::Config;
use crate::files::ProcFiles;
use crate::gauge::Gauge;
use crate::kept::KeptPages;
use crate::pages::Pages;
use crate::program::Program;
use crate::quiesce::Quiesce;
use crate::registrations::Registrations;

use clock::Hand;
use density::Density;
pub(crate) use density::DensityTrial;
use direct::DirectReclaim;
use evictions::Evictions;
use promotion::Promotion;
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) use steps::{Role, Step};
use swap_out::Swap;
use workers::Workers;

/// State shared by the threads that reclaim. Only [`Reclaimer`] uses it.
pub(crate) struct ReclaimState {
    workers: Workers,
    direct: DirectReclaim,
    evictions: Evictions,
    hand: Mutex<Hand>,
    promotion: Promotion,
    density: Density,
    swap: Swap,
}

impl ReclaimState {
    /// `has_tiers`: the pool has a second, denser compressor.
    pub fn new(has_tiers: bool, has_swap_file: bool) -> Self {
        ReclaimState {
            workers: Workers::new(),
            direct: DirectReclaim::new(),
            evictions: Evictions::new(),
            hand: Mutex::new(Hand::new()),
            promotion: Promotion::new(),
            density: Density::new(has_tiers),
            swap: Swap::new(has_swap_file),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Reclaimer<'a> {
    workers: &'a Workers,
    direct: &'a DirectReclaim,
    evictions: &'a Evictions,
    hand: &'a Mutex<Hand>,
    promotion: &'a Promotion,
    density: &'a Density,
    swap: &'a Swap,
    accounts: &'static dyn Accounts,
    gauge: &'a Gauge,
    pages: &'a Pages,
    registrations: &'a Mutex<Registrations>,
    kept: &'a KeptPages,
    files: &'a ProcFiles,
    quiesce: &'a Quiesce,
    /// Most handlers.
    handlers: usize,
}

impl<'a> Reclaimer<'a> {
    pub fn new(
        state: &'a ReclaimState,
        pages: &'a Pages,
        program: &'a Program,
        quiesce: &'a Quiesce,
        accounts: &'static dyn Accounts,
        config: &Config,
    ) -> Self {
        let ReclaimState { workers, direct, evictions, hand, promotion, density, swap } = state;
        Reclaimer {
            workers,
            direct,
            evictions,
            hand,
            promotion,
            density,
            swap,
            accounts,
            gauge: program.gauge(),
            pages,
            registrations: program.registrations_lock(),
            kept: program.kept(),
            files: program.files(),
            quiesce,
            handlers: config.handlers,
        }
    }
}

impl Reclaimer<'_> {
    fn measure(&self) -> u64 {
        self.gauge.measure(&self.files.statm, self.pages)
    }

    fn low_water(&self) -> u64 {
        self.gauge.low_water()
    }

    pub fn note_arrivals(&self, pages: usize) {
        self.evictions.note_arrivals(pages);
    }

    pub fn arrived(&self) -> u64 {
        self.evictions.arrived()
    }

    pub fn look_again(&self) {
        self.evictions.look_again();
    }

    /// A futex, raised when faults wait for the disk.
    pub fn disk_reads(&self) -> &AtomicU32 {
        &self.swap.reads
    }

    pub fn add_disk_thread(&self) {
        self.swap.add_thread();
    }

    pub fn is_writing(&self) -> bool {
        self.swap.is_writing()
    }

    pub fn wait_for_direct_reclaim(&self) {
        self.direct.wait();
    }

    pub fn threads(&self) -> u32 {
        self.workers.count() + self.swap.threads()
    }

    pub fn wake_all(&self) {
        self.workers.wake_all();
        self.swap.wake_all();
    }

    /// In a forked child, which has none of these threads.
    pub fn reset(&self) {
        self.workers.reset();
        self.direct.reset();
        self.evictions.look_again();
        self.reset_swap();
    }
}
