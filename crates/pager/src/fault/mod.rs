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
//! All of it is methods of [`FaultService`], which sees only these parts of a pager. It asks the
//! reclaimer for room; the reclaimer never serves a fault.

mod cluster;
mod disk;
mod handlers;
mod queue;
mod readahead;
mod serve;

use std::io;

use crate::accounts::Accounts;
use crate::config::Config;
use crate::gate::Gate;
use crate::pages::{Pages, EXTENT_PAGES};
use crate::quiesce::Quiesce;
use crate::reclaim::Reclaimer;

use cluster::Clusters;
use handlers::Handlers;
pub(crate) use queue::Fault;
use queue::Faults;
pub use queue::DISK_THREADS;
use readahead::Streams;
pub(crate) use serve::Handler;

/// State shared by the threads that serve faults. Only [`FaultService`] uses it.
pub(crate) struct FaultState {
    faults: Faults,
    handlers: Handlers,
    streams: Streams,
    clusters: Clusters,
}

impl FaultState {
    /// # Errors
    /// If there is no memory for the queue.
    pub fn new(config: &Config) -> io::Result<Self> {
        Ok(FaultState {
            faults: Faults::new()?,
            handlers: Handlers::default(),
            streams: Streams::new(if config.records { 1 } else { EXTENT_PAGES }),
            clusters: Clusters::new(),
        })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct FaultService<'a> {
    faults: &'a Faults,
    handlers: &'a Handlers,
    streams: &'a Streams,
    clusters: &'a Clusters,
    pages: &'a Pages,
    reclaimer: Reclaimer<'a>,
    quiesce: &'a Quiesce,
    accounts: &'static dyn Accounts,
    /// Its reports can block moves of pages.
    gate: &'a Gate,
    records: bool,
}

impl<'a> FaultService<'a> {
    pub fn new(
        state: &'a FaultState,
        pages: &'a Pages,
        reclaimer: Reclaimer<'a>,
        quiesce: &'a Quiesce,
        gate: &'a Gate,
        accounts: &'static dyn Accounts,
        config: &Config,
    ) -> Self {
        let FaultState { faults, handlers, streams, clusters } = state;
        let records = config.records;
        FaultService {
            faults,
            handlers,
            streams,
            clusters,
            pages,
            reclaimer,
            quiesce,
            accounts,
            gate,
            records,
        }
    }

    pub fn reclaimer(&self) -> Reclaimer<'a> {
        self.reclaimer
    }

    pub fn handlers(&self) -> u32 {
        self.handlers.count()
    }

    pub fn call_all(&self) {
        self.handlers.call_all();
    }

    pub fn help_if_stuck(&self, before: Option<u32>) -> Option<u32> {
        self.handlers.help_if_stuck(before, || self.pages.reports().wait(0))
    }

    pub fn longest(&self) -> Option<(usize, u64)> {
        self.faults.longest()
    }

    pub fn is_busy(&self) -> bool {
        self.faults.any_busy() || self.faults.has_parked() || self.faults.has_parked_for_disk()
    }

    pub fn unpark(&self) -> Option<Fault> {
        self.faults.unpark()
    }

    pub fn unpark_any(&self) -> Option<Fault> {
        let for_disk = || self.faults.unpark_for_disk().map(|(fault, _)| fault);
        self.faults.unpark().or_else(for_disk)
    }

    /// Parks a fault for the next free handler. Returns false if too many wait.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub fn park(&self, fault: Fault) -> bool {
        self.faults.park(fault)
    }

    /// In a forked child, which has no handlers yet.
    pub fn reset(&self) {
        self.handlers.reset();
        self.faults.reset(|slot| self.pages.staging().give(slot));
    }
}
