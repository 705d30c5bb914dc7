//! Reclaim: which thread makes room, when, and how much. It never serves a fault.
//!
//! | file | content |
//! |---|---|
//! | `workers` | threads that make room beside the handlers, and when they are woken |
//! | `direct` | what handlers do before they serve a fault |
//! | `watermarks` | what a worker does next, a pure function of figures |
//! | `steps` | moving pages out of the program and compressing them, a step at a time |
//! | `evictions` | whether blocks go by the extent, and whether looking for more is worth its while |
//! | `clock` | which pages go |
//! | `free_list` | frames that are ready for pages to come in |
//! | `swap_out` | writing to the swap file |
//! | `promotion` | denser objects for cold pages |
//! | `density` | whether pages are stored densely at once |
//!
//! [`Reclaimer`] owns these parts, and has the process. A handler that
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

use std::sync::Arc;

use crate::process::Process;

use clock::Clock;
use density::Density;
pub(crate) use density::DensityFigures;
use direct::DirectReclaim;
use evictions::Evictions;
use free_list::FreeList;
use promotion::Promotion;
use swap_out::SwapOut;
use workers::Workers;

/// Makes room. It never serves a fault, so a handler may call it with a fault at hand.
pub(crate) struct Reclaimer {
    process: Arc<Process>,
    pub frames: FreeList,
    pub evictions: Evictions,
    pub swap: SwapOut,
    pub direct: DirectReclaim,
    workers: Workers,
    clock: Clock,
    promotion: Promotion,
    density: Density,
}

impl Reclaimer {
    pub fn new(process: Arc<Process>) -> Self {
        Reclaimer {
            frames: FreeList::new(process.clone()),
            evictions: Evictions::default(),
            swap: SwapOut::new(process.clone()),
            direct: DirectReclaim::default(),
            workers: Workers::default(),
            clock: Clock::new(process.clone()),
            promotion: Promotion::new(),
            density: Density::new(process.pages.store.has_tiers()),
            process,
        }
    }

    /// Chooses the tier in which this process, which has `memory` bytes, stores pages.
    pub fn choose_density(&self, figures: &mut DensityFigures, memory: u64) {
        self.density.choose(&self.process.pages, figures, memory, self.frames.goes_by_extents());
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
        self.swap.reset();
    }
}
