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
//! All of it is methods of [`FaultService`], which sees these parts of a pager and no others. It
//! asks the reclaimer for room; the reclaimer never serves a fault.

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

/// What those who serve faults share. Only [`FaultService`] uses it.
pub(crate) struct FaultState {
    faults: Faults,
    handlers: Handlers,
    streams: Streams,
    clusters: Clusters,
}

impl FaultState {
    /// No fault waits and no handler listens yet.
    ///
    /// # Errors
    /// When there is no memory for the queue.
    pub fn new(config: &Config) -> io::Result<Self> {
        Ok(FaultState {
            faults: Faults::new()?,
            handlers: Handlers::default(),
            streams: Streams::new(if config.records { 1 } else { EXTENT_PAGES }),
            clusters: Clusters::new(),
        })
    }
}

/// Who serves faults: what it has of its own, and what it uses of other parts.
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
    /// Its reports are in the way of pages.
    gate: &'a Gate,
    /// Whether references are recorded.
    records: bool,
}

impl<'a> FaultService<'a> {
    /// Serves the faults of `pages`, and has `reclaimer` make room for them.
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

    /// The reclaimer that makes room.
    pub fn reclaimer(&self) -> Reclaimer<'a> {
        self.reclaimer
    }

    /// Handlers that run.
    pub fn handlers(&self) -> u32 {
        self.handlers.count()
    }

    /// Has all handlers look whether they are to stand still.
    pub fn call_all(&self) {
        self.handlers.call_all();
    }

    /// Calls a handler if messages wait and no fault was served since the last look, whose result
    /// is `before`.
    pub fn help_if_stuck(&self, before: Option<u32>) -> Option<u32> {
        self.handlers.help_if_stuck(before, || self.pages.reports().wait(0))
    }

    /// The fault that has been served for the longest time: the handler's number, and since when.
    pub fn longest(&self) -> Option<(usize, u64)> {
        self.faults.longest()
    }

    /// Whether a fault is being served or waits for a handler or for the disk.
    pub fn is_busy(&self) -> bool {
        self.faults.any_busy() || self.faults.has_parked() || self.faults.has_parked_for_disk()
    }

    /// Takes a fault that waits for a handler.
    pub fn unpark(&self) -> Option<Fault> {
        self.faults.unpark()
    }

    /// Takes a fault that waits for a handler or for the disk.
    pub fn unpark_any(&self) -> Option<Fault> {
        let for_disk = || self.faults.unpark_for_disk().map(|(fault, _)| fault);
        self.faults.unpark().or_else(for_disk)
    }

    /// Leaves a fault to the next free handler; false when too many wait.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub fn park(&self, fault: Fault) -> bool {
        self.faults.park(fault)
    }

    /// In a forked child, which has none of the handlers.
    pub fn reset(&self) {
        self.handlers.reset();
        self.faults.reset(|slot| self.pages.staging().give(slot));
    }
}
