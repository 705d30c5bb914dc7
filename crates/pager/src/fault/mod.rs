//! The fault service: from the message to the page in place.
//!
//! | file | what is there |
//! |---|---|
//! | `serve` | reads a message, serves a fault; begin here |
//! | `queue` | faults that were read and are not served yet |
//! | `handlers` | which handlers listen |
//! | `readahead`, `cluster` | how many pages come along |
//! | `disk` | faults whose pages are in the swap file |
//!
//! All of it is methods of [`FaultService`], which has the parts below it. It asks the reclaimer
//! for room; the reclaimer never serves a fault.

mod cluster;
mod disk;
mod handlers;
mod queue;
mod readahead;
mod serve;

use std::ops::Deref;

use crate::gate::Gate;
use crate::reclaim::Reclaimer;

use address_space::units::EXTENT_PAGES;
use cluster::Clusters;
use handlers::Handlers;
pub(crate) use queue::Fault;
use queue::Faults;
pub use queue::DISK_THREADS;
use readahead::Streams;
pub(crate) use serve::Handler;

/// Serves faults, above the reclaimer and its parts.
pub(crate) struct FaultService {
    pub faults: Faults,
    pub handlers: Handlers,
    streams: Streams,
    clusters: Clusters,
    /// Its reports can block moves of pages.
    pub gate: Gate,
    pub reclaimer: Reclaimer,
}

impl Deref for FaultService {
    type Target = Reclaimer;

    fn deref(&self) -> &Reclaimer {
        &self.reclaimer
    }
}

impl FaultService {
    pub fn new(gate: Gate, reclaimer: Reclaimer) -> Self {
        let window_max = if reclaimer.config.records { 1 } else { EXTENT_PAGES };
        FaultService {
            faults: Faults::new(),
            handlers: Handlers::default(),
            streams: Streams::new(window_max),
            clusters: Clusters::new(),
            gate,
            reclaimer,
        }
    }

    pub fn help_if_stuck(&self, before: Option<u32>) -> Option<u32> {
        self.handlers.help_if_stuck(before, || self.pages.reports().wait(0))
    }

    pub fn is_busy(&self) -> bool {
        self.faults.any_busy() || !self.faults.parked.is_empty() || !self.faults.disk.is_empty()
    }

    /// In a forked child, which has no handlers yet.
    pub fn reset(&self) {
        self.handlers.reset();
        self.faults.reset(|slot| self.pages.staging.give_number(slot));
    }
}
