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

use crate::pages::Pages;
use crate::reclaim::Reclaimer;
use crate::sync::Userfaultfd;

pub(crate) use cluster::Clusters;
pub(crate) use handlers::Handlers;
pub use queue::DISK_THREADS;
pub(crate) use queue::{Fault, Faults};
pub(crate) use readahead::Streams;
pub(crate) use serve::Handler;

/// Who serves faults: what it has of its own, and what it uses of other parts.
#[derive(Clone, Copy)]
pub(crate) struct FaultService<'a> {
    pub faults: &'a Faults,
    pub handlers: &'a Handlers,
    pub streams: &'a Streams,
    pub clusters: &'a Clusters,
    pub pages: &'a Pages,
    pub reclaimer: Reclaimer<'a>,
    /// Guards a page of the arena while a fork is expected: its reports are in the way of pages.
    pub gate: Option<Userfaultfd>,
    /// Whether references are recorded.
    pub records: bool,
}
