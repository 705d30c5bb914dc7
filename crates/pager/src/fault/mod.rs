//! The fault service: from the message to the page in place.
//!
//! | file | content |
//! |---|---|
//! | `serve` | reads a message, serves a fault; begin here |
//! | `queue` | faults that were read and are not served yet |
//! | `handlers` | which handlers listen |
//! | `readahead` | how many pages come along |
//! | `disk` | faults whose pages are in the swap file |
//!
//! All of it is methods of [`FaultService`]. It asks the reclaimer for room; the reclaimer never
//! serves a fault.

mod disk;
mod handlers;
mod queue;
mod readahead;
mod serve;

use std::sync::Arc;

use address_space::units::EXTENT_PAGES;

use crate::gate::Gate;
use crate::process::Process;
use crate::reclaim::Reclaimer;

use handlers::Handlers;
pub(crate) use queue::Fault;
use queue::Faults;
pub use queue::DISK_THREADS;
use readahead::{Clusters, Streams};
pub(crate) use serve::Handler;

/// Serves faults, and asks the reclaimer for room.
pub(crate) struct FaultService {
    process: Arc<Process>,
    reclaimer: Arc<Reclaimer>,
    pub faults: Faults,
    pub handlers: Handlers,
    streams: Streams,
    on_disk: Clusters,
    in_pool: Clusters,
    /// Its reports can block moves of pages.
    pub gate: Gate,
}

impl FaultService {
    pub fn new(process: Arc<Process>, reclaimer: Arc<Reclaimer>, gate: Gate) -> Self {
        let window_max = if process.config.records { 1 } else { EXTENT_PAGES };
        FaultService {
            process,
            reclaimer,
            faults: Faults::new(),
            handlers: Handlers::default(),
            streams: Streams::new(window_max),
            on_disk: Clusters::on_disk(),
            in_pool: Clusters::in_pool(),
            gate,
        }
    }

    pub fn help_if_stuck(&self, before: Option<u32>) -> Option<u32> {
        self.handlers.help_if_stuck(before, || self.process.pages.reports().wait(0))
    }

    pub fn is_busy(&self) -> bool {
        self.faults.any_busy() || !self.faults.parked.is_empty() || !self.faults.disk.is_empty()
    }

    /// In a forked child, which has no handlers yet.
    pub fn reset(&self) {
        self.handlers.reset();
        self.faults.reset(|slot| self.process.pages.staging.give_number(slot));
    }
}
