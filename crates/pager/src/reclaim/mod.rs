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

use std::sync::Mutex;

use crate::config::Config;
use crate::program::Program;
use crate::quiesce::Quiesce;

use address_space::{Accounts, AddressSpace, StartError};
use clock::Hand;
use density::Density;
pub(crate) use density::DensityTrial;
use direct::DirectReclaim;
use evictions::Evictions;
use promotion::Promotion;
use swap_out::Swap;
use workers::Workers;

/// The lowest of the parts that threads run: it has the others' common parts, too.
pub(crate) struct Reclaimer {
    pub config: Config,
    pub accounts: &'static dyn Accounts,
    pub pages: AddressSpace,
    pub program: Program,
    pub quiesce: Quiesce,
    pub evictions: Evictions,
    pub swap: Swap,
    pub direct: DirectReclaim,
    workers: Workers,
    hand: Mutex<Hand>,
    promotion: Promotion,
    density: Density,
}

impl Reclaimer {
    pub fn new(
        config: Config,
        pages: AddressSpace,
        accounts: &'static dyn Accounts,
    ) -> Result<Self, StartError> {
        let store = &pages.store;
        Ok(Reclaimer {
            evictions: Evictions::default(),
            swap: Swap::new(store.swap_file().is_some()),
            direct: DirectReclaim::default(),
            workers: Workers::default(),
            hand: Mutex::new(Hand::new()),
            promotion: Promotion::new(),
            density: Density::new(store.has_tiers()),
            program: Program::new(&config, accounts)?,
            quiesce: Quiesce::default(),
            pages,
            accounts,
            config,
        })
    }

    fn measure(&self) -> u64 {
        self.program.measure(&self.pages)
    }

    fn low_water(&self) -> u64 {
        self.program.gauge.low_water()
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
